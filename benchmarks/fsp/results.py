"""The results of runs of docs/fsp.md: which were measured, and their medians."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from benchmarks.fsp.specs import Spec
from benchmarks.fsp.studies import EQUAL

Result = dict[str, Any]
Slow = tuple[tuple[int, float], ...]
NEVER = "not reached"


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
        """The median of the seconds to the target; None if it was not reached, or not measured."""
        runs = self.of(problem, policy, slow)
        if not runs:
            return None
        seconds = (math.inf if run["seconds"] is None else float(run["seconds"]) for run in runs)
        found = statistics.median(seconds)
        return found if math.isfinite(found) else None

    def cell(self, problem: str, policy: str, slow: Slow = EQUAL) -> str:
        if not self.of(problem, policy, slow):
            return "-"
        seconds = self.seconds(problem, policy, slow)
        return NEVER if seconds is None else f"{seconds:.1f}"

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


def machine_of(result: Result) -> str:
    return ", ".join(str(result.get("machine", "unknown")).split(", ")[:2])


def on_machine(results: list[Result], counted: Callable[[Spec], bool]) -> tuple[str, Results]:
    """The results of the machine that has made the most different runs of some kind, or the most
    repetitions of them. Runs of different machines are not compared with each other."""
    made: dict[str, list[Spec]] = {}
    for result in results:
        spec = Spec.read(result["spec"])
        if "failed" not in result and counted(replace(spec, rep=0)):
            made.setdefault(machine_of(result), []).append(replace(spec, rep=0))
    if not made:
        return "", Results([])
    name = max(sorted(made), key=lambda machine: (len(set(made[machine])), len(made[machine])))
    return name, Results(result for result in results if machine_of(result) == name)
