"""The point-wise interface (FSP's Fig. 5, vectorised over batches): an algorithm computes
statistics of points, and new parameters from the sum of these statistics over all points.

| FSP | here | |---|---| | `initParameter` | `init_parameter(sample, rng)` | | `updateDataPoint` |
`update_points(batch, parameter, memory)` | | `aggregate` | `aggregate(target, change)`: always a
sum, because servers add and run no user code | | `updateParameter` | `update_parameter(statistics,
old)`, `repair(statistics, new)` | | `terminationCheck` | `terminated(check)` | | `voteToHalt` |
`vote_to_halt(batch, parameter, memory)` |

Statistics and parameters are numpy arrays with names. *Every worker computes the new parameters
from the same sum and its old parameters, so `update_parameter` must be deterministic: no random
numbers, no time, no state of the object.*

The sum always contains exactly one summand per point. There are two ways to achieve this:

- **Without memory** (the default). `update_points` returns the statistics of the points of a batch.
  The runner calls it with the same points together in every pass, remembers the last statistics of
  each batch, and sends the difference.
- **With memory.** `memory(count)` returns arrays with a row for each point, in the state "not
  counted yet". `update_points` returns the *change* of the statistics, and updates the memory in
  place. So an algorithm whose points seldom change sends and computes little. The points may be
  divided into batches in any way, so the memory must consist of independent rows, one per point. If
  the points move to another worker, `adopt` is called before the algorithm object there uses their
  memory.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.learn.pointwise.layout import Array, ArrayLayout, Arrays, Shape

Memory = dict[str, npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some points, as an algorithm gets them.

    Attributes:
        x: a row for each point: a numpy array or a scipy CSR matrix.
        y: a label for each point, or None.
        weight: a weight for each point, or None if all weigh 1.

    Example:
        >>> from polyrhythm.pointwise import Batch
        >>> batch = Batch(np.zeros((100, 2)))
        >>> len(batch), len(batch.part(slice(0, 10)))
        (100, 10)
    """

    x: Any
    y: npt.NDArray[Any] | None = None
    weight: npt.NDArray[np.floating[Any]] | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def part(self, rows: "slice | npt.NDArray[Any]") -> "Batch":
        """Return some of the points. A slice copies nothing.

        Args:
            rows: a slice, or an array of numbers or booleans.
        """
        return Batch(
            self.x[rows],
            None if self.y is None else self.y[rows],
            None if self.weight is None else self.weight[rows],
        )


def joined(batches: Sequence[Batch]) -> Batch:
    """All points of these batches, in their order. Either all batches have labels or none has. The
    same holds for weights."""
    if len(batches) == 1:
        return batches[0]
    xs = [batch.x for batch in batches]
    if hasattr(xs[0], "tocsr"):
        from scipy import sparse

        x = sparse.vstack(xs, format="csr")
    else:
        x = np.concatenate(xs)
    ys = [batch.y for batch in batches if batch.y is not None]
    weights = [batch.weight for batch in batches if batch.weight is not None]
    return Batch(
        x, np.concatenate(ys) if ys else None, np.concatenate(weights) if weights else None
    )


@dataclass(frozen=True, slots=True)
class Check:
    """What `Algorithm.terminated` decides on. It is called about once per pass of the slowest
    worker, whatever the length of a round (FSP's section 5.3), and without rounds after every
    second pass.

    Example:
        >>> from polyrhythm.pointwise import Check
        >>> check = Check(passes=2, old={}, new={}, objective=1.5, last_objective=2.0)
        >>> check.gain
        0.5
    """

    passes: int
    """Every point has been visited at least this many times. A resumed job begins with 0."""
    old: Arrays
    """The parameters at the last check."""
    new: Arrays
    objective: float | None
    last_objective: float | None
    """The objective at the last check; None at the first check."""
    before: float | None = None
    """The objective after the visits and before the M-step: the objective of the same sum, with the
    parameters that the M-step has replaced."""
    last_before: float | None = None
    """The same at the last check; None at the first check."""

    @property
    def gain(self) -> float:
        """By how much the objective has fallen since the last check. Infinite at the first check,
        and if the algorithm has no objective."""
        if self.objective is None or self.last_objective is None:
            return math.inf
        return self.last_objective - self.objective

    @property
    def gain_before(self) -> float:
        """By how much the objective before the M-step has fallen since the last check. Infinite
        at the first check, and if the algorithm has no objective."""
        if self.before is None or self.last_before is None:
            return math.inf
        return self.last_before - self.before


