"""Compares the scripts of `examples/` under every policy with plain torch.

    python -m benchmarks.examples [--only gan lbfgs] [--seeds 3] [--parallel 2] [--docs] [--check]

Every script runs under bsp, asp, ssp:4, psp and fsp with 3 workers and 2 servers. It also runs in
plain torch, in one process (`benchmarks.examples.stand_in`): the same code, with the same number of
passes, and with batches as large as those of all workers together. So all runs of a script visit
the same number of training points. No run may be worse than the mean of plain torch by more than
the tolerance of the script (`benchmarks/examples/catalogue.py`).

Each result is written to `--results` as soon as it is known. If the command is stopped and started
again, it makes only the missing runs. A run whose script or flags have changed counts as missing.
`--known` makes no run and shows the known results. `--anew` makes all runs again. With `--only`,
the table also has the other scripts whose results are known. `--docs` writes the table to
docs/examples.md. With `--check` the exit status is 1 if a run is too bad.
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
    """The value of `--sync`, or PLAIN."""
    seed: int

    @property
    def words(self) -> tuple[str, ...]:
        """The flags after the name of the script."""
        if self.policy == PLAIN:
            return ("--workers", str(WORKERS), "--seed", str(self.seed))
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
    the workers' reports, or why the run `failed`. A run in plain torch also has `own_batch`, the
    value with the script's own batch size."""
    example, script = run.example, str(run.example.path)
    if run.policy == PLAIN:
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
    found = {"value": told["metrics"][example.measure], "points": told["points"], "spread": 0.0}
    if "own_batch" in told:
        found["own_batch"] = told["own_batch"][example.measure]
    return found


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


def runs_of(examples: Sequence[Example], policies: Sequence[str], seeds: int) -> list[Run]:
    """All runs. The first seed comes first, so that a comparison that is stopped has results of all
    examples."""
    return [
        Run(example, policy, seed)
        for seed in range(seeds)
        for example in examples
        for policy in (PLAIN, *policies)
    ]


def measure(runs: Sequence[Run], parallel: int, kept: Kept) -> Results:
    """Make all runs whose results are not known. Returns all results. If `parallel` is 0, no run is
    made, and results that are not known are left out."""
    missing = [run for run in runs if kept.get(run) is None] if parallel else []
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

    with ThreadPoolExecutor(max(1, parallel)) as pool:
        list(pool.map(make, missing))
    results: Results = {}
    for run in runs:
        made = results.setdefault(run.example.name, {}).setdefault(run.policy, [])
        if result := failed.get(run.key) or kept.get(run):
            made.append({"seed": run.seed, **result})
    return results


def outside(results: Results) -> list[str]:
    """Lines about runs that failed, that are too bad, or that visited another number of points than
    plain torch."""
    lines = []
    for name, by_policy in results.items():
        example, plain = EXAMPLES[name], by_policy[PLAIN]
        for policy, made in by_policy.items():
            lines += [
                f"{name} under {policy}, seed {result['seed']}: {reason}"
                for result in made
                if (reason := _wrong(example, plain, policy, result))
            ]
    return lines


def _wrong(
    example: Example, plain: list[dict[str, Any]], policy: str, result: dict[str, Any]
) -> str:
    """What is wrong with a result; empty if nothing is wrong."""
    if "failed" in result:
        return f"it failed: {result['failed']}"
    known = [each for each in plain if "failed" not in each]
    if policy == PLAIN or not known:
        return ""
    reference = statistics.fmean(each["value"] for each in known)
    if example.deficit(result["value"], reference) > example.tolerance:
        return f"{example.measure} {result['value']:.3f}, plain torch {reference:.3f}"
    if result["points"] != known[0]["points"]:
        return f"{result['points']} points, plain torch {known[0]['points']}"
    return ""


def table(results: Results) -> str:
    policies = [policy for policy in next(iter(results.values())) if policy != PLAIN]
    counts = {len(made) for by_policy in results.values() for made in by_policy.values()}
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(*counts)
    rows = [
        f"{WORKERS} workers and {SERVERS} servers, {seeds} seeds: mean (worst to best)."
        f" Measured on: {report.machine(anew=False)}.",
        "",
        f"| script | measure | tolerance | {PLAIN} | {OWN_BATCH} | {' | '.join(policies)} |",
        f"|---|---|---|---|---|{'---|' * len(policies)}",
    ]
    for name, by_policy in results.items():
        example, plain = EXAMPLES[name], by_policy[PLAIN]
        better = "lower" if example.lower else "higher"
        own = [{"value": each["own_batch"]} for each in plain if "own_batch" in each]
        cells = [_cell(example, plain, PLAIN, plain), _cell(example, plain, PLAIN, own)]
        cells += [_cell(example, plain, policy, by_policy[policy]) for policy in policies]
        start = f"`{example.file}` | {example.measure}, {better} is better | {example.tolerance:g}"
        rows.append(f"| {start} | {' | '.join(cells)} |")
    notes = [_note(EXAMPLES[name], policies) for name in results]
    return "\n".join([*rows, *(["", *filter(None, notes)] if any(notes) else [])])


def _cell(
    example: Example, plain: list[dict[str, Any]], policy: str, made: list[dict[str, Any]]
) -> str:
    values = [result["value"] for result in made if "failed" not in result]
    if not values:
        return "**failed**" if made else "not run"
    worst, best = sorted((min(values), max(values)), reverse=example.lower)
    text = f"{statistics.fmean(values):.3f} ({worst:.3f} to {best:.3f})"
    wrong = sum(bool(_wrong(example, plain, policy, result)) for result in made)
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
    parser.add_argument("--known", action="store_true", help="make no runs; show known results")
    parser.add_argument("--anew", action="store_true", help="make all runs again")
    parser.add_argument("--docs", action="store_true", help="write the table to docs/examples.md")
    parser.add_argument("--check", action="store_true", help="end with 1 if a run is too bad")
    args = parser.parse_args()
    kept = Kept(args.results, anew=args.anew)
    examples = [
        example
        for example in EXAMPLES.values()
        if example.name in args.only
        or all(kept.get(run) for run in runs_of([example], args.policies, args.seeds))
    ]
    runs = runs_of(examples, args.policies, args.seeds)
    results = measure(runs, 0 if args.known else args.parallel, kept)
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
