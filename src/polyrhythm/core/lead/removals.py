"""Members that are gone, until everybody knows.

*What a member had sent before it went still counts while a server may not know that it is gone; its
chunks go to others after that. One who was evicted for silence may wake: a job that only has such
is not deserted, nor one whose workers are replaced, for a while. While others train, the links of a
member that does not wake are kept no longer than those of one whose machine has vanished.*
"""

import math

from polyrhythm.core.lead.plan import Holder

_COMES_BACK_NS = 5 * 10**9
"""For one who was evicted, whose link has ended, to knock again: it hangs up before it does."""


class Removals:
    def __init__(self, grace_s: float, asleep_s: float = math.inf) -> None:
        """`asleep_s`: for so long the links of an evicted member are kept."""
        self._grace_ns = round(grace_s * 1e9)
        self._asleep_s = asleep_s
        self._leaving: set[Holder] = set()
        self._telling: set[Holder] = set()
        self._asleep: dict[int, int] = {}
        """Who was evicted, and which incarnation that was."""
        self._links_until_ns: dict[int, int] = {}
        """Per worker that was evicted: how long its links are kept."""
        self._back_until_ns = 0
        self._deserted_ns: int | None = None
        """Until when somebody is waited for, while nobody is there."""

    @property
    def wake_ns(self) -> int | None:
        times_ns = list(self._links_until_ns.values())
        if self._deserted_ns is not None:
            times_ns.append(self._deserted_ns)
        return min(times_ns, default=None)

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

    def falls_asleep(self, worker: int, incarnation: int, now_ns: int) -> None:
        self._asleep[worker] = incarnation
        if self._asleep_s < math.inf:
            self._links_until_ns[worker] = now_ns + round(self._asleep_s * 1e9)

    def unwoken(self, now_ns: int, *, alone: bool) -> list[Holder]:
        """Evicted members whose links were kept long enough. `alone`: there is no member left, so they
        are waited for as long as before."""
        due = [worker for worker, ns in self._links_until_ns.items() if ns <= now_ns]
        for worker in due:
            self._links_until_ns[worker] = now_ns + round(self._asleep_s * 1e9)
        return [] if alone else [(worker, self._asleep[worker]) for worker in due]

    def hung_up(self, worker: int, incarnation: int, now_ns: int) -> bool:
        """Whether that was one who was evicted: it has woken to join again, or it is dead. The end
        of a link that it had before says nothing."""
        asleep = worker in self._asleep and incarnation in (0, self._asleep[worker])
        if asleep:
            del self._asleep[worker]
            self._links_until_ns.pop(worker, None)
            self._back_until_ns = now_ns + _COMES_BACK_NS
        return asleep

    def came(self, worker: int) -> None:
        self._asleep.pop(worker, None)
        self._links_until_ns.pop(worker, None)
        self._deserted_ns = None

    def deserted(self, now_ns: int) -> bool:
        """Nobody is left: is there nobody to wait for either?"""
        if self._asleep:
            return False
        if self._deserted_ns is None:
            self._deserted_ns = max(now_ns + self._grace_ns, self._back_until_ns)
        return now_ns >= self._deserted_ns

    def exclude_time(self, paused_ns: int) -> None:
        """So long nobody could be heard to come."""
        self._back_until_ns += paused_ns
        for worker in self._links_until_ns:
            self._links_until_ns[worker] += paused_ns
        if self._deserted_ns is not None:
            self._deserted_ns += paused_ns

    def overdue(self, now_ns: int) -> bool:
        return self._deserted_ns is not None and now_ns >= self._deserted_ns
