"""Members that are gone, until everybody knows.

*What a member had sent before it went still counts while a server may not know that it is gone; its
chunks go to others after that. One who was evicted for silence may wake: a job that only has such
is not deserted, nor one whose workers are replaced, for a while.*
"""

from polyrhythm.core.lead.plan import Holder

_COMES_BACK_NS = 5 * 10**9
"""For one who was evicted, whose link has ended, to knock again: it hangs up before it does."""


class Removals:
    def __init__(self, grace_s: float) -> None:
        self._grace_ns = round(grace_s * 1e9)
        self._leaving: set[Holder] = set()
        self._telling: set[Holder] = set()
        self._asleep: dict[int, int] = {}
        """Who was evicted, and which incarnation that was."""
        self._back_until_ns = 0
        self.wake_ns: int | None = None
        """Until when somebody is waited for, while nobody is there."""

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

    def falls_asleep(self, worker: int, incarnation: int) -> None:
        self._asleep[worker] = incarnation

    def hung_up(self, worker: int, incarnation: int, now_ns: int) -> bool:
        """Whether that was one who was evicted: it has woken to join again, or it is dead. The end
        of a link that it had before says nothing."""
        asleep = worker in self._asleep and incarnation in (0, self._asleep[worker])
        if asleep:
            del self._asleep[worker]
            self._back_until_ns = now_ns + _COMES_BACK_NS
        return asleep

    def came(self, worker: int) -> None:
        self._asleep.pop(worker, None)
        self.wake_ns = None

    def deserted(self, now_ns: int) -> bool:
        """Nobody is left: is there nobody to wait for either?"""
        if self._asleep:
            return False
        if self.wake_ns is None:
            self.wake_ns = max(now_ns + self._grace_ns, self._back_until_ns)
        return now_ns >= self.wake_ns

    def exclude_time(self, paused_ns: int) -> None:
        """So long nobody could be heard to come."""
        self._back_until_ns += paused_ns
        if self.wake_ns is not None:
            self.wake_ns += paused_ns

    def overdue(self, now_ns: int) -> bool:
        return self.wake_ns is not None and now_ns >= self.wake_ns
