"""When a worker contributes, and how many points each of its steps has.

The user's loop (`learn/exchange`) and the simulated loop (`sim/worker/loop`) ask the same object. There
is one class for each of the four ways in which policies end the work of a round:

| cadence      | policies                   | a worker contributes                              |
|--------------|----------------------------|---------------------------------------------------|
| ByCount      | bsp, ssp, ssp-restart, asp | after each step, or (kind local) `--local-steps`  |
| ByPrediction | psp                        | after the steps that the lead predicted, once its |
|              |                            | last contribution has come back in a version      |
| ByPoints     | bspb, bspv                 | after the points that the lead asked for          |
| ByClock      | fsp                        | when its interval is over, or its lease visited   |

*Under every policy a worker that was told to leave contributes at once, and so does a worker that the
lead calls, unless its last contribution is still in flight.*
"""

from enum import Enum
from math import ceil
from typing import Protocol

import msgspec

from polyrhythm.core.batches import wanted
from polyrhythm.core.effects import Resume
from polyrhythm.core.kinds import steps_on_workers
from polyrhythm.core.sync.barrier.abandoning import abandons, parse_patience
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.micro_batch import MicroBatch
from polyrhythm.wire.messages import JobSpec


class Due(Enum):
    NO = "no"
    YES = "yes"
    PASSED_ALL = "passed all"
    """The worker contributes and asks the lead for the barrier: it has visited its whole lease."""


# looking up a member of an Enum takes a call, and these are looked up at every step
NO, YES, PASSED_ALL = Due.NO, Due.YES, Due.PASSED_ALL


class Standing(msgspec.Struct, gc=False):
    """What a worker has done since its last contribution."""

    steps: int = 0
    points: float = 0.0
    everything: float = 0.0
    """All points of its lease; 0: it has none."""
    in_flight: bool = False
    """The version with its last contribution has not come yet, and it trains on."""
    left_ns: int = 0
    """What is left of its interval, where it has one."""


class NextSteps(msgspec.Struct, gc=False):
    """The steps up to the next decision: `points` in all, in batches of `size`."""

    points: int
    size: int


class Cadence(Protocol):
    def begin(self, batch: int, least: int) -> None:
        """The user's loop takes batches of this size, and none smaller than `least`."""

    def due(self, standing: Standing, terms: Resume) -> Due:
        """Whether the worker contributes now; it has just ended a step."""

    def next_points(self, standing: Standing, terms: Resume) -> int:
        """The points of the next step."""

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        """The next steps, if nothing comes in between."""

    def due_in_ns(self, left_ns: int) -> int | None:
        """The worker contributes after the first step that ends this long from now or later; None:
        time does not decide."""

    def looks(self, *, in_flight: bool) -> bool:
        """Whether the worker reads its links between two steps."""

    def measured(self, points: float, took_ns: int, times: int = 1) -> None:
        """Steps of this many points took this long each."""

    def abandons(self, late_ns: int, gathered: float) -> bool:
        """Whether the step that ended this long after the interval is left out; before it the worker
        had `gathered` points."""

    def share(self, points: float) -> float:
        """How much of a whole step a local step over this many points is."""

    def micro_batch(self) -> tuple[int, int]:
        """For the lead: the user's batch and the time of the shortest micro-batch; (0, 0): none."""


def decide(
    cadence: Cadence, standing: Standing, terms: Resume, *, asked: bool, called: bool
) -> Due:
    """Whether a worker that has just ended a step contributes now. `asked`: it was told to leave;
    `called`: the lead wants its contribution."""
    if asked or (called and not standing.in_flight):
        return YES
    return cadence.due(standing, terms)


def missing(standing: Standing, terms: Resume) -> float:
    """How many points the worker still visits before it contributes, where the lead asked for a
    number of points; a negative number asks for the whole lease."""
    everything = standing.everything or standing.points
    asked_for = everything if terms.points < 0 else min(terms.points, everything)
    return asked_for - standing.points


class _Untimed:
    """What the cadences without a clock have in common."""

    def __init__(self) -> None:
        self._batch = self._least = 1

    def begin(self, batch: int, least: int) -> None:
        self._batch, self._least = batch, least

    def next_points(self, standing: Standing, terms: Resume) -> int:
        return self._batch

    def due_in_ns(self, left_ns: int) -> int | None:
        return None

    def looks(self, *, in_flight: bool) -> bool:
        return False

    def measured(self, points: float, took_ns: int, times: int = 1) -> None:
        pass

    def abandons(self, late_ns: int, gathered: float) -> bool:
        return False

    def share(self, points: float) -> float:
        return 1.0

    def micro_batch(self) -> tuple[int, int]:
        return 0, 0


