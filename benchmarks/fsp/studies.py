"""The runs that each figure needs. Figures share runs: a run is made once, whichever figures use it."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from benchmarks.fsp.specs import Spec

ALL = ("kmeans", "fcm", "gmm", "nmf", "lr", "cnn")
FOUR = ("bspb", "bspv", "fspb", "fspv")
EQUAL: tuple[tuple[int, float], ...] = ()
SLOW_4X = ((3, 4.0),)
SLOW_8X = ((3, 8.6),)
SWEEP = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The fixed intervals that are tried, in passes of a worker."""
HELD_S, HELD_LARGE_S = 20.0, 40.0
LINKS = ("40mbit", "20mbit")
"""The rates of a link that all processes of a job share."""
MIGRATED = ("kmeans", "kmeans-sorted", "lr-sorted")
PASSED = ("kmeans", "lr")
COSTED = (*PASSED, "kmeans-large", "lr-large")
"""The workers of the large problems compute for about half of their time."""
WAYS = ("fspv", "fspv, lease", "fspv, full", "fspv, blocking")
COST = ("60 ms, off", "60 ms, lease", "60 ms, full")
"""The ways whose processor time per point is compared. All have the same fixed interval, because
shorter intervals cost more processor time per point, and `--interval auto` would find another
interval in each run."""


def runtime() -> list[Spec]:
    """Figs. 7 and 8: seconds to the target with and without a stalled worker."""
    return [
        Spec(problem, policy, slow)
        for slow in (SLOW_4X, EQUAL)
        for problem in ALL
        for policy in FOUR
    ]


def convergence() -> list[Spec]:
    """Fig. 14: the objective over time beside asp with 1 and 32 contributions per pass."""
    return [
        Spec(problem, policy)
        for problem in ("kmeans", "fcm", "lr")
        for policy in ("bspv", "fspv", "asp 1", "asp 32")
    ]


def interval() -> list[Spec]:
    """Fig. 15: fixed intervals, and the intervals that FSPB and FSPV find."""
    return [
        Spec(problem, policy, SLOW_4X)
        for problem in ALL
        for policy in (*(f"interval {part:g}" for part in SWEEP), "fspb", "fspv")
    ]


def migration() -> list[Spec]:
    """Fig. 11: migration beside no migration, and beside bspb and bspv."""
    return [
        Spec(problem, policy, slow)
        for slow in (SLOW_4X, SLOW_8X)
        for problem in MIGRATED
        for policy in ("bspb", "bspv", *WAYS)
    ]


def passes() -> list[Spec]:
    """Fig. 12: the passes of points in runs of a fixed length, with and without a slow worker."""
    return [
        Spec(problem, policy, slow, hold_s=HELD_S)
        for slow in (SLOW_4X, SLOW_8X, EQUAL)
        for problem in PASSED
        for policy in WAYS
    ]


def cost() -> list[Spec]:
    """Table 2: the processor time per point with migration and without."""
    return [
        Spec(problem, policy, slow, hold_s=HELD_S if problem in PASSED else HELD_LARGE_S)
        for slow in (SLOW_4X, SLOW_8X, EQUAL)
        for problem in COSTED
        for policy in COST
    ]


def bandwidth() -> list[Spec]:
    """Table 2: migration over a link, and over a link with half the rate."""
    return [
        Spec(problem, policy, SLOW_4X, link=link, hold_s=HELD_S)
        for link in LINKS
        for problem in PASSED
        for policy in ("fspv", "fspv, full")
    ]


def stragglers() -> list[Spec]:
    """Fig. 9: one worker that is 2, 4 and 8.6 times slower than the others, and two and three slow
    workers of four."""
    skew = [((3, factor),) for factor in (2.0, 4.0, 8.6)]
    several = [tuple((worker, 4.0) for worker in range(4 - slow, 4)) for slow in (2, 3)]
    return [Spec("kmeans", policy, slow) for slow in (EQUAL, *skew, *several) for policy in FOUR]


def coordination() -> list[Spec]:
    """Fig. 13: rounds that the lead ends with a message, and rounds that end by the workers' own
    timers."""
    return [
        Spec(problem, policy, SLOW_4X) for problem in PASSED for policy in ("fspv, central", "fspv")
    ]


STUDIES: dict[str, Callable[[], list[Spec]]] = {
    study.__name__: study
    for study in (
        runtime,
        convergence,
        interval,
        migration,
        passes,
        cost,
        bandwidth,
        stragglers,
        coordination,
    )
}


def runs_of(names: Iterable[str], starts: Iterable[int]) -> list[Spec]:
    """The runs of these studies, each once per start. All runs from the first start come first, so
    that a measurement that is cut short has measured everything once."""
    found = dict.fromkeys(spec for name in names for spec in STUDIES[name]())
    return [replace(spec, rep=rep) for rep in starts for spec in found]
