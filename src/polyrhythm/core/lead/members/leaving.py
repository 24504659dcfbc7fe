"""Keeps track of removed members until every server knows of their removal, and decides whether the
job is deserted.

*Until every server knows of a removal, a contribution that the member sent before can still count.
After that, the member's chunks go to other members.*

*A removed member may rejoin if it was evicted for silence, or has left because it lost its link to
a server. While a member may rejoin, a job without members is not deserted. A job that restarts its
workers also waits for a grace period.*

*While other members train, the lead closes the links of an evicted member after `links_s`. The
network layer ends a link to a vanished host after the same time.*
"""

import math

import msgspec

from polyrhythm.core.lead.data.chunks import Holder
from polyrhythm.core.machine import Deadline

_REJOINS_WITHIN_NS = 5 * 10**9
"""How long an evicted worker may take to send a hello again after its link has ended. A worker that
rejoins closes its old link first."""


class Removals(msgspec.Struct):
    grace_s: float
    links_s: float = math.inf
    """How long the links of an evicted member are kept."""
    _leaving: set[Holder] = set()
    """The members that were removed since the last fold was ordered."""
    _telling: set[Holder] = set()
    """The removed members that are missing in the last view sent to the servers. They are kept
    until every server knows this view."""
    _evicted: dict[int, int] = {}
    """Per evicted worker that may rejoin, its incarnation at the eviction."""
    _links_until_ns: dict[int, int] = {}
    """Per evicted worker, the time at which its links are closed."""
    _rejoin_until_ns: int = 0
    _deserted_ns: int | None = None
    """When a job without members counts as deserted; None while it has members."""
    deadline: Deadline = msgspec.field(default_factory=Deadline)
    """The earliest of these deadlines; None if there is none."""

    def _schedule(self) -> None:
        times_ns = list(self._links_until_ns.values())
        if self._deserted_ns is not None:
            times_ns.append(self._deserted_ns)
        self.deadline.wake_ns = min(times_ns, default=None)

    @property
    def any(self) -> bool:
        return bool(self._leaving or self._telling)

    def leave(self, member: Holder) -> None:
        self._leaving.add(member)

    def on_view_sent(self) -> None:
        """Note that a view without the removed members was sent to the servers."""
        self._telling |= self._leaving
        self._leaving = set()

    def on_view_known(self) -> list[Holder]:
        """Note that every server knows the last view. Returns the removed members that this view
        lacks."""
        gone, self._telling = sorted(self._telling), set()
        return gone

    def is_pending(self, worker: int, incarnation: int) -> bool:
        """Whether some server may not know yet that this member was removed."""
        return (worker, incarnation) in self._leaving or (worker, incarnation) in self._telling

    def may_rejoin(self, worker: int, incarnation: int, now_ns: int) -> None:
        """Note that this member may rejoin: it was evicted, or it was removed because it opened
        another link, or it leaves in order to join again."""
        self._evicted[worker] = incarnation
        if self.links_s < math.inf:
            self._links_until_ns[worker] = now_ns + round(self.links_s * 1e9)
            self._schedule()

    def links_due(self, now_ns: int, *, alone: bool) -> list[Holder]:
        """The evicted members whose links must be closed now. `alone`: the job has no member left,
        so it waits for the evicted members and keeps their links."""
        due = [worker for worker, until_ns in self._links_until_ns.items() if until_ns <= now_ns]
        for worker in due:
            self._links_until_ns[worker] = now_ns + round(self.links_s * 1e9)
        self._schedule()
        return [] if alone else [(worker, self._evicted[worker]) for worker in due]

    def on_link_ended(self, worker: int, incarnation: int, now_ns: int) -> bool:
        """Note the end of a link. Returns True if it was the link of an evicted member; that member
        will rejoin soon, or is dead. The end of an earlier incarnation's link has no effect."""
        evicted = worker in self._evicted and incarnation in (0, self._evicted[worker])
        if evicted:
            del self._evicted[worker]
            self._links_until_ns.pop(worker, None)
            self._rejoin_until_ns = now_ns + _REJOINS_WITHIN_NS
            self._schedule()
        return evicted

    def on_joined(self, worker: int) -> None:
        self._evicted.pop(worker, None)
        self._links_until_ns.pop(worker, None)
        self._deserted_ns = None
        self._schedule()

    def is_deserted(self, now_ns: int) -> bool:
        """Whether a job without members has waited long enough for a member."""
        if self._evicted:
            return False
        if self._deserted_ns is None:
            self._deserted_ns = max(now_ns + round(self.grace_s * 1e9), self._rejoin_until_ns)
            self._schedule()
        return now_ns >= self._deserted_ns

    def expect_nobody(self) -> None:
        """Forget when the job counts as deserted: it ends, so it waits for no member."""
        self._deserted_ns = None
        self._schedule()

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadlines by the time in which the lead was paused."""
        self._rejoin_until_ns += paused_ns
        for worker in self._links_until_ns:
            self._links_until_ns[worker] += paused_ns
        if self._deserted_ns is not None:
            self._deserted_ns += paused_ns
        self._schedule()

    def overdue(self, now_ns: int) -> bool:
        return self._deserted_ns is not None and now_ns >= self._deserted_ns
