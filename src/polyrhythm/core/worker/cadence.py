"""Decides when a worker contributes, and how many points each of its steps has.

The user's loop (`learn/exchange`) and the simulated loop (`sim/worker/loop`) use the same classes.
There is one class for each of the four ways in which policies end the work of a round:

| cadence      | policies                   | a worker contributes                              |
|--------------|----------------------------|---------------------------------------------------|
| ByCount      | bsp, ssp, ssp-restart, asp | after each step, or (kind local) `--local-steps`  |
| ByPrediction | psp                        | after the steps that the lead predicted, once its |
|              |                            | last contribution has come back in a version      |
| ByPoints     | bspb, bspv, bspg           | after the points that the lead asked for          |
| ByClock      | fsp                        | when its interval is over, or its lease visited   |

*Under every policy, a worker that was told to leave contributes at once. So does a worker whose
contribution the lead requests, unless its last contribution is still in flight.*
"""

from enum import Enum
from math import ceil
from typing import Protocol

import msgspec

from polyrhythm.core.batches import wanted
from polyrhythm.core.effects import Resume
from polyrhythm.core.kinds import keeps_rows, steps_on_workers
from polyrhythm.core.sync.barrier.abandoning import abandons, parse_patience
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.batch_sizes import MicroBatch
from polyrhythm.wire.messages import JobSpec


class Due(Enum):
    NO = "no"
    YES = "yes"
    PASSED_ALL = "passed all"
    """The worker contributes because it has visited its whole lease, and asks the lead to end the
    round."""


class Standing(msgspec.Struct, gc=False):
    """What a worker has done since its last contribution."""

    steps: int = 0
    points: float = 0.0
    everything: float = 0.0
    """The number of points in the worker's lease; 0 if it has no lease."""
    in_flight: bool = False
    """Whether the worker trains while the version with its last contribution has not come yet."""
    left_ns: int = 0
    """The remaining time of the worker's interval, under policies with an interval."""


class NextSteps(msgspec.Struct, frozen=True, gc=False):
    """The steps until the worker next decides whether to contribute: `points` in all, in batches of
    `size`."""

    points: int
    size: int


class Cadence(Protocol):
    def begin(self, batch: int, least: int) -> None:
        """Set the size of the batches that the user's loop takes, and the smallest size that it may
        get."""

    def at_least(self, points: int) -> None:
        """Plan no batches smaller than this: the user's loop drops them."""

    def due(self, standing: Standing, terms: Resume) -> Due:
        """Whether the worker contributes now, after a step that has just ended."""

    def next_points(self, standing: Standing, terms: Resume) -> int:
        """The number of points of the next step."""

    def is_still_usable(self, points: int, standing: Standing, terms: Resume) -> bool:
        """Whether a batch with this many points, which was planned and loaded earlier, may still be
        used next."""

    def takes_ns(self, points: float) -> float:
        """How long a step of this many points takes; 0 if the cadence does not depend on time."""

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        """The next steps, as far as no message changes the plan."""

    def due_in_ns(self, left_ns: int) -> int | None:
        """How many nanoseconds remain until the worker is due: it contributes after the first step
        that ends at that time or later. None if the decision does not depend on time."""

    def looks(self, *, in_flight: bool) -> bool:
        """Whether the worker reads its links between two steps."""

    def on_measured(self, points: float, took_ns: int, times: int = 1) -> None:
        """Add a measurement: `times` steps of this many points took `took_ns` each."""

    def abandons(self, late_ns: int, gathered: float) -> bool:
        """Whether the worker leaves out a step that ended `late_ns` after the interval. `gathered`:
        the points that it had visited in this round before that step."""

    def share(self, points: float) -> float:
        """The fraction of a full step that a local step over this many points makes."""

    def micro_batch(self) -> tuple[int, int]:
        """Two values for the lead: the number of points of the user's batch, and the duration of
        the shortest micro-batch. (0, 0) without micro-batches."""


def decide(cadence: Cadence, standing: Standing, terms: Resume, asked: bool, called: bool) -> Due:
    """Decide whether a worker contributes after the step that has just ended. `asked`: the worker
    was told to leave. `called`: the lead requests its contribution."""
    if asked or (called and not standing.in_flight):
        return Due.YES
    return cadence.due(standing, terms)


def after_step(cadence: Cadence, standing: Standing, terms: Resume, points: float) -> Standing:
    """What the worker will have done after one more step of this many points, if no message changes
    the plan. The loader uses this function to load batches in advance."""
    left_ns = standing.left_ns - round(cadence.takes_ns(points))
    everything, in_flight = standing.everything, standing.in_flight
    after = Standing(standing.steps + 1, standing.points + points, everything, in_flight, left_ns)
    if cadence.due(after, terms) is Due.NO:
        return after
    return Standing(0, 0.0, everything, in_flight, terms.interval_ns)


def missing(standing: Standing, terms: Resume) -> float:
    """How many points the worker still visits before it contributes, if the lead asks for a number
    of points. A negative number in `terms` asks for the whole lease."""
    everything = standing.everything or standing.points
    asked_for = everything if terms.points < 0 else min(terms.points, everything)
    return asked_for - standing.points


class _Untimed:
    """The base of all cadences that do not depend on time."""

    __slots__ = ("_batch", "_least")

    def __init__(self) -> None:
        self._batch = self._least = 1

    def begin(self, batch: int, least: int) -> None:
        self._batch, self._least = batch, least

    def at_least(self, points: int) -> None:
        pass

    def next_points(self, standing: Standing, terms: Resume) -> int:
        return self._batch

    def is_still_usable(self, points: int, standing: Standing, terms: Resume) -> bool:
        return True

    def takes_ns(self, points: float) -> float:
        return 0.0

    def due_in_ns(self, left_ns: int) -> int | None:
        return None

    def looks(self, *, in_flight: bool) -> bool:
        return False

    def on_measured(self, points: float, took_ns: int, times: int = 1) -> None:
        pass

    def abandons(self, late_ns: int, gathered: float) -> bool:
        return False

    def share(self, points: float) -> float:
        return 1.0

    def micro_batch(self) -> tuple[int, int]:
        return 0, 0


