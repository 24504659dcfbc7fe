"""The contributions of one incarnation of a worker, from sending until every slice is acknowledged.

*A worker keeps a contribution until every slice of it is acknowledged, and has at most 2
unacknowledged contributions. After a change of routes it sends again only the unacknowledged
slices, and only to servers that have become their primaries. An acknowledgement names a routing
epoch, and covers the slices whose primary the server was in that epoch.*
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

import msgspec

from polyrhythm.core.effects import PushSlices
from polyrhythm.core.events import Computed
from polyrhythm.core.kinds import BY_POINTS, weight_in_round
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.pulls import NOTHING, Assembly
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import Route

Owed = Mapping[int, Mapping[int, tuple[int, ...]]]
"""Per server and routing epoch, the slices of which the server became the primary in that epoch. A
mapping is replaced when it changes, and never modified."""


class SentContribution(msgspec.Struct, eq=False, gc=False):
    sequence: int
    round: int
    computed: Computed
    owed: Owed


class Outstanding:
    __slots__ = ("_routes", "_whole", "sent")

    def __init__(self) -> None:
        self.sent: list[SentContribution] = []
        """The contributions that are not acknowledged, the oldest first."""
        self._routes: tuple[Route, ...] = ()
        self._whole: Owed = {}
        """The acknowledgements that a new contribution needs: every slice, each from its primary in
        the current routes."""

    def __len__(self) -> int:
        return len(self.sent)

    def first(self, default: int) -> int:
        """The sequence of the oldest unacknowledged contribution; `default` if there is none."""
        return self.sent[0].sequence if self.sent else default

    def servers(self) -> list[int]:
        """The servers that have not acknowledged all contributions."""
        return sorted({server for sent in self.sent for server in sent.owed})

    def send(
        self, sequence: int, round_: int, computed: Computed, routes: tuple[Route, ...]
    ) -> SentContribution:
        if routes is not self._routes:
            self._routes, self._whole = routes, _owed_by(routes)
        sent = SentContribution(sequence, round_, computed, self._whole)
        self.sent.append(sent)
        return sent

    def acknowledge(self, server: int, sequence: int, routing: int) -> None:
        """Note that a server has acknowledged this contribution and all earlier ones, for the
        slices whose primary it became in epoch `routing` or earlier."""
        for sent in self.sent[:] if len(self.sent) > 1 else self.sent:
            if sent.sequence > sequence:
                break
            owed = sent.owed
            parts = owed.get(server)
            if parts is None:
                continue
            if max(parts) > routing:
                later = {since: parts[since] for since in parts if since > routing}
                sent.owed = {**owed, server: later}
            elif len(owed) > 1:
                sent.owed = {other: owed[other] for other in owed if other != server}
            else:
                self.sent.remove(sent)

    def secure(self, sequence: int) -> None:
        """Note that contributions up to this one are in every slice: none of them is sent again."""
        self.sent = [sent for sent in self.sent if sent.sequence > sequence]

    def reroute(
        self, routes: tuple[Route, ...], relinked: Collection[int] = ()
    ) -> list[tuple[SentContribution, dict[int, tuple[int, ...]]]]:
        """Follow new routes. Returns the slices to send again, per contribution (oldest first) and
        server. Everything in flight to servers in `relinked` counts as lost."""
        again = []
        for sent in self.sent:
            before = {
                slice_: (server, since)
                for server, parts in sent.owed.items()
                for since, slices in parts.items()
                for slice_ in slices
            }
            sent.owed = _owed(sorted(before), routes)
            moved: dict[int, list[int]] = {}
            for slice_, owed in sorted(before.items()):
                route = routes[slice_]
                if (route.primary, route.since) != owed or route.primary in relinked:
                    moved.setdefault(route.primary, []).append(slice_)
            if moved:
                again.append((sent, {server: tuple(ids) for server, ids in moved.items()}))
        return again


@lru_cache(maxsize=4)
def _owed_by(routes: tuple[Route, ...]) -> Owed:
    """All slices, by primary and epoch. The mapping is shared by all workers of a process."""
    return _owed(range(len(routes)), routes)


def _owed(slices: Iterable[int], routes: tuple[Route, ...]) -> Owed:
    owed: dict[int, dict[int, list[int]]] = {}
    for slice_ in slices:
        route = routes[slice_]
        owed.setdefault(route.primary, {}).setdefault(route.since, []).append(slice_)
    return {
        server: {since: tuple(ids) for since, ids in parts.items()}
        for server, parts in owed.items()
    }


class BufferTurns:
    """Decides which push buffer the next contribution is written to. Servers may read a buffer
    until its contribution is acknowledged. Meanwhile another buffer is filled."""

    __slots__ = ("_lent", "last", "next")

    BUFFERS = m.MOST_IN_FLIGHT + 1

    def __init__(self) -> None:
        self.next = 0
        self.last = 0
        """The number of the push buffer with the last contribution."""
        self._lent: deque[int] = deque(maxlen=m.MOST_IN_FLIGHT)

    def lend(self) -> int:
        """Let the servers read the buffer that was filled last. Returns the buffer's number."""
        self.last = self.next
        self._lent.append(self.last)
        return self.last

    def turn(self, unacknowledged: int) -> None:
        """Choose the next buffer to fill. The first two buffers alternate. The third is used only
        if servers may still read the buffer that comes next. So only a worker that runs ahead of
        its acknowledgements needs memory for the third buffer."""
        other = 1 - self.last if self.last < 2 else 0
        if not unacknowledged:
            self.next = other
            return
        busy = list(self._lent)[-unacknowledged:]
        choices = (other, *range(self.BUFFERS))
        self.next = next(buffer for buffer in choices if buffer not in busy)


