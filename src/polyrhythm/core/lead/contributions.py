"""Contributions on their way, as the lead sees them.

*A contribution is complete when every server that holds slices has reported it and its trailer has
come, in whatever order. It belongs to the latest round that a server added it to. What a member
that is gone had sent still counts until every server knows that it is gone.*

*A report is of the slices that its server was the primary of in the epoch in which it was given: it
stands until the server is given more. A server that is promoted may lack what was reported by the one
before it and is not folded: it is owed until it is reported again, and no round is folded meanwhile.*
"""

from collections.abc import Callable, Container, Mapping

import msgspec

from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Arrived, Row, Trailer

_Key = tuple[int, int, int]
PrimarySince = Mapping[int, int]
"""Per server that holds slices, the epoch since when it is the primary of all of them."""


class Complete(msgspec.Struct, frozen=True, gc=False):
    trailer: Trailer
    round: int


class _Sender(msgspec.Struct, gc=False):
    """One incarnation of a worker."""

    parts: int = 0
    """How many of its contributions have come in part."""
    done: int = 0
    """The last that was complete: they are so in order."""


class _Coming(msgspec.Struct, gc=False):
    sender: _Sender
    reports: dict[int, int] = {}
    """Per server, the routing epoch in which it reported last."""
    trailer: Trailer | None = None
    round: int = 0

    def lacks(self, primary_since: PrimarySince) -> set[int]:
        """Servers whose report, if there is one, is not of all that they hold."""
        reports = self.reports
        return {
            server for server, since in primary_since.items() if reports.get(server, -1) < since
        }