class ByCount(_Untimed):
    __slots__ = ("_all", "_looks", "_steps")

    def __init__(self, steps: int = 1, *, looks: bool = False) -> None:
        """`looks`: the worker reads its links between two local steps, so that it contributes early
        when the job stops."""
        super().__init__()
        self._steps = steps
        self._looks = looks
        self._all = NextSteps(steps, 1)
        """All steps that a contribution contains, as one plan."""

    def begin(self, batch: int, least: int) -> None:
        super().begin(batch, least)
        self._all = NextSteps(self._steps * batch, batch)

    def due(self, standing: Standing, terms: Resume) -> Due:
        return Due.YES if standing.steps >= self._steps else Due.NO

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        if not standing.steps:
            return self._all
        return NextSteps((self._steps - standing.steps) * self._batch, self._batch)

    def looks(self, *, in_flight: bool) -> bool:
        return self._looks


class ByPrediction(_Untimed):
    def due(self, standing: Standing, terms: Resume) -> Due:
        return Due.YES if standing.steps >= terms.steps and not standing.in_flight else Due.NO

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        done = 0 if standing.in_flight else standing.steps
        return NextSteps(max(1, terms.steps - done) * self._batch, self._batch)

    def looks(self, *, in_flight: bool) -> bool:
        return in_flight


class ByPoints(_Untimed):
    def due(self, standing: Standing, terms: Resume) -> Due:
        return Due.YES if missing(standing, terms) <= 0 else Due.NO

    def next_points(self, standing: Standing, terms: Resume) -> int:
        return wanted(self._batch, missing(standing, terms), self._least)

    def is_still_usable(self, points: int, standing: Standing, terms: Resume) -> bool:
        return points == self.next_points(standing, terms)

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        points = int(missing(standing, terms)) if standing.everything else self._batch
        return NextSteps(max(self._least, points), self._batch)

    def looks(self, *, in_flight: bool) -> bool:
        return True


class ByClock:
    def __init__(self, kind: str, patience_ns: int | None = None) -> None:
        """`kind`: of the job's contributions. `patience_ns`: see `abandoning`."""
        self._kind = kind
        self._patience_ns = patience_ns
        self._micro: MicroBatch | None = None

    def begin(self, batch: int, least: int) -> None:
        if steps_on_workers(self._kind):
            self._micro = MicroBatch(batch, least, whole=True, first=batch)
        else:
            whole = self._patience_ns is None and not keeps_rows(self._kind)
            self._micro = MicroBatch(batch, least, whole=whole)

    def at_least(self, points: int) -> None:
        if self._micro is not None:
            self._micro.at_least(points)

    def due(self, standing: Standing, terms: Resume) -> Due:
        if self.due_in_ns(standing.left_ns) <= 0:
            return Due.YES
        if standing.everything and standing.points >= standing.everything:
            return Due.PASSED_ALL
        return Due.NO

    def due_in_ns(self, left_ns: int) -> int:
        """The worker is due half a micro-batch before the end of the interval. A micro-batch that
        begins later would run mostly after the end."""
        usual_ns = 0.0 if self._micro is None else self._micro.usual_ns
        return ceil(left_ns - usual_ns / 2)

    def next_points(self, standing: Standing, terms: Resume) -> int:
        assert self._micro is not None
        return self._micro.size(standing.left_ns)

    def is_still_usable(self, points: int, standing: Standing, terms: Resume) -> bool:
        """A micro-batch that was planned earlier still fits if it would end at most one
        micro-batch's time after the interval."""
        usual_ns = 0.0 if self._micro is None else self._micro.usual_ns
        return self.takes_ns(points) <= max(0, standing.left_ns) + usual_ns

    def takes_ns(self, points: float) -> float:
        return 0.0 if self._micro is None else self._micro.takes_ns(points)

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        assert self._micro is not None
        steps, size = self._micro.divide(standing.left_ns)
        if standing.everything:
            rest = standing.everything - standing.points
            steps = min(steps, max(1, ceil(rest / size)))
        return NextSteps(steps * size, size)

    def looks(self, *, in_flight: bool) -> bool:
        return True

    def on_measured(self, points: float, took_ns: int, times: int = 1) -> None:
        if self._micro is not None:
            self._micro.on_measured(points, took_ns, times)

    def abandons(self, late_ns: int, gathered: float) -> bool:
        return abandons(late_ns, self._patience_ns, gathered)

    def share(self, points: float) -> float:
        """The learning rate was chosen for whole batches. So a gradient over half a batch makes
        half a step, and every point moves the model as much as in a whole batch."""
        return 1.0 if self._micro is None else min(1.0, points / self._micro.most)

    def micro_batch(self) -> tuple[int, int]:
        return (0, 0) if self._micro is None else (self._micro.most, self._micro.shortest_ns)


def choose_cadence(job: JobSpec) -> Cadence:
    traits, local = traits_of(job.sync), steps_on_workers(job.kind)
    if traits.timed:
        return ByClock(job.kind, parse_patience(job.abandon))
    if traits.gathers:
        return ByPoints()
    if traits.plans_steps:
        return ByPrediction()
    steps = max(1, job.local_steps) if local else 1
    return ByCount(steps, looks=steps > 1 and not job.read_ahead)
