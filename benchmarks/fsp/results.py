"""The results of the runs in README.md, and their means over the starts (initial parameters and orders
of the points).

*A figure is the geometric mean over the starts. A ratio of two policies is the geometric mean of the
ratios of the same starts. A run that has not reached its target counts with its time limit.*
"""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.fsp.specs import Spec
from benchmarks.fsp.studies import EQUAL

Result = dict[str, Any]
Slow = tuple[tuple[int, float], ...]
_LEAST_S = 0.05
"""The time between two copies of the parameters, in seconds."""


class Ratio(NamedTuple):
    """A mean ratio of seconds, and its standard error as a share of the ratio (0 for a single
    start)."""

    mean: float
    error: float


class Results:
    """The results of all runs, by problem, policy and slow workers."""

    def __init__(self, results: Iterable[Result]) -> None:
        """Runs that failed do not count as measured."""
        self._found: dict[tuple[str, str, Slow, bool, str], list[Result]] = {}
        for result in results:
            spec = Spec.read(result["spec"])
            key = (spec.problem, spec.policy, spec.slow, spec.hold_s > 0, spec.link)
            if "failed" not in result:
                self._found.setdefault(key, []).append(result)

    def starts(self, counted: Callable[[Spec], bool]) -> str:
        """From how many starts these runs were made, in words."""
        made: dict[Spec, set[int]] = {}
        for run in (run for runs in self._found.values() for run in runs):
            spec = Spec.read(run["spec"])
            if counted(replace(spec, rep=0)):
                made.setdefault(replace(spec, rep=0), set()).add(spec.rep)
        least, most = (choose(map(len, made.values()), default=0) for choose in (min, max))
        if least == most:
            return "from one start" if most == 1 else f"from {most} starts"
        return f"from {least} to {most} starts"

    def of(
        self,
        problem: str,
        policy: str,
        slow: Slow = EQUAL,
        *,
        held: bool = False,
        link: str = "",
    ) -> list[Result]:
        """The runs to the target, or those of a fixed length (`held`)."""
        return self._found.get((problem, policy, slow, held, link), [])

    def seconds(self, problem: str, policy: str, slow: Slow = EQUAL) -> float | None:
        """The mean seconds to the target; None if not measured."""
        starts = self._starts(problem, policy, slow)
        return math.exp(statistics.fmean(starts.values())) if starts else None

    def _starts(self, problem: str, policy: str, slow: Slow) -> dict[int, float]:
        """Per start, the mean logarithm of the seconds to the target."""
        found: dict[int, list[float]] = {}
        for run in self.of(problem, policy, slow):
            seconds = _limit_s(run) if run["seconds"] is None else run["seconds"]
            found.setdefault(run["spec"]["rep"], []).append(math.log(max(_LEAST_S, seconds)))
        return {start: statistics.fmean(logs) for start, logs in found.items()}

    def ratio(self, problem: str, policy: str, other: str, slow: Slow = EQUAL) -> Ratio | None:
        """The ratio of the seconds of `policy` to the seconds of `other`, from the same starts."""
        ours, theirs = (self._starts(problem, name, slow) for name in (policy, other))
        logs = [ours[start] - theirs[start] for start in sorted(ours.keys() & theirs.keys())]
        if not logs:
            return None
        error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
        return Ratio(math.exp(statistics.fmean(logs)), error)

    def cell(self, problem: str, policy: str, slow: Slow = EQUAL) -> str:
        """The mean seconds. With `>`, some of the runs have not reached their targets."""
        seconds = self.seconds(problem, policy, slow)
        if seconds is None:
            return "-"
        late = any(run["seconds"] is None for run in self.of(problem, policy, slow))
        return f"{'>' if late else ''}{seconds:.1f}"

    def median(
        self,
        problem: str,
        policy: str,
        slow: Slow,
        value: Callable[[Result], float],
        *,
        held: bool = False,
        link: str = "",
    ) -> float | None:
        """The median of a value over the runs that did not fail."""
        runs = self.of(problem, policy, slow, held=held, link=link)
        return statistics.median(value(run) for run in runs) if runs else None

    def limit_s(self, cells: Iterable[tuple[str, str, Slow]]) -> float:
        """How long the longest of these runs was."""
        return max(
            (float(run["trained_s"]) for cell in cells for run in self.of(*cell)), default=0.0
        )


def _limit_s(run: Result) -> float:
    """The time limit of a run that has not reached its target. Older results do not contain the
    limit; for these, the limit is the time that the run trained."""
    return float(run.get("limit_s", run["trained_s"]))


def machine_of(result: Result) -> str:
    return ", ".join(str(result.get("machine", "unknown")).split(", ")[:2])


def on_machine(results: list[Result], counted: Callable[[Spec], bool]) -> tuple[str, Results]:
    """The results of one machine: the one with the most different runs of this kind. If several machines
    have as many, the one with the most repetitions. Runs of different machines are not compared with
    each other."""
    made: dict[str, list[Spec]] = {}
    for result in results:
        spec = Spec.read(result["spec"])
        if "failed" not in result and counted(replace(spec, rep=0)):
            made.setdefault(machine_of(result), []).append(replace(spec, rep=0))
    if not made:
        return "", Results([])
    name = max(sorted(made), key=lambda machine: (len(set(made[machine])), len(made[machine])))
    return name, Results(result for result in results if machine_of(result) == name)
