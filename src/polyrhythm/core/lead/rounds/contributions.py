"""The contributions that the lead knows of, from the first report about them to the fold.

*A contribution is complete when every primary has reported it and its trailer has arrived, in any
order. It belongs to the latest round in which a server added it. Contributions of a removed member
count until every server knows of the removal.*

*A server's report covers the slices whose primary it was in the routing epoch of the report. It is
valid until the server becomes the primary of more slices.* A promoted server may lack contributions
that the former primary had reported and that are not folded yet. Such contributions are "owed":
their workers send them again, and the lead orders no fold until the new primary has reported them.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import (
    LEAST_WEIGHT,
    MOST_COUNT,
    MOST_IN_FLIGHT,
    MOST_NUMBER,
    Arrived,
    ContributionReport,
    MemberSpec,
    Row,
    Trailer,
)

_MOST_INCOMPLETE = 1000
"""How many incomplete contributions one member may have. A correct worker has at most two
contributions that no server has acknowledged. But a server on a busy host acknowledges them to the
worker long before the lead reads the server's report, so the lead may know of many more."""

_Key = tuple[int, int, int]
"""Worker, incarnation and sequence."""
PrimarySince = Mapping[int, int]
"""Per primary, the epoch in which its set of slices last grew."""


class Complete(msgspec.Struct, frozen=True, gc=False):
    trailer: Trailer
    round: int


@dataclass(slots=True)
class _Sender:
    """The contributions of one incarnation of a worker."""

    incomplete: int = 0
    """The number of contributions of this incarnation that are incomplete."""
    done: int = 0
    """The highest complete sequence. Contributions become complete in the order of their sequences,
    so this number is enough."""


class _Partial(msgspec.Struct, gc=False):
    """A contribution that is not complete, with its trailer and the reports that have arrived."""

    reports: dict[int, int] = {}
    """Per server, the routing epoch of its last report."""
    trailer: Trailer | None = None
    round: int = 0
    first: int = MOST_COUNT
    """The earliest round in which a server has added the contribution to its aggregate."""

    def lacks(self, primary_since: PrimarySince) -> set[int]:
        """The primaries that have not reported this contribution for all of their slices."""
        reports = self.reports
        return {
            server for server, since in primary_since.items() if reports.get(server, -1) < since
        }


