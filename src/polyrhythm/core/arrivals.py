"""Contributions on their way, as the lead sees them.

*A contribution is complete when every server that holds slices has reported it and its trailer has
come, in whatever order. It belongs to the latest round that a server added it to. What a member
that is gone had sent still counts until every server knows that it is gone.*
"""

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Arrived, Trailer


@dataclass(frozen=True, slots=True)
class Complete:
    trailer: Trailer
    round: int


@dataclass(slots=True)
class _Coming:
    servers: set[int] = field(default_factory=set)
    trailer: Trailer | None = None
    round: int = 0


class Arrivals:
    def __init__(self) -> None:
        self._coming: dict[tuple[int, int, int], _Coming] = {}
        self._parts: Counter[tuple[int, int]] = Counter()
        """Per worker and incarnation, how many of theirs have come in part."""

    @property
    def any(self) -> bool:
        """Some contribution has come in part."""
        return bool(self._coming)

    def awaits(self, worker: int, incarnation: int) -> bool:
        """Something that this one sent has come in part."""
        return bool(self._parts.get((worker, incarnation)))

    def trailer(self, message: Trailer, holders: frozenset[int]) -> Complete | None:
        coming = self._of(message)
        coming.trailer = message
        return self._complete(message, coming, holders)

    def arrived(self, message: Arrived, holders: frozenset[int]) -> Complete | None:
        coming = self._of(message)
        coming.servers.add(message.server)
        coming.round = max(coming.round, message.round)
        return self._complete(message, coming, holders)

    def _of(self, message: Trailer | Arrived) -> _Coming:
        key = _key(message)
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = _Coming()
            self._parts[key[:2]] += 1
        return coming

    def _complete(
        self, message: Trailer | Arrived, coming: _Coming, holders: frozenset[int]
    ) -> Complete | None:
        if coming.trailer is None or coming.servers != holders:
            return None
        self._drop(_key(message))
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

    def _drop(self, key: tuple[int, int, int]) -> None:
        del self._coming[key]
        self._parts[key[:2]] -= 1
        if not self._parts[key[:2]]:
            del self._parts[key[:2]]

    def check(self, known: Callable[[int, int], bool]) -> None:
        for worker, incarnation, _ in self._coming:
            if not known(worker, incarnation):
                raise InvariantBroken(f"w{worker} is gone, but its contribution is still awaited")


def _key(message: Trailer | Arrived) -> tuple[int, int, int]:
    return message.worker, message.incarnation, message.sequence
