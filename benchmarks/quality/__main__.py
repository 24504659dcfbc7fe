"""Compares the final accuracy of every policy with plain torch after the same number of passes.

    python -m benchmarks.quality [--jobs digits mnist-lr] [--seeds 3] [--at-once 2] [--docs] [--check]

Every built-in job runs under every policy and kind with its own number of passes, except
cifar10-vgg11, which would take hours. Each job also runs as an ordinary torch loop in one process,
with the same optimizer and the same global batch (batch size times workers). The mean accuracy over
the seeds must not be lower than that of plain torch by more than 1 percentage point (2 for
`digits`, whose test set has only 360 images). bspb and bspv are left out, because they make few
steps by definition. Jobs whose data is not found in $POLYRHYTHM_DATA or ../shared/data are skipped.
`--docs` writes the table to docs/quality.md. With `--check` the exit status is 1 if a result is too
low.
"""

import argparse
import importlib
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.commands import Runner, call, execute, train

POLICIES = (
    "bsp",
    "bsp --kind local",
    "bspg:N",
    "ssp:8",
    "ssp:8 --kind local",
    "ssp-restart:8",
    "ssp-restart:8 --kind local",
    "asp",
    "asp --kind local",
    "psp --kind local",
    "fsp --kind gradient",
    "fsp --kind local",
)
"""In a policy, N stands for the global batch: the batch size of the job times the number of
workers."""
JOBS = ("digits", "mnist-lr", "mnist-cnn", "fashion-mnist-lenet")
WORKERS = 3
MARGINS = {"digits": 0.02}
"""How far the accuracy may be below that of plain torch, for jobs without the usual margin."""
USUAL_MARGIN = 0.01
LIMIT_S = 1800.0


@dataclass(frozen=True)
class Run:
    job: str
    policy: str
    """The value of `--sync` with further flags; empty for plain torch."""
    seed: int
    passes: int | None = None
    """The number of passes; None: the job's default."""


def accuracy_of(run: Run, runner: Runner = execute) -> float:
    """The final accuracy on the test set."""
    if run.policy:
        seed = str(run.seed)
        passes = () if run.passes is None else ("--epochs", str(run.passes))
        told = train(
            *(run.job, "--workers", str(WORKERS), "--sync", *_flags(run), "--seed", seed),
            *("--threads", "1", *passes),
            timeout_s=LIMIT_S,
            runner=runner,
        )
    else:
        words = (sys.executable, "-m", "benchmarks.quality.plain", run.job, str(WORKERS))
        passes = () if run.passes is None else (str(run.passes),)
        told = call([*words, str(run.seed), *passes], LIMIT_S, runner)
    if told.get("failed") or told.get("accuracy") is None:
        raise SystemExit(f"{run} failed: {told.get('failed') or 'it reported no accuracy'}")
    return float(told["accuracy"])


def _flags(run: Run) -> list[str]:
    """The policy of a run, with the global batch of its job."""
    points = WORKERS * int(importlib.import_module(_module(run.job)).BATCH_SIZE)
    return run.policy.replace(":N", f":{points}").split()


def find_data(jobs: Iterable[str]) -> list[str]:
    """The jobs whose data sets are found."""
    places = (os.environ.get("POLYRHYTHM_DATA"), str(readme.ROOT.parent / "shared" / "data"))
    found = []
    for job in jobs:
        wanted = importlib.import_module(_module(job)).DEFAULTS.get("data", [])
        for place in places:
            if place and all((Path(place) / name).is_dir() for name in wanted):
                os.environ["POLYRHYTHM_DATA"] = place
                found.append(job)
                break
        else:
            if not wanted:
                found.append(job)
            else:
                report.say(f"{job} is skipped: there is no data for it")
    return found


def _module(job: str) -> str:
    return f"polyrhythm.learn.jobs.{job.replace('-', '_')}"


def measure(
    jobs: Sequence[str], policies: Sequence[str], seeds: int, at_once: int
) -> dict[str, dict[str, list[float]]]:
    """The accuracies by job and policy, one for each seed. The empty policy is plain torch. Runs of
    different policies alternate, so that a disturbance of the host affects several policies."""
    runs = [
        Run(job, policy, seed)
        for job in jobs
        for seed in range(seeds)
        for policy in ("", *policies)
    ]
    results: dict[str, dict[str, list[float]]] = {}

    def tell(run: Run) -> tuple[Run, float]:
        accuracy = accuracy_of(run)
        report.say(f"{run.job}, {run.policy or 'plain torch'}, seed {run.seed}: {accuracy:.4f}")
        return run, accuracy

    with ThreadPoolExecutor(at_once) as pool:
        for run, accuracy in pool.map(tell, runs):
            results.setdefault(run.job, {}).setdefault(run.policy, []).append(accuracy)
    return results


def too_low(results: dict[str, dict[str, list[float]]]) -> list[str]:
    """Lines about the results that are lower than plain torch by more than their margin."""
    return [
        f"{job} under {policy}: {statistics.mean(values):.4f}, plain torch {plain:.4f}"
        for job, by_policy in results.items()
        for plain in (statistics.mean(by_policy[""]),)
        for policy, values in by_policy.items()
        if policy and statistics.mean(values) < plain - MARGINS.get(job, USUAL_MARGIN)
    ]


def table(results: dict[str, dict[str, list[float]]], seeds: int) -> str:
    jobs = list(results)
    policies = list(next(iter(results.values())))
    rows = [
        f"Accuracy on the test set after the job's own number of passes, {WORKERS} workers, mean of"
        f" {seeds} seeds (least to most), and the difference to plain torch in points"
        f" ({report.machine()}):",
        "",
        f"| | {' | '.join(f'`{job}`' for job in jobs)} |",
        f"|---|{'---|' * len(jobs)}",
    ]
    for policy in policies:
        cells = [_cell(results[job], policy, MARGINS.get(job, USUAL_MARGIN)) for job in jobs]
        rows.append(f"| {f'`{policy}`' if policy else 'plain torch'} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(by_policy: dict[str, list[float]], policy: str, margin: float) -> str:
    values = by_policy[policy]
    mean = statistics.mean(values)
    text = f"{mean:.2%} ({min(values):.1%} to {max(values):.1%})"
    if not policy:
        return text
    difference = mean - statistics.mean(by_policy[""])
    points = f"{100 * difference:+.1f}"
    return f"{text}, **{points}: too low**" if difference < -margin else f"{text}, {points}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument(
        "--policies", nargs="+", default=POLICIES, help="each as one word in quotes"
    )
    parser.add_argument("--seeds", type=report.at_least_one, default=3)
    parser.add_argument(
        "--at-once", type=report.at_least_one, default=1, help="number of concurrent runs"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the table to docs/quality.md")
    parser.add_argument("--check", action="store_true", help="end with 1 if a result is too low")
    args = parser.parse_args()
    jobs = find_data(args.jobs)
    if not jobs:
        raise SystemExit("there is no data for any of these jobs")
    results = measure(jobs, args.policies, args.seeds, args.at_once)
    shown = table(results, args.seeds)
    low: list[str] = too_low(results)
    given: dict[str, Any] = {"results": results, "too_low": low}
    report.give(given, shown, args.json)
    if args.docs:
        readme.write("quality", shown, readme.ROOT / "docs" / "quality.md")
    for line in low:
        report.say(f"too low: {line}")
    if low and args.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
