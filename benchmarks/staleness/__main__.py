"""Measures how asynchrony affects training with momentum and with Adam, and what the correction of
the momentum changes.

    python -m benchmarks.staleness [--workers 2 4 8] [--seeds 2] [--at-once 1] [--json FILE] [--docs]

Two jobs are trained: `digits` (SGD, momentum 0.9) and `mnist-lr` (Adam; skipped if its data is not
found). The policies are `bsp`, `asp` with momentum that decays once per round (the default), and
`asp` with momentum that decays once per contribution. Each runs at the job's own learning rate and
at four times that rate, with equal workers and with one worker that is four times slower. All runs
make the same number of passes.

Steps are made longer, so that all workers together use at most about half of the cores. So the runs
differ in staleness, and not in how much of the cores a worker gets. `--docs` writes the table and
the curves to benchmarks/staleness/README.md.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.commands import train
from benchmarks.quality.__main__ import find_data
from benchmarks.stragglers.curves import draw_curves

JOBS = {"digits": (0.1, 15, "SGD, momentum 0.9"), "mnist-lr": (5e-3, 2, "Adam")}
"""Per job: its default learning rate, the passes of a run, and the optimizer."""
POLICIES = {
    "bsp": ("--sync", "bsp"),
    "asp, decay per round": ("--sync", "asp"),
    "asp, decay per contribution": ("--sync", "asp", "--async-momentum", "contribution"),
}
RATES = (1, 4)
SPEEDS = ("equal", "one 4x slower")
_STEP_CORES_S = 0.003
"""The seconds of processor time of a step with its exchange, on the slowest host that was
measured."""
_LIMIT_S = 300.0
PICTURES = readme.ROOT / "benchmarks" / "staleness" / "pictures"


@dataclass(frozen=True)
class Setting:
    job: str
    workers: int
    speeds: str
    rate: int
    policy: str


def step_ms(workers: int, at_once: int, cores: int) -> int:
    """The milliseconds that a step must last, so that all workers together use at most about half
    of the cores."""
    return max(10, round(1000 * workers * at_once * _STEP_CORES_S / (0.5 * cores)))


def run(setting: Setting, seed: int, pad_ms: int) -> dict[str, Any]:
    rate, passes, _ = JOBS[setting.job]
    slow = () if setting.speeds == SPEEDS[0] else ("--slow", f"{setting.workers - 1}=4x")
    told = train(
        *(setting.job, "--workers", str(setting.workers), "--servers", "1", *slow),
        *(*POLICIES[setting.policy], "--epochs", str(passes), "--seed", str(seed)),
        *("--set", f"rate={rate * setting.rate}", "--min-step", f"{pad_ms}ms", "--threads", "1"),
        timeout_s=_LIMIT_S,
    )
    curve, points = [], 0
    for line in told["journal"]:
        if line["what"] == "rounds":
            points += line["points"]
            if line["objective"] is not None:
                curve.append((points, line["objective"]))
    return {"accuracy": told.get("accuracy"), "failed": told.get("failed"), "curve": curve}


def measure(
    jobs: Sequence[str], workers: Sequence[int], seeds: int, at_once: int, cores: int
) -> dict[Setting, list[dict[str, Any]]]:
    settings = [
        Setting(job, count, speeds, rate, policy)
        for count in workers
        for job in jobs
        for speeds in SPEEDS
        for rate in RATES
        for policy in POLICIES
    ]
    results: dict[Setting, list[dict[str, Any]]] = {}

    def tell(item: tuple[Setting, int]) -> tuple[Setting, dict[str, Any]]:
        setting, seed = item
        told = run(setting, seed, step_ms(setting.workers, at_once, cores))
        report.say(f"{setting} seed {seed}: {told['accuracy']} {told['failed'] or ''}")
        return setting, told

    with ThreadPoolExecutor(at_once) as pool:
        for setting, told in pool.map(tell, [(s, seed) for s in settings for seed in range(seeds)]):
            results.setdefault(setting, []).append(told)
    return results


def table(results: dict[Setting, list[dict[str, Any]]], seeds: int) -> str:
    rows = [
        f"Final accuracy, mean of {seeds} seeds ({report.machine()}); a run that failed counts as 0:",
        "",
        f"| job | workers | speeds | rate | {' | '.join(POLICIES)} |",
        f"|---|---|---|---|{'---|' * len(POLICIES)}",
    ]
    shown = dict.fromkeys((s.job, s.workers, s.speeds, s.rate) for s in results)
    for job, count, speeds, rate in sorted(shown):
        cells = [_mean(results[Setting(job, count, speeds, rate, policy)]) for policy in POLICIES]
        named = f"{job}, {JOBS[job][2]}"
        rows.append(f"| {named} | {count} | {speeds} | x{rate} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _mean(runs: list[dict[str, Any]]) -> str:
    return f"{statistics.mean(run['accuracy'] or 0.0 for run in runs):.3f}"


def draw(results: dict[Setting, list[dict[str, Any]]], job: str) -> str:
    """A picture of the objective over the number of visited points, for the largest number of
    workers and the highest learning rate. The curve of each policy is that of the first seed."""
    workers = max(setting.workers for setting in results if setting.job == job)
    curves = {
        policy: [(points / 1000, min(value, 3.0)) for points, value in runs[0]["curve"]]
        for setting, runs in results.items()
        for policy in (setting.policy,)
        if (setting.job, setting.workers, setting.speeds, setting.rate)
        == (job, workers, SPEEDS[0], RATES[-1])
    }
    return draw_curves(curves, unit="thousand points")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--workers", nargs="+", type=report.at_least_one, default=[2, 4, 8])
    parser.add_argument("--seeds", type=report.at_least_one, default=2)
    parser.add_argument(
        "--at-once", type=report.at_least_one, default=1, help="number of concurrent runs"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    jobs = find_data(args.jobs)
    cores = len(os.sched_getaffinity(0))
    results = measure(jobs, args.workers, args.seeds, args.at_once, cores)
    shown = table(results, args.seeds)
    given = [{**vars_of(setting), "runs": runs} for setting, runs in results.items()]
    report.give({"settings": given}, shown, args.json)
    if args.docs:
        readme.write("staleness", shown, readme.ROOT / "benchmarks" / "staleness" / "README.md")
        for job in jobs:
            (PICTURES / f"staleness-{job}.svg").write_text(draw(results, job))


def vars_of(setting: Setting) -> dict[str, Any]:
    return {name: getattr(setting, name) for name in setting.__dataclass_fields__}


if __name__ == "__main__":
    main()