class Contributions(msgspec.Struct):
    _partial: dict[_Key, _Partial] = {}
    _senders: dict[tuple[int, int], _Sender] = {}
    _keeps: bool = False
    _complete: dict[_Key, _Partial] = {}
    """Contributions that are complete but not folded yet. Always empty unless `keep_until_folded`
    was called."""
    _rows: dict[int, tuple[int, dict[tuple[int, int], int]]] = {}
    """Per server: the epoch in which it became the primary of more slices, and for each member
    the last sequence that the server had at that time."""
    owed: dict[_Key, set[int]] = {}
    """Contributions that were complete until slices got new primaries, each with the primaries that
    lack the contribution."""
    _named_before: int = 0
    """Kind statistics: contributions that become complete now belong to this round or a later one.
    No order for an earlier fold named them."""
    _torn: int = -1
    _whole_from: int = 0
    """Folds before this round may contain a contribution in some slices only."""

    def keep_until_folded(self) -> None:
        """Remember complete contributions until they are folded, because a server that is promoted
        may lack them."""
        self._keeps = True

    def owing(self) -> tuple[set[int], set[int]]:
        """The workers that must send contributions again, and the servers that lack these
        contributions."""
        workers = {worker for worker, _, _ in self.owed}
        return workers, {server for servers in self.owed.values() for server in servers}

    @property
    def any(self) -> bool:
        """Whether any contribution is incomplete."""
        return bool(self._partial)

    def name(self, members: Iterable[MemberSpec], round_: int) -> tuple[Row, ...]:
        """Kind statistics: the rows that the fold of this round must add up, one per member: its
        last complete contribution. The order to the servers contains them."""
        self._named_before = round_ + 1
        return tuple(
            Row(each.worker, each.incarnation, self.done(each.worker, each.incarnation))
            for each in members
        )

    def done(self, worker: int, incarnation: int) -> int:
        """The highest sequence of this member that is complete; 0 if there is none."""
        sender = self._senders.get((worker, incarnation))
        return 0 if sender is None else sender.done

    def secured(self, worker: int, incarnation: int, folded: int) -> int:
        """The last contribution of this member that every slice and every copy certainly contains:
        it is complete and, with rounds, in a fold up to the round `folded`."""
        open_ = (
            key[2]
            for key, complete in self._complete.items()
            if key[:2] == (worker, incarnation) and complete.round > folded
        )
        return min(open_, default=self.done(worker, incarnation) + 1) - 1

    def incomplete(self, worker: int, incarnation: int) -> bool:
        """Whether a contribution of this member is incomplete."""
        sender = self._senders.get((worker, incarnation))
        return sender is not None and sender.incomplete > 0

    def fault(self, name: str, trailer: Trailer) -> Reason | None:
        """Why the member must be removed because of this trailer; None if the trailer is valid."""
        sender = self._senders.get((trailer.worker, trailer.incarnation))
        if sender is not None and sender.incomplete >= _MOST_INCOMPLETE:
            counts = {"contributions": _MOST_INCOMPLETE, "most": MOST_IN_FLIGHT}
            return Reason("too-many-contributions", {"name": name, **counts})
        weight = trailer.report.weight
        if not LEAST_WEIGHT <= weight < math.inf:
            weights = {"weight": weight, "least": LEAST_WEIGHT}
            return Reason("weight", {"name": name, **weights})
        return None

    def on_trailer(self, message: Trailer, primary_since: PrimarySince) -> Complete | None:
        """Handle the trailer of a contribution. Returns the contribution if it is complete now."""
        key = message.worker, message.incarnation, message.sequence
        partial = self._partial.get(key)
        if partial is None:
            sender = self._sender(key)
            if message.sequence <= sender.done:
                return None  # the contribution has counted already; the worker has sent it again
            partial = self._begin(key, sender)
        partial.trailer = message
        return self._complete_if(key, partial, primary_since) if partial.reports else None

    def on_arrived(self, message: Arrived, primary_since: PrimarySince) -> Complete | None:
        """Handle a server's report of a contribution. Returns the contribution if it is complete
        now."""
        key = message.worker, message.incarnation, message.sequence
        if self._complete and (complete := self._complete.get(key)) is not None:
            complete.reports[message.server] = message.routing
            self._settle(key, primary_since)
            return None
        partial = self._partial.get(key)
        if partial is None:
            sender = self._sender(key)
            if key[2] <= sender.done:
                return None  # the contribution was complete before this server became a primary
            partial = self._begin(key, sender)
        round_ = message.round
        partial.reports[message.server] = message.routing
        if round_ > partial.round:
            partial.round = round_
        if round_ < partial.first:
            partial.first = round_
        if partial.trailer is None:
            return None
        return self._complete_if(key, partial, primary_since)

    def _begin(self, key: _Key, sender: _Sender) -> _Partial:
        """Begin to track a contribution, at its first report or trailer."""
        sender.incomplete += 1
        partial = self._partial[key] = _Partial()
        if self._rows:
            for server, (routing, last) in self._rows.items():
                if last.get(key[:2], 0) >= key[2]:
                    partial.reports[server] = routing
        return partial

    def _sender(self, key: _Key) -> _Sender:
        member = key[:2]
        sender = self._senders.get(member)
        if sender is None:
            sender = self._senders[member] = _Sender()
        return sender

    def _complete_if(
        self, key: _Key, partial: _Partial, primary_since: PrimarySince
    ) -> Complete | None:
        trailer, reports = partial.trailer, partial.reports
        if trailer is None or len(reports) < len(primary_since):
            return None
        for server, since in primary_since.items():
            if reports.get(server, -1) < since:
                return None
        del self._partial[key]
        if self._named_before:
            partial.round = max(partial.round, self._named_before)
        elif partial.first < partial.round > self._whole_from:
            self._whole_from = partial.round
        sender = self._senders[key[:2]]
        sender.incomplete -= 1
        if sender.done < key[2]:
            sender.done = key[2]
        if self._keeps:
            self._complete[key] = partial
        return Complete(trailer, partial.round)

    def late(
        self, primary_since: PrimarySince, among: Container[int] | None = None
    ) -> tuple[set[int], set[int]]:
        """The workers whose trailer has arrived while a server's report is missing, and the servers
        that have not reported. `among`: consider only these workers."""
        workers, servers = set[int](), set[int]()
        for (worker, _, _), partial in self._partial.items():
            if partial.trailer is not None and (among is None or worker in among):
                workers.add(worker)
                servers |= partial.lacks(primary_since)
        return workers, servers

    def forget(self, worker: int, incarnation: int) -> None:
        """Forget the incomplete contributions of a removed member, once every server knows of the
        removal."""
        for key in [key for key in self._partial if key[:2] == (worker, incarnation)]:
            del self._partial[key]
        self._senders.pop((worker, incarnation), None)
        for key in [key for key in self._complete if key[:2] == (worker, incarnation)]:
            del self._complete[key]
            self.owed.pop(key, None)

    def excuse(self, worker: int, incarnation: int) -> None:
        """Stop waiting for contributions that a removed member was to send again."""
        for key in [key for key in self.owed if key[:2] == (worker, incarnation)]:
            del self.owed[key]
            if self._complete[key].round < self._named_before:
                self._torn = self._named_before - 1

    def torn(self, round_: int) -> bool:
        """Kind statistics: whether the version of this round may contain a contribution in some
        slices only. That takes three events: the fold names the contribution, a server that has it
        dies, and the worker dies before it sends the contribution again."""
        return self._torn == round_

    def on_folded(self, round_: int) -> None:
        """Forget the contributions in this round. Every primary and every replica has folded it."""
        kept = {key: each for key, each in self._complete.items() if each.round > round_}
        self._complete = kept
        if self.owed:
            self.owed = {key: servers for key, servers in self.owed.items() if key in kept}

    def reroute(
        self, primary_since: PrimarySince, rows: Mapping[int, tuple[Row, ...]], routing: int
    ) -> list[Complete]:
        """Apply the routes of this epoch, which every server follows now. `rows`: per server, the
        contributions that it has. Returns the contributions that this completes."""
        for server in primary_since:
            last = {(row.worker, row.incarnation): row.sequence for row in rows[server]}
            self._rows[server] = (routing, last)
            for key, partial in (*self._partial.items(), *self._complete.items()):
                if last.get(key[:2], 0) >= key[2]:
                    partial.reports[server] = routing
        self.owed = {}
        for key, complete in self._complete.items():
            if lacks := complete.lacks(primary_since):
                self.owed[key] = lacks
        done = []
        for key, partial in list(self._partial.items()):
            if partial.trailer is not None:
                found = self._complete_if(key, partial, primary_since)
                done += [found] if found is not None else []
        return done

    def split(self, round_: int) -> bool:
        """Whether the fold of this round contains a contribution that only some servers have
        folded, or one that is not complete yet. Call this when every server has reported the
        contributions in that fold."""
        if self._named_before:
            # a fold of kind statistics names its contributions, so all servers fold the same ones
            return False
        if self._whole_from > round_:
            return True
        return any(partial.first <= round_ for partial in self._partial.values())

    def owing_members(self) -> set[tuple[int, int]]:
        return {key[:2] for key in self.owed}

    def _settle(self, key: _Key, primary_since: PrimarySince) -> None:
        if key in self.owed:
            self.owed[key] = self._complete[key].lacks(primary_since)
            if not self.owed[key]:
                del self.owed[key]

    def check(self, accepted: Callable[[int, int], bool]) -> None:
        for worker, incarnation, _ in self._partial:
            if not accepted(worker, incarnation):
                raise InvariantBroken(
                    f"w{worker} was removed, but its contribution is still expected"
                )