class Algorithm(ABC):
    """The base class of point-wise algorithms: those that need only sums over points, such as
    KMeans and expectation maximisation.

    You write how points are turned into statistics (`update_points`), and how the sum of the
    statistics over all points is turned into new parameters (`update_parameter`). polyrhythm
    divides the points among workers, adds the statistics up, and repeats. `init_parameter`,
    `statistics`, `update_points` and `update_parameter` have no default. `run_pointwise` runs an
    algorithm in the `main` of a job of kind statistics.

    Example:
        >>> from polyrhythm.pointwise import Algorithm, ArraySource, Batch, run_pointwise
        >>> class Mean(Algorithm):
        ...     def init_parameter(self, sample, rng):
        ...         return {"mean": sample.x[0]}
        ...     def statistics(self, parameter):
        ...         return {"sum": parameter["mean"].shape, "count": ()}
        ...     def update_points(self, batch, parameter, memory):
        ...         return {"sum": batch.x.sum(0), "count": np.array(float(len(batch)))}
        ...     def update_parameter(self, statistics, old):
        ...         return {"mean": statistics["sum"] / statistics["count"]}
        >>> def main(worker: pr.Worker) -> None:
        ...     points = np.arange(200.0).reshape(100, 2)
        ...     run_pointwise(worker, Mean(), ArraySource(Batch(points)))
        >>> options = {"kind": "statistics", "sync": "bspb", "epochs": 2}
        >>> result = pr.train(main, workers=2, servers=1, **options)
        >>> result.state_dict()["mean"].tolist()
        [99.0, 100.0]
    """

    name = "algorithm"
    sample_points: int | None = 10_000
    """How many points `init_parameter` gets at most: a random sample. None: all points."""
    starts_from_sample = False
    """Whether a sample represents the points that were not visited yet. The sum then also contains
    the statistics of the sample's points, computed with the first parameters. True for fuzzy
    c-means: at first its centres would otherwise all move to the mean of the few visited points."""
    same_parameters = False
    """Whether the statistics of all points must have been computed with the same parameters. True
    for the search of logistic regression: a sum of gradients at different coefficients is not a
    gradient."""

    @abstractmethod
    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        """Return the first parameters: numpy arrays by name. One worker calls this; the others
        take its result.

        Args:
            sample: a random sample of at most `sample_points` points.
            rng: the source of random numbers.
        """

    @abstractmethod
    def statistics(self, parameter: Arrays) -> Mapping[str, Shape]:
        """Return the names and shapes of the statistics: `{"sum": (k, d), "count": (k,)}`. A
        scalar has the shape `()`."""

    @abstractmethod
    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        """Return the statistics of some points.

        Args:
            batch: the points.
            parameter: the present parameters.
            memory: what `memory` has returned for these points: arrays with a row for each point.
                If it is not empty, return the *change* of the statistics, and update `memory` in
                place.
        """

    @abstractmethod
    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        """Return the new parameters, with the names and shapes of `old`. Every worker computes
        them, and all must get the same bits: use no random numbers, no time, and no state of the
        object.

        Args:
            statistics: the sum over all points that were visited so far. Do not change these
                arrays.
            old: the parameters until now.
        """

    def repair(self, statistics: Arrays, new: Arrays) -> Arrays:
        """Return the parameters of `update_parameter` with changes that are right only if every
        point is in the sum: KMeans moves centres without points.

        At the beginning of a job, after a death and while points move, the sum lacks some points,
        and this method is not called. It must be deterministic, too. The default changes nothing."""
        return new

    def memory(self, count: int) -> Memory:
        """Return what is remembered of `count` points that have added nothing to the sum yet:
        arrays with `count` rows. Use it if the statistics of your points seldom change. The
        default remembers nothing."""
        return {}

    def adopt(self, memory: Memory) -> Memory:
        """Return the memory of points that have come from another worker (`migrate="full"`),
        without values that are valid only in the worker from which they came. The default returns
        the memory unchanged."""
        return memory

    def objective(self, statistics: Arrays, parameter: Arrays) -> float | None:
        """Return what the algorithm minimises, as a sum over points, or None if it has no objective
        (the default).

        It is computed from the statistics and any parameters: for expectation maximisation it is
        -F(Q, theta) of FSP's Eq. 2. Points may have been visited with older parameters, so compute
        the objective from the sum of the statistics, and do not add up objectives that were
        computed at the visits.
        """
        return None

    def terminated(self, check: Check) -> bool:
        """Return whether the parameters are final. The default never ends the job; a goal such as
        `epochs` does.

        Args:
            check: the parameters and objectives of this check and of the last one.
        """
        return False

    def vote_to_halt(self, batch: Batch, parameter: Arrays, memory: Memory) -> Mask | None:
        """Return which points of a batch need no more visits, as an array of booleans; None if
        all do (the default).

        Called after `update_points`. The statistics of these points stay in the sum. The job ends
        when all points have voted. Without memory, the points of a batch are left out together,
        when all have voted."""
        return None

    def aggregate(self, target: Array, change: Array) -> Array:
        """Add a change to statistics in place, and return them. Servers do the same, so an
        algorithm cannot override this method."""
        return np.add(target, change, out=target)

    def layout(self, parameter: Arrays) -> ArrayLayout:
        """Return the order and the shapes in which the statistics are stored in one flat buffer."""
        return ArrayLayout.of_shapes(self.statistics(parameter))


def has_memory(algorithm: Algorithm) -> bool:
    """Whether the algorithm has memory, so `update_points` returns changes of the statistics."""
    return bool(algorithm.memory(0))
