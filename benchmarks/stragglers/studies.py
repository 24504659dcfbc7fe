"""Compares the policies on workers of unequal speed, as in PSP's Table 2, Figs. 6 and 8, and FSP's
Fig. 9.

    python -m benchmarks.stragglers.studies speeds-3|speeds-6|skew|slow [--reps 1] [--docs]

`speeds-3` and `speeds-6`: 3 and 6 workers whose steps take times in the ratio 1:2:3. `skew`: one of
four workers is 1, 2, 4 or 8 times slower. `slow`: 1, 2 or 3 of four workers are four times slower.
A step of a worker that is not slow takes 10 ms. The job is `mnist-lr`, or `digits` if MNIST is not
found. A run ends at an accuracy of 92%. All policies run one after the other, `--reps` times.

`--docs` writes the table between this study's markers in README.md of this folder and draws its picture.
Seconds are medians. Utilisation is PSP's Eq. 14. `possible` compares the batches per second with
those that the workers could make if no worker ever waited and only computing took time.
"""

import argparse
import importlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.commands import call
from benchmarks.stragglers.__main__ import START_S, find_data
from benchmarks.stragglers.curves import draw_bars, draw_curves
from benchmarks.stragglers.task import MIN_STEP
from polyrhythm.learn.load import JOBS
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.state import fold

TARGET = 0.92
LIMIT_S = 30.0
STEPS_PER_S = 100
"""The steps per second of a worker that is not slow."""
BASELINES = ("bsp", "asp", "ssp-restart:8", "psp", "fsp", "fsp --kind gradient")
"""The policies that PSP compares (with its interpretation of SSP, `ssp-restart`), and FSP with both
kinds."""
OURS = ("bsp", "psp", "fsp")
DOCS = readme.ROOT / "benchmarks" / "stragglers" / "README.md"


@dataclass(frozen=True)
class Setting:
    """The speeds of the workers. `factors`: how many times as long as usual each worker's steps take."""

    name: str
    factors: tuple[int, ...]

    @property
    def flags(self) -> list[str]:
        slow = [f"{worker}={factor}x" for worker, factor in enumerate(self.factors) if factor > 1]
        return [word for item in slow for word in ("--slow", item)]

    @property
    def most_per_s(self) -> float:
        return sum(STEPS_PER_S / factor for factor in self.factors)


@dataclass(frozen=True)
class Study:
    settings: tuple[Setting, ...]
    policies: tuple[str, ...]


STUDIES = {
    "speeds-3": Study((Setting("3 workers, 1:2:3", (1, 2, 3)),), BASELINES),
    "speeds-6": Study((Setting("6 workers, 1:2:3", (1, 1, 2, 2, 3, 3)),), BASELINES),
    "skew": Study(tuple(Setting(f"{x}x", (1, 1, 1, x)) for x in (1, 2, 4, 8)), OURS),
    "slow": Study(
        tuple(Setting(f"{n} of 4 slow", (1,) * (4 - n) + (4,) * n) for n in (1, 2, 3)), OURS
    ),
}


def _batch_size(job: str) -> int:
    return int(importlib.import_module(JOBS[job]).BATCH_SIZE)


def run_one(policy: str, setting: Setting, job: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = call(
            [
                *(str(Path(sys.executable).parent / "polyrhythm"), "train", job),
                *("--workers", str(len(setting.factors)), "--servers", "1"),
                *("--sync", *policy.split(), "--min-step", MIN_STEP, *setting.flags),
                *("--target-accuracy", str(TARGET), "--max-seconds", str(LIMIT_S)),
                *("--seed", str(seed), "--runs-dir", folder, "--name", "run", "--json"),
            ],
            LIMIT_S + START_S,
        )
        if run.get("failed"):
            return {"failed": run["failed"]}
        state = fold(read_journal(Path(folder) / "run" / "journal.jsonl"))
    opened_s = state.opened_s or 0.0
    return {
        "seconds": run["seconds_to_target"],
        "usage": run["resource_usage"]["overall"],
        "possible": run["points_per_s"] / _batch_size(job) / setting.most_per_s,
        "spread_ms": run["arrival_spread_ms"],
        "curve": [
            (round(point.at_s - opened_s, 3), point.objective)
            for point in state.curve
            if point.objective is not None
        ],
    }


def measure(name: str, job: str, reps: int, say: Callable[[str], None]) -> dict[str, Any]:
    study = STUDIES[name]
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for rep in range(reps):
        for setting in study.settings:
            for policy in study.policies:
                run = run_one(policy, setting, job, rep)
                runs.setdefault(setting.name, {}).setdefault(policy, []).append(run)
                say(f"{rep + 1}/{reps} {setting.name}, {policy}: {told(run)}")
    return {
        "study": name,
        "machine": report.machine(),
        "job": job,
        "reps": reps,
        "runs": runs,
    }


def told(run: dict[str, Any]) -> str:
    if "failed" in run:
        return str(run["failed"])
    return json.dumps({key: value for key, value in run.items() if key != "curve"})


def middle(runs: list[dict[str, Any]], key: str) -> float | None:
    """The median of a value; None if most runs failed or did not reach the target."""
    values = sorted(float("inf") if run.get(key) is None else float(run[key]) for run in runs)
    found = statistics.median_high(values)
    return None if found == float("inf") else found


def table(result: dict[str, Any]) -> str:
    command = f"python -m benchmarks.stragglers.studies {result['study']}"
    rows = [
        f"`{result['job']}`, steps of 10 ms, {result['reps']} repetition(s) ({result['machine']});"
        f" `{command} --reps {result['reps']} --docs`:",
        "",
        f"| workers | policy | seconds to {TARGET:.0%}, all | median | utilisation | of possible |"
        " spread of arrivals |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, policies in result["runs"].items():
        for policy, runs in policies.items():
            every = [_seconds(run.get("seconds")) for run in runs]
            spread = middle(runs, "spread_ms")
            cells = [
                *(setting, policy, ", ".join(every), _seconds(middle(runs, "seconds"))),
                *(_percent(middle(runs, key)) for key in ("usage", "possible")),
                "-" if spread is None else f"{spread:.1f} ms",
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _seconds(value: float | None) -> str:
    return f"over {LIMIT_S:.0f}" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def picture(result: dict[str, Any]) -> str:
    """Curves of the objective if the study has one setting, bars if it has several."""
    if len(result["runs"]) == 1:
        (policies,) = result["runs"].values()
        return draw_curves({policy: runs[0].get("curve", []) for policy, runs in policies.items()})
    seconds = {
        setting: {policy: middle(runs, "seconds") for policy, runs in policies.items()}
        for setting, policies in result["runs"].items()
    }
    return draw_bars(seconds, LIMIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=sorted(STUDIES))
    parser.add_argument("--reps", type=report.at_least_one, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    result = measure(args.study, find_data(), args.reps, report.say)
    report.give(result, table(result), args.json)
    if args.docs:
        write_docs(result)


def write_docs(result: dict[str, Any]) -> None:
    name = result["study"]
    path = DOCS.parent / "pictures" / f"stragglers-{name}.svg"
    path.write_text(picture(result))
    shown = f"![{name}](pictures/{path.name})"
    readme.write(name, f"{table(result)}\n\n{shown}", DOCS)


if __name__ == "__main__":
    main()
