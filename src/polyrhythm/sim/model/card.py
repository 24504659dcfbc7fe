"""The network card of a simulated host. All transfers of the processes of this host share its two
rates.

*Each direction of a card serves the waiting transfers in turn, one piece at a time. So every
transfer gets an equal share, and the others use what one transfer does not need. If the receiver is
slower, a transfer has at most `WINDOW_PIECES` pieces on the way, like TCP's window, and the
sender's card serves others meanwhile. A message without a payload passes right after the current
piece.*
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from polyrhythm.sim.clock import Clock
from polyrhythm.wire.messages import Message

PIECE_NBYTES = 64 * 1024
WINDOW_PIECES = 4
"""How many pieces of a transfer may be between the sender's card and the end of the receiver's
card."""


class Turns:
    """One direction of a card: the transfers that wait for it, and the one that it serves."""

    __slots__ = ("_busy", "_clock", "_waiting", "ns_per_byte")

    def __init__(self, clock: Clock, ns_per_byte: float) -> None:
        self.ns_per_byte = ns_per_byte
        """It may change at any time. A piece that is being sent keeps its rate."""
        self._clock = clock
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()
        self._busy = False

    def serve(self, nbytes: int, passed: Callable[[int], None], *, first: bool) -> None:
        """Pass this many bytes when it is their turn, then call `passed` with the time at which
        their first byte passed. `first`: before all waiting bytes."""
        (self._waiting.appendleft if first else self._waiting.append)((nbytes, passed))
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        nbytes, passed = self._waiting.popleft()
        self._busy = True
        now_ns = self._clock.now_ns
        until_ns = now_ns + int(nbytes * self.ns_per_byte)
        self._clock.at(until_ns, self._pass, (passed, now_ns))

    def _pass(self, what: tuple[Callable[[int], None], int]) -> None:
        passed, began_ns = what
        passed(began_ns)  # a transfer with more bytes to send waits behind the others from here on
        self._busy = False
        if self._waiting:
            self._begin()


class Card:
    """The two directions of a host's card."""

    __slots__ = ("incoming", "outgoing")

    def __init__(self, clock: Clock, outgoing: float, incoming: float) -> None:
        """The rates are in bytes per second."""
        self.outgoing = Turns(clock, 1e9 / outgoing)
        self.incoming = Turns(clock, 1e9 / incoming)

    def change(self, outgoing: float | None, incoming: float | None) -> None:
        """Change these rates. None leaves a rate as it is."""
        for turns, rate in ((self.outgoing, outgoing), (self.incoming, incoming)):
            if rate is not None:
                turns.ns_per_byte = 1e9 / rate


class Crossing(msgspec.Struct):
    """A message on its way, with the messages without payloads that travel with it."""

    batch: list[Message]
    unsent: int
    unpassed: int
    """The bytes that have not passed the receiver's card."""
    small: bool
    began_ns: int = 0
    """When its first byte passed the receiver's card."""
    when_left: list[Callable[[int], None]] = msgspec.field(default_factory=list)


