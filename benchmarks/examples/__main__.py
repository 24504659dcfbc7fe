"""Compares the scripts of `examples/` under every policy with plain torch.

    python -m benchmarks.examples [--only gan lbfgs] [--seeds 3] [--parallel 2] [--docs] [--check]

Every script runs under bsp, asp, ssp:4, psp and fsp with 3 workers and 2 servers. It also runs in
plain torch, in one process (`benchmarks.examples.stand_in`): the same code, with the same number of
passes, and with batches as large as those of all workers together. So all runs of a script visit
the same number of training points. No run may be worse than the mean of plain torch by more than
the tolerance of the script (`benchmarks/examples/catalogue.py`).

Each result is written to `--results` as soon as it is known. If the command is stopped and started
again, it makes only the missing runs; a script that has changed, or flags that have changed, make a
run missing. `--anew` makes all runs again. With `--only`, the table also has the other scripts
whose results are known. `--docs` writes the table to docs/examples.md. With
`--check` the exit status is 1 if a run is too bad.
"""

import argparse
import hashlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.commands import Runner, call, execute, train
from benchmarks.examples.catalogue import EXAMPLES, POLICIES, SERVERS, WORKERS, Example

PLAIN = "plain torch"
OWN_BATCH = "plain torch, the script's own batch"
LIMIT_S = 300.0
RESULTS = readme.ROOT / "runs" / "examples.json"
DOCUMENT = readme.ROOT / "docs" / "examples.md"

Results = dict[str, dict[str, list[dict[str, Any]]]]
"""The results by script and policy, one for each seed."""


@dataclass(frozen=True)
class Run:
    example: Example
    policy: str
    """The value of `--sync`, PLAIN or OWN_BATCH."""
    seed: int

    @property
    def words(self) -> tuple[str, ...]:
        """The flags after the name of the script."""
        if self.policy == PLAIN:
            return ("--workers", str(WORKERS), "--seed", str(self.seed))
        if self.policy == OWN_BATCH:
            return ("--workers", "1", "--seed", str(self.seed))
        return (
            *("--workers", str(WORKERS), "--servers", str(SERVERS), "--threads", "1"),
            *(*self.example.words(self.policy), "--seed", str(self.seed)),
        )

    @property
    def key(self) -> str:
        """What the result depends on: the flags and the contents of the script."""
        contents = hashlib.sha256(self.example.path.read_bytes()).hexdigest()[:12]
        return f"{self.example.file} {self.policy}: {' '.join(self.words)} ({contents})"

    def __str__(self) -> str:
        return f"{self.example.name}, {self.policy}, seed {self.seed}"


def result_of(run: Run, runner: Runner = execute) -> dict[str, Any]:
    """Make a run. Returns the `value` of the measure, the number of `points` and the `spread` of
    the workers' reports, or why the run `failed`."""
    example, script = run.example, str(run.example.path)
    if run.policy in (PLAIN, OWN_BATCH):
        command = [sys.executable, "-m", "benchmarks.examples.stand_in", script, *run.words]
        told = call(command, LIMIT_S, runner)
    elif example.path.suffix == ".ipynb":
        pairs = {"sync": run.policy, "seed": run.seed, "workers": WORKERS, "servers": SERVERS}
        options = [f"--set={name}={value}" for name, value in pairs.items()]
        command = [sys.executable, "-m", "benchmarks.examples.notebook", script, *options]
        told = call(command, LIMIT_S, runner)
    else:
        told = train(script, *run.words, timeout_s=LIMIT_S, runner=runner)
    if told.get("failed") or told.get("worker_failures"):
        return {"failed": str(told.get("failed") or told["worker_failures"])}
    if "journal" in told:
        return _from_journal(told["journal"], example.measure)
    if example.measure not in told["metrics"]:
        return {"failed": f"it reported no {example.measure}"}
    return {"value": told["metrics"][example.measure], "points": told["points"], "spread": 0.0}


def _from_journal(journal: list[dict[str, Any]], measure: str) -> dict[str, Any]:
    """The mean of the last values of all workers, and their range. The range is zero if all workers
    end with the same model."""
    last = {
        line["name"]: line["metrics"][measure]
        for line in journal
        if line["what"] == "reported" and measure in line["metrics"]
    }
    if not last:
        return {"failed": f"no worker reported {measure}"}
    return {
        "value": statistics.fmean(last.values()),
        "points": sum(line["points"] for line in journal if line["what"] == "rounds"),
        "spread": max(last.values()) - min(last.values()),
    }


