"""`polyrhythm simulate`: a scenario in virtual time, with the summary and the journal of a real run."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from polyrhythm.cli.train import make_run_dir
from polyrhythm.core.effects import End
from polyrhythm.errors import InvariantBroken, JobFailed, UsageError
from polyrhythm.observe.journal import FileJournal, read_journal
from polyrhythm.observe.progress import Progress
from polyrhythm.observe.summary import summarise
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.scenario import Scenario, read_scenario
from polyrhythm.sim.simulation import Simulation


def simulate(
    scenario: Annotated[
        Path, typer.Argument(help="A scenario: FILE.toml with a job, workers and events.")
    ],
    seed: Annotated[int, typer.Option(help="Seed of all that is random in the run.")] = 0,
    name: Annotated[str | None, typer.Option(help="The run's name: its folder in runs/.")] = None,
    runs_dir: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Assert all invariants after every event (much slower)."),
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout at the end.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Run a job's own machines in virtual time, with workers, links and faults from a file.

    The same file and seed give the same run. Times in the summary are virtual.

    Examples:

      polyrhythm simulate scenarios/straggler.toml

      polyrhythm simulate scenarios/a-death.toml --seed 7 --check --json
    """
    script = read_scenario(scenario)
    if seed < 0:
        raise UsageError(f"--seed is {seed}: it must be at least 0")
    run_dir = make_run_dir(runs_dir, name, str(scenario))
    path = run_dir / "journal.jsonl"
    progress = Progress(path, quiet=quiet or json_)
    try:
        end = _run(script, scenario.stem, path, seed, check)
    except InvariantBroken as error:
        again = shlex.join(["polyrhythm", "simulate", str(scenario), "--seed", str(seed)])
        raise InvariantBroken(f"{error}; see it again with: {again} --check --debug") from error
    result = _result(script, scenario.stem, seed, path, end)
    if json_:
        print(json.dumps(result))
    else:
        progress.finish(result, run_dir)
    if end.failed:
        raise JobFailed(str(end.reason))


def _run(script: Scenario, name: str, path: Path, seed: int, check: bool) -> End:
    clock = Clock()
    journal = FileJournal(path, clock.read)
    try:
        return Simulation(script, clock, journal, name=name, seed=seed, check=check).run()
    finally:
        journal.close()


def _result(script: Scenario, name: str, seed: int, path: Path, end: End) -> dict[str, Any]:
    return {
        "job": name,
        "sync": script.job.sync,
        "kind": script.job.kind,
        "workers": sum(group.count for group in script.workers),
        "servers": script.job.servers,
        "seed": seed,
        **summarise(read_journal(path)),
        "failed": str(end.reason) if end.failed else None,
    }
