"""PSP's prediction (PSP §3.2): how many steps each worker makes before all workers meet.

The paper lets all workers meet at the least common multiple of their step times, which is not
defined for measured times. Here, every time T at which a worker ends a step is a candidate for the
meeting time, called the horizon. By then worker i has made `n_i = floor(T / t_i)` steps, where t_i
is its step time. The utilisation is `U(T) = sum n_i t_i / (P max n_i t_i)`. The plan uses the
smallest T whose U is within 5% of the best U. The plan is kept while its U is within 10% of the
best.

Step times are rounded to three digits. So workers with nearly the same step time form one group,
and workers whose step times have an integer ratio meet exactly. The cost of planning depends on the
number of groups, not on the number of workers. At a candidate T the longest `n_i t_i` is T itself,
so one pass over the ends of all steps gives every U.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from itertools import accumulate

import msgspec

from polyrhythm.core.values import keep_last

CAP = 64
_DIGITS = 3
_NEAR_BEST = 0.95
_KEEP = 0.90
_SHORTER = 0.5
_WINDOW = 5


def resource_usage(times: Collection[float]) -> float:
    """Eq. 1: `sum t_i / (p max t_i)`, where t_i is worker i's compute time in one round."""
    longest = max(times, default=0.0)
    return math.fsum(times) / (len(times) * longest) if longest > 0 else 1.0


def overall_usage(compute: Collection[float], total: Collection[float]) -> float:
    """Eq. 14: `sum compute_time_i / sum total_time_i`, over all workers and the whole run."""
    whole = math.fsum(total)
    return math.fsum(compute) / whole if whole > 0 else 1.0


class StepPlan(msgspec.Struct, frozen=True):
    steps: dict[int, int]
    horizon: float
    """The time from the release until the last worker arrives, in the unit of the step times."""
    utilisation: float
    """The utilisation of this plan with the step times as given, without rounding."""
    best: float
    """The highest utilisation of all candidates."""
    cap: int
    """How many steps the fastest worker may make in a round. The limit rises if it makes more steps
    than this during one step of the slowest worker."""


def plan_steps(times: Mapping[int, float], cap: int = CAP) -> StepPlan:
    """Plan the steps of each worker. `times`: the time of one step per worker, in any unit."""
    for worker, time in times.items():
        if not 0 < time < math.inf:
            raise ValueError(f"a step of w{worker} cannot take {time}")
    if not times:
        return StepPlan({}, 0.0, 1.0, 1.0, cap)
    rounded = _rounded(times)
    fastest, slowest = min(rounded.values()), max(rounded.values())
    cap = max(cap, -(-slowest // fastest))
    ends, usages = _candidates(Counter(rounded.values()), slowest, cap * fastest)
    best = max(usages)
    enough = _NEAR_BEST * best
    horizon = next(end for end, usage in zip(ends, usages, strict=True) if usage >= enough)
    steps = {worker: horizon // time for worker, time in rounded.items()}
    lengths = _lengths(steps, times)
    return StepPlan(steps, max(lengths), resource_usage(lengths), best, cap)


def _rounded(times: Mapping[int, float]) -> dict[int, int]:
    """Each time in units of the third digit of the shortest time, rounded to three digits."""
    unit = 10.0 ** (math.floor(math.log10(min(times.values()))) - _DIGITS + 1)
    whole = {time: _three_digits(time / unit) for time in set(times.values())}
    return {worker: whole[time] for worker, time in times.items()}


def _three_digits(time: float) -> int:
    """Round a number of at least three digits to three digits."""
    scale = 1
    while time >= 10**_DIGITS * scale:
        scale *= 10
    return round(time / scale) * scale


def _candidates(groups: Counter[int], first: int, last: int) -> tuple[list[int], list[float]]:
    """All times from `first` to `last` at which a step ends, in ascending order, each with its
    utilisation."""
    ended: defaultdict[int, int] = defaultdict(int)
    for time, many in groups.items():
        computed = time * many
        ended[first] += first // time * computed
        for end in range((first // time + 1) * time, last + 1, time):
            ended[end] += computed
    workers, ends = groups.total(), sorted(ended)
    by_then = accumulate(ended[end] for end in ends)
    return ends, [all_ / (workers * end) for end, all_ in zip(ends, by_then, strict=True)]


def _lengths(steps: Mapping[int, int], times: Mapping[int, float]) -> list[float]:
    return [count * times[worker] for worker, count in steps.items()]


class Prediction(msgspec.Struct):
    """The recent step times of all workers, and the plan that is computed from them.

    The step time of a worker is the mean of its last five measurements. Its first measurement is
    dropped when the second one arrives, because the first step of a process takes many times as
    long as its others. Until every worker has been measured, all workers make one step per round.

    One rule is not in the paper: a new plan with at most half of the horizon also replaces the
    present plan. Suppose that one slow worker among a thousand becomes fast again: this hardly
    changes the utilisation, so without the rule all workers would continue to meet rarely.
    """

    _cap: int = CAP
    _recent_ns: dict[int, list[int]] = {}
    _cold: set[int] = set()
    """The workers that have been measured only once."""
    plan: StepPlan | None = None
    """The current plan; None until each worker has been measured."""

    def expect(self, worker: int) -> None:
        """Add a member that has made no step yet."""
        self._recent_ns.setdefault(worker, [])

    def on_measured(self, worker: int, step_ns: int) -> None:
        recent_ns = self._recent_ns.setdefault(worker, [])
        if worker in self._cold:
            self._cold.remove(worker)
            recent_ns.clear()
        elif not recent_ns:
            self._cold.add(worker)
        keep_last(recent_ns, max(1, step_ns), _WINDOW)

    def forget(self, worker: int) -> None:
        self._recent_ns.pop(worker, None)
        self._cold.discard(worker)

    def steps(self) -> dict[int, int]:
        """The steps of each worker in the coming round."""
        if not all(self._recent_ns.values()):
            self.plan = None
            return dict.fromkeys(self._recent_ns, 1)
        times = {worker: sum(ns) / len(ns) for worker, ns in self._recent_ns.items()}
        fresh = plan_steps(times, self._cap)
        if self.plan is None or not self._holds(self.plan, fresh, times):
            self.plan = fresh
        return dict(self.plan.steps)

    def _holds(self, kept: StepPlan, fresh: StepPlan, times: Mapping[int, float]) -> bool:
        if kept.steps.keys() != times.keys():
            return False
        lengths = _lengths(kept.steps, times)
        near = resource_usage(lengths) >= _KEEP * fresh.best
        return near and fresh.horizon > _SHORTER * max(lengths, default=0.0)