class InFlight(msgspec.Struct):
    """Finds the workers that have as many contributions in flight as they may have. A contribution
    is in flight from its trailer until it is complete."""

    _most: int
    _sequences: dict[tuple[int, int], set[int]] = {}
    """Per member, the sequences in flight."""
    _full_ns: dict[tuple[int, int], int] = {}
    """Per member that must not send another contribution now: since when."""

    def sent(self, worker: int, incarnation: int, sequence: int, now_ns: int) -> None:
        key = worker, incarnation
        sequences = self._sequences.setdefault(key, set())
        sequences.add(sequence)
        if len(sequences) >= self._most:
            self._full_ns.setdefault(key, now_ns)

    def on_completed(self, worker: int, incarnation: int, sequence: int) -> None:
        key = worker, incarnation
        sequences = self._sequences.get(key)
        if sequences is not None:
            sequences.discard(sequence)
            if len(sequences) < self._most:
                self._full_ns.pop(key, None)

    def forget(self, worker: int, incarnation: int) -> None:
        self._sequences.pop((worker, incarnation), None)
        self._full_ns.pop((worker, incarnation), None)

    def full(self) -> tuple[set[int], int] | None:
        """The workers that must not send another contribution now, and since when the first of them
        waits; None if there are none."""
        if not self._full_ns:
            return None
        return {worker for worker, _ in self._full_ns}, min(self._full_ns.values())


def clamp(report: ContributionReport) -> ContributionReport:
    """Replace an objective or a probe value that is too large to calculate with by infinity.

    A diverging run in double precision may report 1e200, and Python raises an error when it squares
    such a number. The decoder accepts these values, because the lead needs them to judge whether
    the job learns (`core/lead/progress/learning.py`).
    """
    if not (_too_large(report.objective) or _too_large(report.probe)):
        return report
    return msgspec.structs.replace(
        report, objective=_bounded(report.objective), probe=_bounded(report.probe)
    )


def _too_large(value: float | None) -> bool:
    # the condition is written with `not`, so that it is also true for NaN
    return value is not None and not abs(value) <= MOST_NUMBER


def _bounded(value: float | None) -> float | None:
    if value is None or math.isnan(value) or not _too_large(value):
        return value
    return math.copysign(math.inf, value)
