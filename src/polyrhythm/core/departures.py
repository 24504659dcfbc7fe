"""Members that are gone, until everybody knows.

*What a member had sent before it went still counts while a server may not know that it is gone; its
chunks go to others after that. One who was evicted for silence may wake: a job that only has such
is not deserted, nor one whose workers are replaced, for a while.*
"""

from polyrhythm.core.data.plan import Holder


class Departures:
    def __init__(self, grace_s: float) -> None:
        self._grace_ns = round(grace_s * 1e9)
        self._leaving: set[Holder] = set()
        self._telling: set[Holder] = set()
        self._asleep: set[int] = set()
        self._until_ns: int | None = None

    @property
    def any(self) -> bool:
        return bool(self._leaving or self._telling)

    def leave(self, member: Holder) -> None:
        self._leaving.add(member)

    def told(self) -> None:
        """The view without them is on its way to the servers."""
        self._telling |= self._leaving
        self._leaving = set()

    def confirmed(self) -> list[Holder]:
        """Every server knows: who was meant."""
        gone, self._telling = sorted(self._telling), set()
        return gone

    def pending(self, worker: int, incarnation: int) -> bool:
        return (worker, incarnation) in self._leaving or (worker, incarnation) in self._telling

    def falls_asleep(self, worker: int) -> None:
        self._asleep.add(worker)

    def woke_to_leave(self, worker: int) -> bool:
        """The link of one who was evicted has ended: it will not come back by itself."""
        asleep = worker in self._asleep
        self._asleep.discard(worker)
        return asleep

    def came(self, worker: int) -> None:
        self._asleep.discard(worker)
        self._until_ns = None

    def deserted(self, now_ns: int) -> bool:
        """Nobody is left: is there nobody to wait for either?"""
        if self._asleep:
            return False
        if self._until_ns is None:
            self._until_ns = now_ns + self._grace_ns
        return now_ns >= self._until_ns

    def wake_at(self) -> int | None:
        return self._until_ns

    def overdue(self, now_ns: int) -> bool:
        return self._until_ns is not None and now_ns >= self._until_ns