class Kept:
    """The results that are already known, in a file."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        self._path = path
        self._lock = threading.Lock()
        known = path.exists() and not anew
        self._results: dict[str, dict[str, Any]] = json.loads(path.read_text()) if known else {}

    def get(self, run: Run) -> dict[str, Any] | None:
        return self._results.get(run.key)

    def put(self, run: Run, result: dict[str, Any]) -> None:
        """Keep a result, unless the run failed."""
        if "failed" in result:
            return
        with self._lock:
            self._results[run.key] = result
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self._results, indent=1))
            new.replace(self._path)


def runs_of(example: Example, policies: Sequence[str], seeds: int) -> list[Run]:
    return [
        Run(example, policy, seed)
        for seed in range(seeds)
        for policy in (PLAIN, OWN_BATCH, *policies)
    ]


def measure(runs: Sequence[Run], parallel: int, kept: Kept) -> Results:
    """Make all runs whose results are not known. Returns all results."""
    missing = [run for run in runs if kept.get(run) is None]
    report.say(f"{len(runs)} runs, {len(missing)} of them to make")
    failed: dict[str, dict[str, Any]] = {}
    done = 0

    def make(run: Run) -> None:
        nonlocal done
        began = time.monotonic()
        result = result_of(run)
        kept.put(run, result)
        if "failed" in result:
            failed[run.key] = result
        done += 1
        told = result.get("failed") or f"{run.example.measure} {result['value']:.4f}"
        took = time.monotonic() - began
        report.say(f"{done}/{len(missing)} {run}: {told} ({took:.0f} s)")

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(make, missing))
    results: Results = {}
    for run in runs:
        result = failed.get(run.key) or kept.get(run)
        assert result is not None
        results.setdefault(run.example.name, {}).setdefault(run.policy, []).append(result)
    return results


def outside(results: Results) -> list[str]:
    """Lines about runs that failed, that are too bad, or that visited another number of points than
    plain torch."""
    lines = []
    for name, by_policy in results.items():
        example, plain = EXAMPLES[name], by_policy[PLAIN]
        for policy, made in by_policy.items():
            for seed, result in enumerate(made):
                if reason := _wrong(example, plain, policy, result):
                    lines.append(f"{name} under {policy}, seed {seed}: {reason}")
    return lines


def _wrong(
    example: Example, plain: list[dict[str, Any]], policy: str, result: dict[str, Any]
) -> str:
    """Why a result is not as it should be; empty if it is."""
    if "failed" in result:
        return f"it failed: {result['failed']}"
    if policy in (PLAIN, OWN_BATCH) or any("failed" in each for each in plain):
        return ""
    reference = statistics.fmean(each["value"] for each in plain)
    if example.deficit(result["value"], reference) > example.tolerance:
        return f"{example.measure} {result['value']:.3f}, plain torch {reference:.3f}"
    if result["points"] != plain[0]["points"]:
        return f"{result['points']} points, plain torch {plain[0]['points']}"
    return ""


def table(results: Results) -> str:
    policies = list(next(iter(results.values())))
    seeds = len(next(iter(results.values()))[PLAIN])
    rows = [
        f"{WORKERS} workers and {SERVERS} servers, {seeds} seeds: mean (worst to best)."
        f" Measured on: {report.machine(anew=False)}.",
        "",
        f"| script | measure | tolerance | {' | '.join(policies)} |",
        f"|---|---|---|{'---|' * len(policies)}",
    ]
    for name, by_policy in results.items():
        example = EXAMPLES[name]
        better = "lower" if example.lower else "higher"
        cells = [_cell(example, by_policy, policy) for policy in policies]
        start = f"`{example.file}` | {example.measure}, {better} is better | {example.tolerance:g}"
        rows.append(f"| {start} | {' | '.join(cells)} |")
    notes = [_note(EXAMPLES[name], policies) for name in results]
    return "\n".join([*rows, *(["", *filter(None, notes)] if any(notes) else [])])


def _cell(example: Example, by_policy: dict[str, list[dict[str, Any]]], policy: str) -> str:
    made = by_policy[policy]
    values = [result["value"] for result in made if "failed" not in result]
    if not values:
        return "**failed**"
    worst, best = sorted((min(values), max(values)), reverse=example.lower)
    text = f"{statistics.fmean(values):.3f} ({worst:.3f} to {best:.3f})"
    wrong = sum(bool(_wrong(example, by_policy[PLAIN], policy, result)) for result in made)
    return f"{text}, **{wrong} of {len(made)} outside**" if wrong else text


def _note(example: Example, policies: Sequence[str]) -> str:
    """A line about the flags that this script is run with."""
    parts = [f"`{' '.join(example.flags)}` under every policy"] if example.flags else []
    parts += [
        f"`{' '.join(words)}` under `{policy}`"
        for policy, words in example.policy_flags.items()
        if policy in policies
    ]
    return f"- `{example.file}` is run with {', and with '.join(parts)}." if parts else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--seeds", type=report.at_least_one, default=3)
    parser.add_argument(
        "--parallel", type=report.at_least_one, default=1, help="number of concurrent runs"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of known results")
    parser.add_argument("--anew", action="store_true", help="make all runs again")
    parser.add_argument("--docs", action="store_true", help="write the table to docs/examples.md")
    parser.add_argument("--check", action="store_true", help="end with 1 if a run is too bad")
    args = parser.parse_args()
    kept = Kept(args.results, anew=args.anew)
    runs = [
        run
        for example in EXAMPLES.values()
        for found in (runs_of(example, args.policies, args.seeds),)
        if example.name in args.only or all(kept.get(run) for run in found)
        for run in found
    ]
    results = measure(runs, args.parallel, kept)
    shown = table(results)
    print(shown)
    if args.docs:
        readme.write("examples", shown, DOCUMENT)
    wrong = outside(results)
    for line in wrong:
        report.say(f"outside: {line}")
    if wrong and args.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