class ByCount(_Untimed):
    def __init__(self, steps: int = 1, *, looks: bool = False) -> None:
        """`looks`: between two local steps the worker reads its links, so that it contributes early
        when the job stops."""
        super().__init__()
        self._steps = steps
        self._looks = looks

    def due(self, standing: Standing, terms: Resume) -> Due:
        return YES if standing.steps >= self._steps else NO

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        return NextSteps((self._steps - standing.steps) * self._batch, self._batch)

    def looks(self, *, in_flight: bool) -> bool:
        return self._looks


class ByPrediction(_Untimed):
    def due(self, standing: Standing, terms: Resume) -> Due:
        return YES if standing.steps >= terms.steps and not standing.in_flight else NO

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        done = 0 if standing.in_flight else standing.steps
        return NextSteps(max(1, terms.steps - done) * self._batch, self._batch)

    def looks(self, *, in_flight: bool) -> bool:
        return in_flight


class ByPoints(_Untimed):
    def due(self, standing: Standing, terms: Resume) -> Due:
        return YES if missing(standing, terms) <= 0 else NO

    def next_points(self, standing: Standing, terms: Resume) -> int:
        return wanted(self._batch, missing(standing, terms), self._least)

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        points = int(missing(standing, terms)) if standing.everything else self._batch
        return NextSteps(max(self._least, points), self._batch)

    def looks(self, *, in_flight: bool) -> bool:
        return True


class ByClock:
    def __init__(self, patience_ns: int | None = None, *, whole: bool = False) -> None:
        """`whole`: micro-batches are the user's own steps. `patience_ns`: see `abandoning`."""
        self._patience_ns = patience_ns
        self._whole = whole
        self._micro: MicroBatch | None = None

    def begin(self, batch: int, least: int) -> None:
        self._micro = MicroBatch(batch, least, whole=self._whole)

    def due(self, standing: Standing, terms: Resume) -> Due:
        if self.due_in_ns(standing.left_ns) <= 0:
            return YES
        if standing.everything and standing.points >= standing.everything:
            return PASSED_ALL
        return NO

    def due_in_ns(self, left_ns: int) -> int:
        """When less is left than half of what a micro-batch takes, the end of the interval is nearer
        now than after one more."""
        usual_ns = 0.0 if self._micro is None else self._micro.usual_ns
        return ceil(left_ns - usual_ns / 2)

    def next_points(self, standing: Standing, terms: Resume) -> int:
        assert self._micro is not None
        return self._micro.size(standing.left_ns)

    def next_steps(self, standing: Standing, terms: Resume) -> NextSteps:
        assert self._micro is not None
        steps, size = self._micro.divide(standing.left_ns)
        if standing.everything:
            rest = standing.everything - standing.points
            steps = min(steps, max(1, ceil(rest / size)))
        return NextSteps(steps * size, size)

    def looks(self, *, in_flight: bool) -> bool:
        return True

    def measured(self, points: float, took_ns: int, times: int = 1) -> None:
        if self._micro is not None:
            self._micro.measured(points, took_ns, times)

    def abandons(self, late_ns: int, gathered: float) -> bool:
        return abandons(late_ns, self._patience_ns, gathered)

    def share(self, points: float) -> float:
        """The learning rate was chosen for whole batches, so a gradient over half a batch counts
        half: every point moves the model as much as in a whole batch."""
        return 1.0 if self._micro is None else min(1.0, points / self._micro.most)

    def micro_batch(self) -> tuple[int, int]:
        return (0, 0) if self._micro is None else (self._micro.most, self._micro.shortest_ns)


def choose_cadence(job: JobSpec) -> Cadence:
    traits, local = traits_of(job.sync), steps_on_workers(job.kind)
    if traits.timed:
        return ByClock(parse_patience(job.abandon), whole=local)
    if traits.gathers:
        return ByPoints()
    if traits.plans_steps:
        return ByPrediction()
    steps = max(1, job.local_steps) if local else 1
    return ByCount(steps, looks=steps > 1 and not job.read_ahead)
