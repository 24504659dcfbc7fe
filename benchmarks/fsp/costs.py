"""The processor time that migration costs: the table `cost` of benchmarks/fsp/README.md."""

import statistics

from benchmarks.fsp.results import Result, Results, Slow
from benchmarks.fsp.studies import COST, COSTED, EQUAL, SLOW_4X, SLOW_8X

OFF = COST[0]
_SLOW_WORKER = 3


def cost_lines(found: Results) -> list[list[str]]:
    """One line for each problem, slow worker and setting of `--migrate`. It says how much more processor
    time a point takes than with `--migrate off`, on the fast workers and on the slow one."""
    lines = []
    for slow in (EQUAL, SLOW_4X, SLOW_8X):
        for problem in COSTED:
            for policy in COST[1:]:
                fast, source = (
                    cost(found, problem, policy, slow, source=source) for source in (False, True)
                )
                if fast and source:
                    setting = f"{slow[0][1]:g}x" if slow else "equal"
                    way = policy.rpartition(" ")[2]
                    lines.append([problem, setting, way, _told(fast), _told(source)])
    return lines


def cost(found: Results, problem: str, policy: str, slow: Slow, *, source: bool) -> list[float]:
    """The processor time per point, divided by that with `--migrate off`, for each start. `source`:
    measure the slow worker, which gives points away; otherwise the other workers together."""
    runs, base = (
        {run["spec"]["rep"]: run for run in found.of(problem, name, slow, held=True)}
        for name in (policy, OFF)
    )
    return [
        point_s(runs[start], source=source) / point_s(base[start], source=source)
        for start in sorted(runs.keys() & base.keys())
    ]


def point_s(run: Result, *, source: bool) -> float:
    """The processor time per visited point."""
    workers = [
        worker for number, worker in enumerate(run["workers"]) if (number == _SLOW_WORKER) == source
    ]
    visited = sum(worker.get("points", 0) for worker in workers)
    return float(sum(worker.get("cpu_s", 0.0) for worker in workers)) / max(1, visited)


def _told(ratios: list[float]) -> str:
    """The median, and the least and the most of several starts. A median, because a single run beside
    other runs may be disturbed."""
    median = f"{statistics.median(ratios) - 1:+.1%}"
    if len(ratios) == 1:
        return median
    return f"{median} ({min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%})"