class Contributions:
    """`keeps`: what is complete is remembered until it is folded, because it may be owed again."""

    def __init__(self, *, keeps: bool = False) -> None:
        self._coming: dict[_Key, _Coming] = {}
        self._senders: dict[tuple[int, int], _Sender] = {}
        self._keeps = keeps
        self._counted: dict[_Key, _Coming] = {}
        """Complete, and not folded."""
        self._rows: dict[int, tuple[int, dict[tuple[int, int], int]]] = {}
        """Per server, the epoch in which it was given more, and what it had then of each worker."""
        self.owed: dict[_Key, set[int]] = {}
        """Complete before, and not on these servers now."""

    def owing(self) -> tuple[set[int], set[int]]:
        """Workers that must send again what they sent before, and the servers that lack it."""
        workers = {worker for worker, _, _ in self.owed}
        return workers, {server for servers in self.owed.values() for server in servers}

    @property
    def any(self) -> bool:
        """Some contribution has come in part."""
        return bool(self._coming)

    def awaits(self, worker: int, incarnation: int) -> bool:
        """Something that this one sent has come in part."""
        sender = self._senders.get((worker, incarnation))
        return sender is not None and sender.parts > 0

    def coming(self, worker: int, incarnation: int) -> int:
        """How many contributions of this one have come in part."""
        sender = self._senders.get((worker, incarnation))
        return 0 if sender is None else sender.parts

    def trailer(self, message: Trailer, primary_since: PrimarySince) -> Complete | None:
        key = message.worker, message.incarnation, message.sequence
        coming = self._coming.get(key)
        if coming is None:
            if key[2] <= self._sender(key).done:
                return None  # it was counted: one that is sent again counts once
            coming = self._begin(key)
        coming.trailer = message
        return self._complete(key, coming, primary_since)

    def arrived(self, message: Arrived, primary_since: PrimarySince) -> Complete | None:
        key = message.worker, message.incarnation, message.sequence
        counted = self._counted.get(key)
        if counted is not None:
            counted.reports[message.server] = message.routing
            self._settle(key, primary_since)
            return None
        coming = self._coming.get(key)
        if coming is None:
            if key[2] <= self._sender(key).done:
                return None  # of what was complete before its server had the slices
            coming = self._begin(key)
        coming.reports[message.server] = message.routing
        if message.round > coming.round:
            coming.round = message.round
        return self._complete(key, coming, primary_since)

    def _begin(self, key: _Key) -> _Coming:
        """The first that is heard of it."""
        sender = self._sender(key)
        sender.parts += 1
        coming = self._coming[key] = _Coming(sender)
        for server, (routing, last) in self._rows.items():
            if last.get(key[:2], 0) >= key[2]:
                coming.reports[server] = routing
        return coming

    def _sender(self, key: _Key) -> _Sender:
        whose = key[:2]
        sender = self._senders.get(whose)
        if sender is None:
            sender = self._senders[whose] = _Sender()
        return sender

    def _complete(self, key: _Key, coming: _Coming, primary_since: PrimarySince) -> Complete | None:
        trailer = coming.trailer
        if (
            trailer is None
            or len(coming.reports) < len(primary_since)
            or coming.lacks(primary_since)
        ):
            return None
        del self._coming[key]
        sender = coming.sender
        sender.parts -= 1
        if sender.done < key[2]:
            sender.done = key[2]
        if self._keeps:
            self._counted[key] = coming
        return Complete(trailer, coming.round)

    def late(
        self, primary_since: PrimarySince, among: Container[int] | None = None
    ) -> tuple[set[int], set[int]]:
        """Workers whose trailer is here, `among` these if so asked, and the servers that have not
        reported their slices."""
        workers, servers = set[int](), set[int]()
        for (worker, _, _), coming in self._coming.items():
            if coming.trailer is not None and (among is None or worker in among):
                workers.add(worker)
                servers |= coming.lacks(primary_since)
        return workers, servers

    def forget(self, worker: int, incarnation: int) -> None:
        for key in [key for key in self._coming if key[:2] == (worker, incarnation)]:
            del self._coming[key]
        self._senders.pop((worker, incarnation), None)
        for key in [key for key in self._counted if key[:2] == (worker, incarnation)]:
            del self._counted[key]
            self.owed.pop(key, None)

    def excuse(self, worker: int, incarnation: int) -> None:
        """It is gone, and will not send again what it owes."""
        for key in [key for key in self.owed if key[:2] == (worker, incarnation)]:
            del self.owed[key]

    def folded(self, round_: int) -> None:
        """Every server has folded the round, and every replica has a copy of it."""
        for key in [key for key, of in self._counted.items() if of.round <= round_]:
            del self._counted[key]
            self.owed.pop(key, None)

    def reroute(
        self, primary_since: PrimarySince, rows: Mapping[int, tuple[Row, ...]], routing: int
    ) -> list[Complete]:
        """Every server follows this epoch, and has of each worker what its rows say. What is
        complete by now, and was not before."""
        for server in primary_since:
            last = {(row.worker, row.incarnation): row.sequence for row in rows[server]}
            self._rows[server] = (routing, last)
            for key, coming in (*self._coming.items(), *self._counted.items()):
                if last.get(key[:2], 0) >= key[2]:
                    coming.reports[server] = routing
        self.owed = {}
        for key, counted in self._counted.items():
            if lacks := counted.lacks(primary_since):
                self.owed[key] = lacks
        done = []
        for key, coming in list(self._coming.items()):
            if coming.trailer is not None:
                complete = self._complete(key, coming, primary_since)
                done += [complete] if complete is not None else []
        return done

    def owing_members(self) -> set[tuple[int, int]]:
        return {key[:2] for key in self.owed}

    def _settle(self, key: _Key, primary_since: PrimarySince) -> None:
        if key in self.owed:
            self.owed[key] = self._counted[key].lacks(primary_since)
            if not self.owed[key]:
                del self.owed[key]

    def check(self, known: Callable[[int, int], bool]) -> None:
        for worker, incarnation, _ in self._coming:
            if not known(worker, incarnation):
                raise InvariantBroken(f"w{worker} is gone, but its contribution is still awaited")
