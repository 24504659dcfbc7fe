"""BSPB and BSPV: BSP with large batches, the baselines that FSP is compared with (FSP §6.1).

Under BSPB a batch is all points of a worker. Under BSPV a comparison of cost and benefit chooses
the batch size at the start of the job (`batch_size`).
"""

import math
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.barrier.bsp import Bsp
from polyrhythm.core.sync.barrier.measurement import RoundMeasurement, WarmUp
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.core.sync.interval.climb import Climb
from polyrhythm.core.sync.policy import (
    ALL_POINTS,
    Decision,
    Left,
    MemberContributed,
    Opened,
    PolicyEntry,
    PolicyEvent,
    RoundTerms,
    Traits,
)
from polyrhythm.wire.messages import JobSpec

_FIRST = 32
_ROUNDS = 4


class BatchTerms(msgspec.Struct, frozen=True):
    points: int | None
    """The points of a batch; None: all points of the worker."""
    probe: bool
    """Whether workers measure the objective before the round begins."""


WHOLE = BatchTerms(points=None, probe=False)


class MeasuredBatch(msgspec.Struct, frozen=True):
    """The measurements of one closed round."""

    elapsed_ns: int
    """The time of the work and the barrier, without the time to measure the objective."""
    objective: float | None
    """The objective when this round opened; None if it was not measured."""
    most: int
    """The most points that any worker has. A batch cannot be larger than that."""


class BatchSize(msgspec.Struct):
    """The search for the batch size of BSPV. It begins with 32 points, and tries each size for four
    rounds. Without a reported objective, the size stays.

    The FSP paper takes the rule of this search from another paper, which compares cost and benefit.
    This is a simple version of the rule: double the size while the objective falls faster per
    second (including the time at barriers), then keep the best size.
    """

    _climb: Climb

    @classmethod
    def begin(cls, first: int = _FIRST) -> "BatchSize":
        return cls(Climb.begin(first, first_rounds=_ROUNDS, rounds=_ROUNDS))

    def next(self) -> BatchTerms:
        return BatchTerms(self._climb.value, self._climb.probe)

    def on_closed(self, measured: MeasuredBatch) -> Reason | None:
        """Evaluate a closed round. Returns a reason if the size has changed or the search is
        over."""
        climb = self._climb
        if climb.found:
            return None
        objective = measured.objective
        if climb.probe and (objective is None or not math.isfinite(objective)):
            climb.settle()
            return Reason("batch-blind", {"points": climb.value})
        before = climb.value
        following = min(2 * before, max(before, measured.most))
        climb.on_closed(max(1, measured.elapsed_ns) / 1e9, objective or 0.0, following)
        if climb.found:
            return Reason("batch-chosen", {"points": climb.value, "gain": climb.gain or 0.0})
        if climb.value == before:
            return None
        return Reason("batch-measuring", {"points": climb.value})


class Batched(msgspec.Struct):
    traits: ClassVar[Traits] = Traits(
        rounds=True, kinds=frozenset({"gradient", "statistics"}), gathers=True
    )
    _barrier: Bsp
    _size: BatchSize | None
    """The search for the batch size; None if a batch is all points of a worker."""
    _opened_ns: int = 0
    _measurement: RoundMeasurement = msgspec.field(default_factory=RoundMeasurement)
    _most: float = 0.0
    _warm_up: WarmUp = msgspec.field(default_factory=WarmUp)

    @property
    def _terms(self) -> BatchTerms:
        return WHOLE if self._size is None else self._size.next()

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        match event:
            case Opened(_):
                self._opened_ns = now_ns
            case MemberContributed(worker, _, report):
                self._warm_up.on_arrived(worker)
                if report is not None:
                    self._measurement.count(report)
                    self._most = max(self._most, report.weight)
            case Left(worker):
                self._warm_up.left(worker)
        decision = self._barrier.on(event, now_ns)
        if decision.fold and self._size is not None:
            return replace(decision, change=self._close(self._size, now_ns))
        return decision

    def _close(self, size: BatchSize, now_ns: int) -> Reason | None:
        asked = self._terms.points or 0
        most = round(self._most) if self._most < asked else 2 * asked
        objective = self._measurement.objective
        measured = MeasuredBatch(now_ns - self._opened_ns, objective, most)
        self._measurement, self._most = RoundMeasurement(), 0.0
        cold = self._warm_up.in_round
        self._warm_up.close()
        # the round contains a worker's first step, so measure this batch size again
        if cold:
            return None
        return size.on_closed(measured)

    def terms(self, worker: int) -> RoundTerms:
        terms = self._terms
        return RoundTerms(points=terms.points or ALL_POINTS, probe=terms.probe)

    def why(self) -> Waiting:
        return self._barrier.why()


def _build_bspb(job: JobSpec) -> Batched:
    return Batched(Bsp(Timer.parse(job.timer)), None)


def _build_bspv(job: JobSpec) -> Batched:
    return Batched(Bsp(Timer.parse(job.timer)), BatchSize.begin())


BSPB = PolicyEntry(
    "bspb", "bsp with all points of a worker as one batch", Batched.traits, _build_bspb
)
BSPV = PolicyEntry("bspv", "bsp with a batch size found at the start", Batched.traits, _build_bspv)