class CardTransfer:
    """The bytes that one channel sends over the cards of two hosts, in order."""

    __slots__ = (
        "_asked",
        "_clock",
        "_crossing",
        "_emptied",
        "_inside",
        "_ns_per_byte",
        "_on_link",
        "_passed",
        "_receiver",
        "_sender",
        "_unpassed",
        "_unsent",
    )

    def __init__(
        self,
        clock: Clock,
        sender: Turns | None,
        receiver: Turns | None,
        ns_per_byte: float,
        passed: Callable[[Crossing], None],
    ) -> None:
        """`sender` and `receiver`: the directions of the cards of both hosts; None for a host
        without one. `ns_per_byte`: the link between the hosts is no faster than this. `passed` is
        called when the last byte of a message has passed the receiver's card."""
        self._clock = clock
        self._sender = sender
        self._receiver = receiver
        self._ns_per_byte = ns_per_byte
        self._passed = passed
        self._unsent: deque[Crossing] = deque()
        self._unpassed: deque[Crossing] = deque()
        self._crossing: deque[tuple[int, int]] = deque()
        """The pieces that have left the sender's host and not passed the receiver's card: their
        sizes, and when their first bytes left."""
        self._asked = False
        """Whether a piece waits for the sender's card or is on it."""
        self._inside = False
        """Whether a piece waits for the receiver's card or is on it."""
        self._on_link = False
        """Whether a piece has left the sender's card, but not yet the link between the hosts."""
        self._emptied: list[Callable[[], object]] = []

    def add(self, message: Message, nbytes: int, *, small: bool) -> None:
        if small and self._unsent:
            self._unsent[-1].batch.append(message)
            return
        entry = Crossing([message], nbytes, nbytes, small)
        self._unsent.append(entry)
        self._unpassed.append(entry)
        self._ask()

    def when_left(self, do: Callable[[int], None]) -> None:
        """Call `do` with the time when everything that was added has left the sender's host."""
        if self._unsent:
            self._unsent[-1].when_left.append(do)
        else:
            do(self._clock.now_ns)

    def when_empty(self, do: Callable[[], object]) -> None:
        """Call `do` when everything that was added has passed the receiver's card."""
        if self._unpassed:
            self._emptied.append(do)
        else:
            do()

    def drop(self, *, left_too: bool = False) -> None:
        """Drop the messages that have not left the sender's card completely; with `left_too` also
        those on the way. The piece on a card passes without an effect."""
        dropped = len(self._unpassed) if left_too else len(self._unsent)
        for _ in range(dropped):
            self._unpassed.pop()
        self._unsent.clear()
        if not self._unpassed:
            self._empty()

    def _ask(self) -> None:
        """Put the next piece in the queue of the sender's card, if the window allows it."""
        if self._asked or self._on_link or not self._unsent:
            return
        if len(self._crossing) >= WINDOW_PIECES:
            return
        entry = self._unsent[0]
        nbytes = min(PIECE_NBYTES, entry.unsent)
        self._asked = True
        if self._sender is None:
            self._clock.at(self._clock.now_ns, self._leave_at_once, nbytes)
        else:
            self._sender.serve(nbytes, partial(self._leave, nbytes), first=entry.small)

    def _leave_at_once(self, nbytes: int) -> None:
        self._leave(nbytes, self._clock.now_ns)

    def _leave(self, nbytes: int, began_ns: int) -> None:
        """Note that a piece has left the sender's card."""
        self._asked = False
        link_ns = began_ns + int(nbytes * self._ns_per_byte)
        if link_ns > self._clock.now_ns:
            self._on_link = True
            self._clock.at(link_ns, self._leave_link, (nbytes, began_ns))
        else:
            self._cross(nbytes, began_ns)

    def _leave_link(self, what: tuple[int, int]) -> None:
        self._on_link = False
        self._cross(*what)

    def _cross(self, nbytes: int, began_ns: int) -> None:
        """Note that a piece has left the sender's host."""
        if not self._unsent:
            return  # the message of this piece was dropped
        entry = self._unsent[0]
        entry.unsent -= nbytes
        self._crossing.append((nbytes, began_ns))
        if not entry.unsent:
            self._unsent.popleft()
            for tell in entry.when_left:
                tell(self._clock.now_ns)
        self._enter()
        self._ask()

    def _enter(self) -> None:
        """Put the next piece on the way in the queue of the receiver's card."""
        if self._inside or not self._crossing:
            return
        nbytes, began_ns = self._crossing[0]
        self._inside = True
        if self._receiver is None:
            self._arrive(nbytes, began_ns)
        else:
            small = bool(self._unpassed) and self._unpassed[0].small
            self._receiver.serve(nbytes, partial(self._arrive, nbytes), first=small)

    def _arrive(self, nbytes: int, began_ns: int) -> None:
        """Note that a piece has passed the receiver's card."""
        self._inside = False
        self._crossing.popleft()
        if self._unpassed:
            entry = self._unpassed[0]
            entry.began_ns = entry.began_ns or began_ns
            entry.unpassed -= nbytes
            if entry.unpassed <= 0:
                self._unpassed.popleft()
                self._passed(entry)
                if not self._unpassed:
                    self._empty()
        self._enter()
        self._ask()

    def _empty(self) -> None:
        emptied, self._emptied = self._emptied, []
        for tell in emptied:
            tell()
