"""BSPB and BSPV: BSP whose batches are all of a worker's points, or of a size that is found at the
start by cost and benefit. They are the baselines that FSP is compared with (FSP §6.1)."""

from msgspec.structs import replace

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.barrier.batch_size import WHOLE, BatchSize, MeasuredBatch
from polyrhythm.core.sync.barrier.bsp import Bsp
from polyrhythm.core.sync.barrier.measurement import RoundMeasurement
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.core.sync.barrier.warmup import WarmUp
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


class Batched:
    traits = Traits(rounds=True, kinds=frozenset({"gradient", "statistics"}), gathers=True)

    def __init__(self, timer: Timer, size: BatchSize | None) -> None:
        """`size` None: whole batches."""
        self._barrier = Bsp(timer)
        self._size = size
        self._terms = WHOLE if size is None else size.next()
        self._opened_ns = 0
        self._reading = RoundMeasurement()
        self._most = 0.0
        self._newcomers = WarmUp()

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        match event:
            case Opened(_):
                self._opened_ns = now_ns
            case MemberContributed(worker, _, trailer):
                self._newcomers.arrived(worker)
                if trailer is not None:
                    self._reading.count(trailer)
                    self._most = max(self._most, trailer.weight)
            case Left(worker):
                self._newcomers.left(worker)
        decision = self._barrier.on(event, now_ns)
        if decision.fold and self._size is not None:
            return replace(decision, change=self._close(self._size, now_ns))
        return decision

    def _close(self, size: BatchSize, now_ns: int) -> Reason | None:
        asked = self._terms.points or 0
        most = round(self._most) if self._most < asked else 2 * asked
        measured = MeasuredBatch(now_ns - self._opened_ns, self._reading.objective, most)
        self._reading, self._most = RoundMeasurement(), 0.0
        cold = self._newcomers.came
        self._newcomers.close()
        if cold:  # how long it took says nothing: the size is tried once more
            return None
        said = size.closed(measured)
        self._terms = size.next()
        return said

    def terms(self, worker: int) -> RoundTerms:
        return RoundTerms(points=self._terms.points or ALL_POINTS, probe=self._terms.probe)

    def why(self) -> Waiting:
        return self._barrier.why()


def _build_bspb(job: JobSpec) -> Batched:
    return Batched(Timer.parse(job.timer), None)


def _build_bspv(job: JobSpec) -> Batched:
    return Batched(Timer.parse(job.timer), BatchSize())


BSPB = PolicyEntry(
    "bspb", "bsp with all points of a worker as one batch", Batched.traits, _build_bspb
)
BSPV = PolicyEntry("bspv", "bsp with a batch size found at the start", Batched.traits, _build_bspv)
