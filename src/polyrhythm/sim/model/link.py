"""A modelled link: two channels, each of which takes time and keeps the order of messages.

*A message leaves when all earlier messages have left and its own bytes are on the link. It arrives
after the delay of the link, and never before an earlier message.* A message without a payload that
must wait for the link leaves together with the message before it: the two form one batch, which the
receiver reads at once. A lost packet is sent again after a time-out, so no message is lost.

*If a process dies, the messages that had left still arrive. Then the other side sees the link end.
While a link is silent, nothing arrives over it, and neither side sees it end; messages sent
meanwhile arrive when the link works again.*

If at least one of the two hosts has a network card (`card.py`), the bytes of a channel share the
cards with other channels, so the time at which they leave is not known when they are sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Protocol

from polyrhythm.sim.clock import Clock
from polyrhythm.sim.model.card import Card, CardTransfer, Crossing
from polyrhythm.sim.tables import LinkSettings
from polyrhythm.wire.messages import Message

HEAD_NBYTES = 128
"""The approximate size of a frame without its payload."""


class Receiver(Protocol):
    def receive(self, channel: "Channel", batch: Sequence[Message]) -> None: ...
    def on_closed(self, channel: "Channel", reason: str) -> None: ...


class Channel:
    """One direction of a link: to `receiver`, which knows the sender as `peer`."""

    __slots__ = (
        "_batch",
        "_clock",
        "_delay_ns",
        "_deliver_next",
        "_free_ns",
        "_head_ns",
        "_held",
        "_in_flight",
        "_last_ns",
        "_loss",
        "_open",
        "_receiver",
        "_rng",
        "_timeout_ns",
        "_transfer",
        "_until_ns",
        "back",
        "first_byte_ns",
        "heard",
        "incarnation",
        "ns_per_byte",
        "peer",
    )

    back: "Channel"
    """The channel in the opposite direction of the same link."""

    def __init__(
        self, clock: Clock, rng: Random, table: LinkSettings, receiver: Receiver, peer: str
    ) -> None:
        self.peer = peer
        self.incarnation = 0
        """The peer's incarnation, if the peer is a worker that the lead has admitted."""
        self.ns_per_byte = 1e9 / table.bandwidth
        self._clock = clock
        self._rng = rng
        self._delay_ns = int(table.delay)
        self._loss = table.loss
        self._timeout_ns = int(table.timeout)
        self._receiver = receiver
        self._in_flight: deque[tuple[int, int]] = deque()
        """On a link with loss: for each message in flight, when it leaves and when it arrives."""
        self._head_ns = int(HEAD_NBYTES * self.ns_per_byte)
        self._free_ns = 0
        self._last_ns = 0
        self._until_ns: float = inf
        """After the sender has died: messages that would arrive later than this are dropped,
        because they had not left at its death."""
        self._open = True
        self.heard = True
        """Whether the receiver still reads the link: False once it has closed its end."""
        self._held: list[Callable[[], object]] | None = None
        """While the link is silent: what was sent, and the end of the link if it has ended."""
        self._batch: list[Message] | None = None
        """The batch that was sent last, until it arrives."""
        self._deliver_next = self._deliver
        self._transfer: CardTransfer | None = None
        """The bytes of this channel on the network cards of its hosts, if these have any."""
        self.first_byte_ns = 0
        """Over cards: when the first byte of the message that is being received arrived."""

    def share(self, sender: Card | None, receiver: Card | None) -> None:
        """Send over the cards of these hosts from now on."""
        if sender is not None or receiver is not None:
            self._transfer = CardTransfer(
                self._clock,
                None if sender is None else sender.outgoing,
                None if receiver is None else receiver.incoming,
                self.ns_per_byte,
                self._passed,
            )

    def send(self, message: Message, payload_nbytes: int = 0) -> int | None:
        """Send a message. Returns the time at which its last byte has left; None if that depends on
        other transfers (`when_left`)."""
        now_ns = self._clock.now_ns
        if not self._open:
            return now_ns
        if self._held is not None:
            self._held.append(partial(self.send, message, payload_nbytes))
            return now_ns
        if self._transfer is not None:
            nbytes = HEAD_NBYTES + payload_nbytes
            self._transfer.add(message, nbytes, small=not payload_nbytes)
            return None
        left_ns, batch = self._free_ns, self._batch
        busy = left_ns > now_ns
        if busy and not payload_nbytes and batch is not None and not self._loss:
            # the link is busy: this message leaves with the message before it
            batch.append(message)
            return left_ns
        if not busy:
            left_ns = now_ns
        if payload_nbytes:
            left_ns += int((HEAD_NBYTES + payload_nbytes) * self.ns_per_byte)
        elif not busy:
            left_ns += self._head_ns
        self._free_ns = left_ns
        arrives_ns = left_ns + self._delay_ns
        if self._loss:
            arrives_ns = self._lose(left_ns, arrives_ns)
        if batch is not None and arrives_ns == self._last_ns:
            batch.append(message)
        else:
            self._last_ns = arrives_ns
            self._batch = batch = [message]
            self._clock.at(arrives_ns, self._deliver_next, batch)
        return left_ns

    def when_left(self, do: Callable[[int], None]) -> None:
        """Call `do` with the time at which the last sent byte has left. It is not called if the
        link ends before."""
        if self._transfer is None:
            self._clock.at(max(self._free_ns, self._clock.now_ns), self._tell_left, do)
        else:
            self._transfer.when_left(do)

    def _tell_left(self, do: Callable[[int], None]) -> None:
        do(self._clock.now_ns)

    def _passed(self, entry: Crossing) -> None:
        """Deliver a message whose last byte has passed the receiver's card."""
        now_ns = self._clock.now_ns
        arrives_ns = now_ns + self._delay_ns
        arrives_ns = self._lose(now_ns, arrives_ns) if self._loss else arrives_ns
        self._last_ns = arrives_ns
        self._clock.at(arrives_ns, self._deliver_entry, entry)

    def _deliver_entry(self, entry: Crossing) -> None:
        self.first_byte_ns = entry.began_ns + self._delay_ns
        self._deliver(entry.batch)

    def _lose(self, left_ns: int, arrives_ns: int) -> int:
        """Return when a message arrives. Each loss of the message adds a time-out."""
        while self._rng.random() < self._loss:
            arrives_ns += self._timeout_ns
        arrives_ns = max(arrives_ns, self._last_ns + 1)
        while self._in_flight and self._in_flight[0][1] < self._clock.now_ns:
            self._in_flight.popleft()
        self._in_flight.append((left_ns, arrives_ns))
        return arrives_ns

    def _deliver(self, batch: list[Message]) -> None:
        if self._batch is batch:
            self._batch = None
        if self.heard and (self._open or self._clock.now_ns <= self._until_ns):
            self._receiver.receive(self, batch)

    @property
    def silent(self) -> bool:
        return self._held is not None

    def leads_to(self, process: object) -> bool:
        return self._receiver is process

    def silence(self) -> None:
        """Let nothing arrive over this link from now on, in both directions."""
        for channel in (self, self.back):
            if channel._held is None:
                channel._held = []

    def heal(self) -> None:
        """Let the link work again."""
        for channel in (self, self.back):
            held, channel._held = channel._held or [], None
            for call in held:
                call()

    def hang_up(self, reason: str) -> None:
        """Close the link by order of its sender: messages that it has sent still arrive, but it
        receives no more messages."""
        self._end(self._free_ns, reason)

    def break_off(self, reason: str) -> None:
        """End the link because its sender has died: messages that have left still arrive, and the
        others are dropped."""
        now_ns = self._clock.now_ns
        if self._transfer is not None:
            self._transfer.drop()
        elif self._loss:
            left = [arrives_ns for left_ns, arrives_ns in self._in_flight if left_ns <= now_ns]
            self._until_ns = self._last_ns = left[-1] if left else now_ns
        else:
            self._until_ns = self._last_ns = now_ns + self._delay_ns
        self._end(now_ns, reason)

    def cut(self, reason: str) -> None:
        """Break the link: messages in flight are lost, and both sides see the link end."""
        for channel in (self, self.back):
            if channel._open:
                channel._open = False
                channel._until_ns = channel._clock.now_ns
                if channel._transfer is not None:
                    channel._transfer.drop(left_too=True)
                channel._last_ns = channel._until_ns + channel._delay_ns
                channel._clock.at(channel._last_ns, channel._tell_end, reason)

    def _end(self, last_ns: int, reason: str) -> None:
        self.back.heard = False
        if self._held is not None:
            self._held.append(partial(self._end, last_ns, reason))
        elif self._open:
            self._open = False
            if self._transfer is None:
                self._end_after(last_ns, reason)
            else:
                self._transfer.when_empty(partial(self._end_after, last_ns, reason))

    def _end_after(self, last_ns: int, reason: str) -> None:
        self._last_ns = max(self._last_ns, max(last_ns, self._clock.now_ns) + self._delay_ns)
        self._clock.at(self._last_ns, self._tell_end, reason)

    def _tell_end(self, reason: str) -> None:
        self.back._open = False
        if self.back._transfer is not None:
            self.back._transfer.drop(left_too=True)
        if self.heard:
            self.heard = False
            self._receiver.on_closed(self, reason)


def link(
    clock: Clock,
    rng: Random,
    table: LinkSettings,
    near: Receiver,
    far: Receiver,
    names: tuple[str, str],
    cards: tuple[Card | None, Card | None] = (None, None),
) -> Channel:
    """Return the channel from `near` to `far`. `names`: the name by which each of the two processes
    knows the other one. `cards`: the network cards of their hosts, if the link passes them."""
    out = Channel(clock, rng, table, far, names[0])
    out.back = Channel(clock, rng, table, near, names[1])
    out.back.back = out
    out.share(*cards)
    out.back.share(*reversed(cards))
    return out
