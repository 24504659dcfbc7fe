"""Compares synchronous training with local training that uses an outer optimizer: the final
accuracy at an equal number of training points, and the bytes that workers exchange.

    python -m benchmarks.outer [--job fashion-mnist-lenet] [--workers 2] [--local-steps 50]
                               [--epochs N] [--seeds 1] [--json FILE] [--check]

`bsp` exchanges gradients after every step. The other rows make local steps with the job's own
optimizer between two exchanges; their servers add the average of the changes, or make a step of the
outer optimizer with it. The outer optimizer has the values that DiLoCo's authors recommend, and the
workers' optimizer is the job's own: nothing is tuned to the test set. With `--check`, the exit
status is 1 if the accuracy with the outer optimizer is more than 1 percentage point below that of
`bsp`, or if training with it exchanges more than 1.2 times the bytes of `bsp` divided by the number
of local steps.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.commands import Runner, execute, train_seeded
from benchmarks.quality.__main__ import find_data

OUTER = "nesterov:lr=0.7,momentum=0.9"
MARGIN = 0.01
MOST_BYTES = 1.2
"""The allowed number of bytes, as a multiple of the bytes of `bsp` divided by the number of local
steps. It is above 1, because workers also pull the first and the last version."""
_LIMIT_S = 1800.0

Results = dict[str, list[dict[str, Any]]]


def rows(local_steps: int) -> dict[str, tuple[str, ...]]:
    """The flags of every row of the table."""
    local = ("--kind", "local", "--local-steps", str(local_steps))
    return {
        "bsp": ("--kind", "gradient"),
        f"{local_steps} local steps, average": local,
        f"{local_steps} local steps, --outer {OUTER}": (*local, "--outer", OUTER),
    }


def run(
    job: str,
    workers: int,
    flags: tuple[str, ...],
    epochs: int | None,
    seed: int,
    runner: Runner = execute,
) -> dict[str, Any]:
    limits: dict[str, Any] = {"timeout_s": _LIMIT_S, "runner": runner}
    told = train_seeded(job, workers, *flags, epochs=epochs, seed=seed, **limits)
    return {
        "accuracy": told["accuracy"],
        "points": told["points"],
        "rounds": told["rounds"],
        "bytes": told["bytes_pushed"] + told["bytes_pulled"],
    }


def mean(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.mean(float(each[name]) for each in runs)


def table(results: Results) -> str:
    first = next(iter(results.values()))
    lines = ["| | accuracy | rounds | MB exchanged | of bsp's bytes |", "|---|---|---|---|---|"]
    for name, runs in results.items():
        share = mean(runs, "bytes") / mean(first, "bytes")
        lines.append(
            f"| {name} | {mean(runs, 'accuracy'):.2%} | {mean(runs, 'rounds'):.0f} |"
            f" {mean(runs, 'bytes') / 1e6:.1f} | {share:.4f} |"
        )
    return "\n".join(lines)


def failings(results: Results, local_steps: int) -> list[str]:
    """Lines about the targets that the outer optimizer misses."""
    synchronous, _, outer = results.values()
    found = []
    if mean(outer, "points") != mean(synchronous, "points"):
        found.append("the rows have different numbers of training points")
    if mean(outer, "accuracy") < mean(synchronous, "accuracy") - MARGIN:
        found.append(f"its accuracy is more than {MARGIN:.0%} below that of bsp")
    share = mean(outer, "bytes") / mean(synchronous, "bytes")
    if share > MOST_BYTES / local_steps:
        found.append(f"it exchanges {share:.4f} of bsp's bytes, more than 1/{local_steps}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="fashion-mnist-lenet")
    parser.add_argument("--workers", type=report.at_least_one, default=2)
    parser.add_argument("--local-steps", type=report.at_least_one, default=50)
    parser.add_argument("--epochs", type=report.at_least_one, default=None)
    parser.add_argument("--seeds", type=report.at_least_one, default=1)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--check", action="store_true")
    told = parser.parse_args()
    if not find_data([told.job]):
        return 1
    results: Results = {}
    for seed in range(told.seeds):
        for name, flags in rows(told.local_steps).items():
            done = run(told.job, told.workers, flags, told.epochs, seed)
            report.say(f"{name}, seed {seed}: {done}")
            results.setdefault(name, []).append(done)
    found = failings(results, told.local_steps)
    for line in found:
        report.say(f"with the outer optimizer {line}")
    result = {"machine": report.machine(), "job": told.job, "results": results, "failings": found}
    report.give(result, table(results), told.json)
    return 1 if told.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