class Pushes:
    __slots__ = (
        "_early",
        "_outbox",
        "held",
        "outstanding",
        "relinking",
        "sequence",
        "weights",
        "withheld",
    )

    def __init__(self, outbox: WorkerOutbox) -> None:
        self._outbox = outbox
        self.sequence = 0
        """The sequence number of the last contribution."""
        self.outstanding = Outstanding()
        self.held: Computed | None = None
        """A computed contribution that may not be sent yet."""
        self.withheld = 0
        """The number of the cut that makes the worker withhold contributions; 0 if there is
        none."""
        self.relinking: set[int] = set()
        """Servers whose link has ended, or that were replaced. Everything in flight to them is
        lost."""
        self._early: dict[int, tuple[int, int]] = {}
        """Per server, an acknowledgement in a routing epoch whose routes this worker lacks so
        far."""
        self.weights = BY_POINTS
        """The value of `--weights` (`core/kinds.py`)."""

    def full(self) -> bool:
        """Whether no further contribution may be sent now: two are unacknowledged, or a cut is
        being taken."""
        return len(self.outstanding.sent) >= m.MOST_IN_FLIGHT or self.withheld > 0

    @property
    def acknowledged(self) -> int:
        """The last contribution that every server has acknowledged."""
        return self.outstanding.first(self.sequence + 1) - 1

    def send(
        self, computed: Computed, landing: Assembly, pull: int = 0, pulled: int = NOTHING
    ) -> None:
        """Send this contribution under the last sequence number. It was computed with the version
        that the worker has. `pull`: request the parameters with this ticket. `pulled`: report that
        the answer to this ticket was copied."""
        outbox, sequence, round_ = self._outbox, self.sequence, landing.version + 1
        sent = self.outstanding.send(sequence, round_, computed, landing.routes)
        for server, slices in landing.slices.items():
            # A server in `relinking` gets the slices later, from `reroute`, after older slices that
            # must be sent again.
            if server not in self.relinking:
                self._push(server, slices, sent, pull, pulled)
        trailer = m.Trailer(
            term=outbox.seat.term,
            view=outbox.view,
            routing=outbox.routing,
            worker=outbox.worker,
            incarnation=outbox.incarnation,
            sequence=sequence,
            round=round_,
            report=computed.report,
        )
        outbox.tell_lead(trailer)

    def _push(
        self,
        server: int,
        slices: tuple[int, ...],
        sent: SentContribution,
        pull: int = 0,
        pulled: int = NOTHING,
    ) -> None:
        outbox, computed = self._outbox, sent.computed
        outbox.out.append(
            PushSlices(
                server,
                slices,
                sent.sequence,
                sent.round,
                outbox.view,
                outbox.routing,
                computed.buffer,
                weight_in_round(self.weights, computed.report.weight),
                computed.rates,
                pull,
                pulled,
            )
        )

    def acknowledge(self, server: int, sequence: int, routing: int) -> bool:
        """Note an acknowledgement. Returns False if the routes of its epoch have not arrived yet:
        the acknowledgement is then kept until they arrive."""
        if routing > self._outbox.routing:
            early = self._early.get(server, (0, 0))
            self._early[server] = max(early, (sequence, routing))
            return False
        self.outstanding.acknowledge(server, sequence, routing)
        return True

    def reroute(self, routes: tuple[m.Route, ...], secured: int) -> None:
        """Send the unacknowledged slices of contributions after `secured` to the servers that have
        become their primaries. The worker has links to all of these servers."""
        self.outstanding.secure(secured)
        relinked, self.relinking = self.relinking, set()
        for sent, moved in self.outstanding.reroute(routes, relinked):
            for server, slices in moved.items():
                self._push(server, slices, sent)

    def take_early(self) -> list[tuple[int, int, int]]:
        """Remove and return the acknowledgements that came before their routes: server, sequence,
        epoch."""
        early, self._early = self._early, {}
        return [(server, sequence, routing) for server, (sequence, routing) in early.items()]

    def check(self) -> None:
        unacknowledged = len(self.outstanding.sent)
        if unacknowledged > m.MOST_IN_FLIGHT:
            raise InvariantBroken(f"{unacknowledged} contributions unacknowledged")
