"""Compares simulated runs with real runs. Each policy is simulated from the recordings of the other
policies.

    python -m benchmarks.prediction [--seconds 8] [--json out.json] [--document]

Every policy is run once with real processes: four workers, one of them four times slower, and steps
of 10 ms (`benchmarks/stragglers/task.py`). The kind is `local`, which all policies support. Then
each policy is simulated from the recording of each run (`polyrhythm simulate --from-run`).
Utilisation is the share of all workers' time that was spent on computing (PSP's Eq. 14).
`--document` writes the table between the markers in docs/simulation.md.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import readme, report
from benchmarks.commands import call
from benchmarks.stragglers.__main__ import find_data
from benchmarks.stragglers.task import MIN_STEP, SLOW, WORKERS
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.observe.runs import Run, load_run
from polyrhythm.observe.summary import result, summarise
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.recorded import scenario_of
from polyrhythm.sim.simulation import Simulation

POLICIES = ("bsp", "ssp:8", "asp", "psp", "fsp")
ALLOWED = 0.05
_STARTING_S = 120
"""How many seconds a run may take in addition to its `--max-seconds`."""
DOCUMENT = readme.ROOT / "docs" / "simulation.md"


def record(policy: str, job: str, seconds: float, folder: Path) -> Run:
    done = call(
        [
            *(str(Path(sys.executable).with_name("polyrhythm")), "train", job),
            *("--workers", str(WORKERS), "--sync", policy, "--kind", "local"),
            *("--min-step", MIN_STEP, "--slow", SLOW, "--max-seconds", str(seconds)),
            *("--runs-dir", str(folder), "--name", policy.replace(":", "-"), "--json"),
        ],
        timeout_s=seconds + _STARTING_S,
    )
    if done.get("failed"):
        raise SystemExit(f"{policy}: {done['failed']}")
    return load_run(folder / policy.replace(":", "-"))


def usage(run: Run) -> float:
    assert run.job is not None
    return float(result(run.state, run.job)["resource_usage"]["overall"])


def foretell(run: Run, policy: str) -> float:
    assert run.job is not None
    scenario = scenario_of(run.state, run.job, policy)
    clock = Clock()
    journal = MemoryJournal(clock.read)
    Simulation(scenario, scenario.job_spec("predicted"), clock, journal).run()
    return float(summarise(journal.lines)["resource_usage"]["overall"])


def measure(job: str, seconds: float, folder: Path) -> dict[str, Any]:
    runs: dict[str, Run] = {}
    known = False
    for policy in POLICIES:
        kept = folder / policy.replace(":", "-")
        if kept.is_dir():
            known, runs[policy] = True, load_run(kept)
        else:
            runs[policy] = record(policy, job, seconds, folder)
        report.say(f"{policy}: {usage(runs[policy]):.1%}")
    return {
        "machine": report.machine(anew=not known),
        "job": job,
        "seconds": seconds,
        "real": {policy: usage(run) for policy, run in runs.items()},
        "predicted": {
            source: {policy: foretell(run, policy) for policy in POLICIES}
            for source, run in runs.items()
        },
    }


def table(found: dict[str, Any]) -> str:
    real = found["real"]
    rows = [
        f"`{found['job']}`, {WORKERS} workers, one of them 4x slower, steps of 10 ms, runs of"
        f" {found['seconds']:g} s ({found['machine']}). Predicted utilisation in percent,"
        " and the error in points:",
        "",
        f"| recorded under | {' | '.join(POLICIES)} |",
        f"|---|{'---|' * len(POLICIES)}",
        f"| *measured* | {' | '.join(f'{100 * real[policy]:.1f}' for policy in POLICIES)} |",
    ]
    for source in POLICIES:
        cells = []
        for policy in POLICIES:
            told = found["predicted"][source][policy]
            off = f"{100 * told:.1f} ({100 * (told - real[policy]):+.1f})"
            cells.append(f"**{off}**" if abs(told - real[policy]) > ALLOWED else off)
        rows.append(f"| {source} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--keep",
        type=Path,
        help="a folder for the runs; runs that are there already are used again",
    )
    parser.add_argument("--document", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        found = measure(find_data(), options.seconds, options.keep or Path(made))
    report.give(found, table(found), options.json)
    if options.document:
        readme.write("prediction", table(found), DOCUMENT)


if __name__ == "__main__":
    main()
