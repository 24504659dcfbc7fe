"""Contributions on their way, as the lead sees them.

*A contribution is complete when every server that holds slices has reported it and its trailer has
come, in whatever order. It belongs to the latest round that a server added it to. What a member
that is gone had sent still counts until every server knows that it is gone.*

*A report is of the slices that its server was the primary of in the epoch in which it was given: it
stands until the server is given more. A server that is promoted may lack what was reported by the one
before it and is not folded: it is owed until it is reported again, and no round is folded meanwhile.*
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

import msgspec

from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Arrived, Row, Trailer

_Key = tuple[int, int, int]
Reigns = Mapping[int, int]
"""Per server that holds slices, the epoch since when it is the primary of all of them."""


class Complete(msgspec.Struct, frozen=True, gc=False):
    trailer: Trailer
    round: int


@dataclass(slots=True)
class _Coming:
    reports: dict[int, int] = field(default_factory=dict)
    """Per server, the routing epoch in which it reported last."""
    trailer: Trailer | None = None
    round: int = 0

    def servers(self, reigns: Reigns) -> set[int]:
        """Whose report is of all that they hold."""
        return {server for server, since in reigns.items() if self.reports.get(server, -1) >= since}

    def everywhere(self, reigns: Reigns) -> bool:
        reports = self.reports
        return len(reports) >= len(reigns) and len(self.servers(reigns)) == len(reigns)


class Arrivals:
    """`keeps`: what is complete is remembered until it is folded, because it may be owed again."""

    def __init__(self, *, keeps: bool = False) -> None:
        self._coming: dict[_Key, _Coming] = {}
        self._parts: dict[tuple[int, int], int] = {}
        """Per worker and incarnation, how many of theirs have come in part."""
        self._keeps = keeps
        self._counted: dict[_Key, _Coming] = {}
        """Complete, and not folded."""
        self._done: dict[tuple[int, int], int] = {}
        """Per worker and incarnation, the last that was complete: they are so in order."""
        self._rows: dict[int, tuple[int, dict[tuple[int, int], int]]] = {}
        """Per server, the epoch in which it was given more, and what it had then of each worker."""
        self._owed: dict[_Key, set[int]] = {}
        """Complete before, and not on these servers now."""

    @property
    def owed(self) -> bool:
        return bool(self._owed)

    def owing(self) -> tuple[set[int], set[int]]:
        """Workers that must send again what they sent before, and the servers that lack it."""
        workers = {worker for worker, _, _ in self._owed}
        return workers, {server for servers in self._owed.values() for server in servers}

    @property
    def any(self) -> bool:
        """Some contribution has come in part."""
        return bool(self._coming)

    def awaits(self, worker: int, incarnation: int) -> bool:
        """Something that this one sent has come in part."""
        return bool(self._parts.get((worker, incarnation)))

    def trailer(self, message: Trailer, reigns: Reigns) -> Complete | None:
        key = _key(message)
        coming = self._of(key)
        coming.trailer = message
        return self._complete(key, coming, reigns)

    def arrived(self, message: Arrived, reigns: Reigns) -> Complete | None:
        key = _key(message)
        counted = self._counted.get(key)
        if counted is None and key not in self._coming and key[2] <= self._done.get(key[:2], 0):
            return None  # of what was complete before its server had the slices
        coming = counted or self._of(key)
        coming.reports[message.server] = message.routing
        if counted is not None:
            self._settle(key, reigns)
            return None
        coming.round = max(coming.round, message.round)
        return self._complete(key, coming, reigns)

    def _of(self, key: _Key) -> _Coming:
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = _Coming()
            for server, (routing, last) in self._rows.items():
                if last.get(key[:2], 0) >= key[2]:
                    coming.reports[server] = routing
            self._parts[key[:2]] = self._parts.get(key[:2], 0) + 1
        return coming

    def _complete(self, key: _Key, coming: _Coming, reigns: Reigns) -> Complete | None:
        if coming.trailer is None or not coming.everywhere(reigns):
            return None
        self._drop(key)
        self._done[key[:2]] = max(key[2], self._done.get(key[:2], 0))
        if self._keeps:
            self._counted[key] = coming
        return Complete(coming.trailer, coming.round)

    def late(
        self, reigns: Reigns, among: Container[int] | None = None
    ) -> tuple[set[int], set[int]]:
        """Workers whose trailer is here, `among` these if so asked, and the servers that have not
        reported their slices."""
        workers, servers = set[int](), set[int]()
        for (worker, _, _), coming in self._coming.items():
            if coming.trailer is not None and (among is None or worker in among):
                workers.add(worker)
                servers |= reigns.keys() - coming.servers(reigns)
        return workers, servers

    def forget(self, worker: int, incarnation: int) -> None:
        self._done.pop((worker, incarnation), None)
        for key in [key for key in self._coming if key[:2] == (worker, incarnation)]:
            self._drop(key)
        for key in [key for key in self._counted if key[:2] == (worker, incarnation)]:
            del self._counted[key]
            self._owed.pop(key, None)

    def excuse(self, worker: int, incarnation: int) -> None:
        """It is gone, and will not send again what it owes."""
        for key in [key for key in self._owed if key[:2] == (worker, incarnation)]:
            del self._owed[key]

    def folded(self, round_: int) -> None:
        """Every server has folded the round, and every replica has a copy of it."""
        for key in [key for key, of in self._counted.items() if of.round <= round_]:
            del self._counted[key]
            self._owed.pop(key, None)

    def reroute(
        self, reigns: Reigns, rows: Mapping[int, tuple[Row, ...]], routing: int
    ) -> list[Complete]:
        """Every server follows this epoch, and has of each worker what its rows say. What is
        complete by now, and was not before."""
        for server in reigns:
            last = {(row.worker, row.incarnation): row.sequence for row in rows[server]}
            self._rows[server] = (routing, last)
            for key, coming in (*self._coming.items(), *self._counted.items()):
                if last.get(key[:2], 0) >= key[2]:
                    coming.reports[server] = routing
        self._owed = {}
        for key, counted in self._counted.items():
            if lacks := reigns.keys() - counted.servers(reigns):
                self._owed[key] = lacks
        done = []
        for key, coming in list(self._coming.items()):
            if coming.trailer is not None:
                complete = self._complete(key, coming, reigns)
                done += [complete] if complete is not None else []
        return done

    def owing_members(self) -> set[tuple[int, int]]:
        return {key[:2] for key in self._owed}

    def _settle(self, key: _Key, reigns: Reigns) -> None:
        if key in self._owed:
            self._owed[key] = reigns.keys() - self._counted[key].servers(reigns)
            if not self._owed[key]:
                del self._owed[key]

    def _drop(self, key: _Key) -> None:
        del self._coming[key]
        whose = key[:2]
        self._parts[whose] -= 1
        if not self._parts[whose]:
            del self._parts[whose]

    def check(self, known: Callable[[int, int], bool]) -> None:
        for worker, incarnation, _ in self._coming:
            if not known(worker, incarnation):
                raise InvariantBroken(f"w{worker} is gone, but its contribution is still awaited")


def _key(message: Trailer | Arrived) -> _Key:
    return message.worker, message.incarnation, message.sequence
