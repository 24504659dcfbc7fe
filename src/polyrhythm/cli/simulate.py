"""`polyrhythm simulate`: a scenario in virtual time, with the summary and the journal of a real run."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from polyrhythm.cli.train import make_run_dir
from polyrhythm.errors import InvariantBroken, JobFailed, UsageError
from polyrhythm.observe.journal import FileJournal, Journal, read_journal
from polyrhythm.observe.progress import Progress
from polyrhythm.observe.runs import JOURNAL, write_job, write_process, write_result
from polyrhythm.observe.summary import described, summarise
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.scenario import read_scenario
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
    spec = script.job_spec(scenario.stem)
    run_dir = make_run_dir(runs_dir, name, str(scenario))
    write_process(run_dir)
    write_job(run_dir, spec)
    clock = Clock()
    journal = FileJournal(run_dir / JOURNAL, clock.read)
    progress = Progress(run_dir / JOURNAL, quiet=quiet or json_, job=spec)
    simulation = Simulation(
        script, spec, clock, _Watched(journal, progress), seed=seed, check=check
    )
    try:
        with progress:
            end = simulation.run()
    except InvariantBroken as error:
        again = shlex.join(["polyrhythm", "simulate", str(scenario), "--seed", str(seed)])
        raise InvariantBroken(f"{error}; see it again with: {again} --check --debug") from error
    finally:
        journal.close()
    result = {
        **described(spec),
        "seed": seed,
        **summarise(read_journal(run_dir / JOURNAL), spec),
        "failed": str(end.reason) if end.failed else None,
    }
    write_result(run_dir, result)
    if json_:
        print(json.dumps(result))
    else:
        progress.finish(result, run_dir)
    if end.failed:
        raise JobFailed(str(end.reason))


class _Watched:
    """A journal whose readers look up at every line: there is no other thread to follow it."""

    def __init__(self, journal: Journal, progress: Progress) -> None:
        self._journal = journal
        self._progress = progress

    def note(self, what: str, **fields: Any) -> None:
        self._journal.note(what, **fields)
        self._progress.tick()
