"""Runs of the job within a time limit, and the flags that the benchmarks with CIFAR-10 share."""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.cifar.data import Prepared, prepare
from benchmarks.commands import Runner, call, execute
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.state import fold, history_of

JOB = Path(__file__).with_name("job.py")
DATA = readme.ROOT.parent / "shared" / "data" / "cifar10"
START_S = 45.0
"""How many seconds a run may take for starting and ending, in addition to training."""
_LEAST_S = 5.0
Run = dict[str, Any]


class Budget:
    """The time that is left of `--minutes`."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = clock() + 60 * minutes

    def seconds(self, wanted_s: float) -> float | None:
        """How long the next run may train: as long as it wants, or less. None: there is no time for
        another run."""
        left_s = self._until_s - self._clock() - START_S
        return None if left_s < _LEAST_S else min(wanted_s, left_s)


@dataclass(frozen=True)
class Case:
    """One row of a table. `flags`: the flags of the policy and of the workers."""

    name: str
    flags: tuple[str, ...]


def run(
    case: Case,
    data: Prepared,
    *,
    measure: str,
    seed: int,
    seconds: float,
    options: Sequence[str] = (),
    runner: Runner = execute,
) -> Run:
    """Train once. `measure`: the metric that is evaluated while the job trains. The result has the
    curve of this metric over seconds, and the device and the speed of every worker."""
    with tempfile.TemporaryDirectory() as folder:
        told = call(
            [
                *(sys.executable, "-m", "polyrhythm", "train", str(JOB), *case.flags, *options),
                *("--set", f"images={data.folder.resolve()}", "--set", f"measure={measure}"),
                *("--max-seconds", str(seconds), "--seed", str(seed)),
                *("--runs-dir", folder, "--name", "run", "--json"),
            ],
            seconds + START_S,
            runner,
        )
        journal = Path(folder) / "run" / "journal.jsonl"
        lines = list(read_journal(journal)) if journal.exists() else []
    if told.get("failed"):
        return {"failed": told["failed"]}
    opened_s = fold(lines).opened_s or 0.0
    curve = [
        (round(record["at_s"] - opened_s, 3), record[measure])
        for record in history_of(lines)
        if record.get(measure) is not None
    ]
    return {
        "seconds_to_target": told["seconds_to_target"],
        "points_per_s": told["points_per_s"],
        "usage": told["resource_usage"]["overall"],
        "workers": {
            name: f"{each['device']}: {each['points_per_s']:.0f} points/s"
            for name, each in told["per_worker"].items()
        },
        "curve": curve,
    }


def told(run: Run) -> str:
    """A run in one line."""
    return json.dumps({name: value for name, value in run.items() if name != "curve"})


def middle(values: Sequence[float | None]) -> float | None:
    """The median. A run without a value counts as infinitely long. Returns None if most runs have
    no value."""
    ordered = sorted(float("inf") if value is None else value for value in values)
    found = statistics.median_high(ordered) if ordered else float("inf")
    return None if found == float("inf") else found


def as_seconds(value: float | None, limit_s: float) -> str:
    return f"over {limit_s:.0f}" if value is None else f"{value:.1f}"


# -- flags and output --------------------------------------------------------------------------


def parser_of(description: str | None, minutes: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="The folder with CIFAR-10.")
    parser.add_argument("--out", type=Path, required=True, help="The folder of the results.")
    parser.add_argument("--reps", type=report.at_least_one, default=1)
    parser.add_argument("--minutes", type=float, default=minutes, help="The limit of all runs.")
    parser.add_argument("--images", type=report.at_least_one, help="Use only this many images.")
    parser.add_argument("--model", choices=("vgg11", "small"), default="vgg11")
    parser.add_argument("--check", action="store_true", help="Status 1 if a target is missed.")
    return parser


def options_of(args: argparse.Namespace) -> tuple[str, ...]:
    """The options of the job that every run has."""
    return (
        "--set",
        f"model={args.model}",
        "--set",
        f"batch={args.batch}",
        "--set",
        f"rate={args.rate}",
    )


def data_of(args: argparse.Namespace, folder: Path) -> Prepared:
    began_s = time.monotonic()
    data = prepare(args.data, folder, args.images)
    report.say(f"{data.name}: read in {time.monotonic() - began_s:.1f} s")
    return data


def devices() -> str:
    """The GPU of this machine, if there is one."""
    import torch

    built = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    there = built and torch.cuda.device_count() > 0
    return torch.cuda.get_device_name(0) if there else "no GPU"


def write(out: Path, name: str, result: dict[str, Any], table: str) -> None:
    """Write the results so far as JSON, and the table as Markdown. This is called after every run,
    because a time limit may end the program."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result, indent=1))
    (out / f"{name}.md").write_text(table + "\n")
