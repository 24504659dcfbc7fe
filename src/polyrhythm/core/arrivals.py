"""Contributions on their way, as the lead sees them.

*A contribution is complete when every server that holds slices has reported it and its trailer has
come, in whatever order. It belongs to the latest round that a server added it to. What a member
that is gone had sent still counts until every server knows that it is gone.*

*A server that is promoted may lack what was reported by the one before it and is not folded: it is
owed until it is reported again, and no round is folded meanwhile.*
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

import msgspec

from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Arrived, Row, Trailer

_Key = tuple[int, int, int]


class Complete(msgspec.Struct, frozen=True, gc=False):
    trailer: Trailer
    round: int


@dataclass(slots=True)
class _Coming:
    servers: set[int] = field(default_factory=set)
    trailer: Trailer | None = None
    round: int = 0


class Arrivals:
    """`keeps`: what is complete is remembered until it is folded, because it may be owed again."""

    def __init__(self, *, keeps: bool = False) -> None:
        self._coming: dict[_Key, _Coming] = {}
        self._parts: dict[tuple[int, int], int] = {}
        """Per worker and incarnation, how many of theirs have come in part."""
        self._keeps = keeps
        self._counted: dict[_Key, int] = {}
        """Complete, by the round that it is in."""
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

    def trailer(self, message: Trailer, holders: frozenset[int]) -> Complete | None:
        key = _key(message)
        coming = self._of(key)
        coming.trailer = message
        return self._complete(key, coming, holders)

    def arrived(self, message: Arrived, holders: frozenset[int]) -> Complete | None:
        key = _key(message)
        if key in self._counted:
            self._settle(key, message.server)
            return None
        coming = self._of(key)
        coming.servers.add(message.server)
        coming.round = max(coming.round, message.round)
        return self._complete(key, coming, holders)

    def _of(self, key: tuple[int, int, int]) -> _Coming:
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = _Coming()
            self._parts[key[:2]] = self._parts.get(key[:2], 0) + 1
        return coming

    def _complete(
        self, key: tuple[int, int, int], coming: _Coming, holders: frozenset[int]
    ) -> Complete | None:
        if coming.trailer is None or coming.servers != holders:
            return None
        self._drop(key)
        if self._keeps:
            self._counted[key] = coming.round
        return Complete(coming.trailer, coming.round)

    def late(
        self, holders: frozenset[int], among: Container[int] | None = None
    ) -> tuple[set[int], set[int]]:
        """Workers whose trailer is here, `among` these if so asked, and the servers that have not
        reported their slices."""
        workers, servers = set[int](), set[int]()
        for (worker, _, _), coming in self._coming.items():
            if coming.trailer is not None and (among is None or worker in among):
                workers.add(worker)
                servers |= holders - coming.servers
        return workers, servers

    def forget(self, worker: int, incarnation: int) -> None:
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
        for key in [key for key, of in self._counted.items() if of <= round_]:
            del self._counted[key]
            self._owed.pop(key, None)

    def reroute(
        self,
        holders: frozenset[int],
        promoted: frozenset[int],
        rows: Mapping[int, tuple[Row, ...]],
    ) -> list[Complete]:
        """Other servers hold the slices now, and have of each worker what their rows say; who was
        promoted has no more than that. What is complete by now, and was not before."""
        last = {
            server: {(row.worker, row.incarnation): row.sequence for row in rows[server]}
            for server in holders
        }

        def have(key: _Key) -> set[int]:
            return {server for server in holders if last[server].get(key[:2], 0) >= key[2]}

        self._owed = {
            key: lacks for key in self._counted if (lacks := set((promoted & holders) - have(key)))
        }
        done = []
        for key, coming in list(self._coming.items()):
            coming.servers = have(key) | (coming.servers & holders) - promoted
            if coming.trailer is not None:
                complete = self._complete(key, coming, holders)
                done += [complete] if complete is not None else []
        return done

    def owing_members(self) -> set[tuple[int, int]]:
        return {key[:2] for key in self._owed}

    def _settle(self, key: _Key, server: int) -> None:
        owed = self._owed.get(key)
        if owed is not None:
            owed.discard(server)
            if not owed:
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
