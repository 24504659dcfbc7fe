"""BSP with a fixed number of points in each round. The batch size of each worker depends on the
number of members.

*The points of a round are divided evenly among the members. If they cannot be divided evenly, the
first members get one point more. A new division applies from the next round on. A member without
points in two consecutive rounds gets no share until it contributes again; the others visit its
points.*
"""

from typing import ClassVar

import msgspec

from polyrhythm.core.machine import Waiting
from polyrhythm.core.sync.barrier.bsp import Bsp
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.core.sync.policy import (
    Decision,
    Joined,
    Left,
    MemberAbstained,
    MemberContributed,
    PolicyEntry,
    PolicyEvent,
    RoundTerms,
    Traits,
    sync_argument,
)
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

_RESTS = 2
"""A member that abstained in this many rounds in a row gets no share."""


class GlobalBatch(msgspec.Struct):
    traits: ClassVar[Traits] = Traits(rounds=True, kinds=frozenset({"gradient"}), gathers=True)

    _barrier: Bsp
    _points: int
    _shares: dict[int, int] = {}
    _abstained: dict[int, int] = {}
    """Per member without points, the number of consecutive rounds in which it had none."""

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        decision = self._barrier.on(event, now_ns)
        match event:
            case MemberContributed(worker):
                self._abstained.pop(worker, None)
            case MemberAbstained(worker):
                self._abstained[worker] = self._abstained.get(worker, 0) + 1
            case Joined() | Left():
                self._shares = {}
        if decision.fold:
            self._shares = {}
        return decision

    def _divide(self) -> dict[int, int]:
        """The points of each member in the round that opens, computed at once, because all members
        are released together."""
        members = self._barrier.members
        self._abstained = {each: n for each, n in self._abstained.items() if each in members}
        active = [each for each in members if self._abstained.get(each, 0) < _RESTS] or members
        each, more = divmod(self._points, max(1, len(active)))
        return {worker: max(1, each + (rank < more)) for rank, worker in enumerate(active)}

    def terms(self, worker: int) -> RoundTerms:
        shares = self._shares = self._shares or self._divide()
        return RoundTerms(points=shares.get(worker) or max(1, self._points // max(1, len(shares))))

    def why(self) -> Waiting:
        return self._barrier.why()


def _build(job: JobSpec) -> GlobalBatch:
    points, least = sync_argument(job), job.workers * job.min_batch
    if points < least:
        raise UsageError(
            f"--global-batch {points} is too small for {job.workers} workers with batches of at least"
            f" {job.min_batch} points (--min-batch): give at least {least}"
        )
    return GlobalBatch(Bsp(Timer.parse(job.timer)), points)


BSPG = PolicyEntry(
    "bspg",
    "bsp with N points in each round (as --global-batch N)",
    GlobalBatch.traits,
    _build,
    "N",
)
