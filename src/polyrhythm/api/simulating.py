"""`polyrhythm.simulate`: runs a scenario in virtual time. The summary and the journal have the same
form as in a real run. If an option has no annotation here, the command uses its text from
`train`."""

import shlex
import time
from pathlib import Path
from typing import Annotated, Any, Never

from polyrhythm.api.boundary import public
from polyrhythm.api.folders import make_run_dir, writing
from polyrhythm.api.options import Group, Option, check_options
from polyrhythm.api.result import Result
from polyrhythm.api.values import at_least
from polyrhythm.core.model import RUNS_FOLDER
from polyrhythm.core.sync.registry import sync_help
from polyrhythm.errors import InvariantBroken, JobFailed, UsageError
from polyrhythm.observe.journal import FileJournal, Journal
from polyrhythm.observe.progress import ProgressDisplay
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import (
    JOURNAL,
    find_run,
    load_run,
    write_job,
    write_process,
    write_result,
)
from polyrhythm.observe.summary import described
from polyrhythm.observe.summary import result as summarise_state
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.recorded import scenario_of
from polyrhythm.sim.scenario import Scenario, read_scenario, with_policy
from polyrhythm.sim.simulation import Simulation

_TICK_EVERY_S = 0.1
"""The shortest time after which the progress display reads the journal again."""


@public
def simulate(
    scenario: Path | str | None = None,
    *,
    from_run: Annotated[
        str | None,
        Option(
            "Simulate this recorded run (its name or folder) instead of a file.",
            metavar="RUN",
            group=Group.JOB,
        ),
    ] = None,
    sync: Annotated[
        str | None,
        Option(
            f"Use this policy instead of the one in the file or run. {sync_help()}.",
            metavar="POLICY",
            group=Group.SYNCHRONISATION,
        ),
    ] = None,
    seed: int = 0,
    name: str | None = None,
    runs_dir: Path | str = RUNS_FOLDER,
    check: bool = False,
    quiet: bool = False,
    debug: bool = False,
    **unknown: Never,
) -> Result:
    """Simulate a job in virtual time, with the workers, links and faults of a scenario, and
    return the result.

    Use it to try a policy on machines that you do not have, or to find out how a recorded run
    would have gone under another policy. The simulator makes the decisions of a real job. The
    same scenario and seed give the same result. Every keyword is a flag of `polyrhythm simulate`.

    Args:
        scenario: the path of a TOML file that describes the machines and the job.
        from_run: the name or folder of a recorded run, in place of a scenario. Steps and
            exchanges take as long as in this run.
        sync: the policy, in place of the one in the scenario or the run.
        seed: the seed of everything that is random.
        name: the name of the new run, and of its folder.
        runs_dir: the folder in which every run has its own folder.
        check: check the invariants of all machines after every event.
        quiet: show no progress on stderr.
        debug: keep all frames of tracebacks.

    Returns:
        The result. It has no model, so `Result.state_dict` raises StoreError.

    Raises:
        UsageError: an option or the scenario is wrong.
        JobFailed: the simulated job failed. `error.result` is the result so far.
        InvariantBroken: a check found a defect of polyrhythm. The message says how to repeat it.

    Example:
        >>> waiting = pr.simulate("scenarios/straggler.toml", sync="bsp")
        >>> not_waiting = pr.simulate("scenarios/straggler.toml", sync="asp")
        >>> waiting.status, not_waiting.status
        ('ended', 'ended')
    """
    check_options(simulate, locals(), unknown)
    scenario, runs_dir = None if scenario is None else Path(scenario), Path(runs_dir).expanduser()
    script, source = _script(scenario, from_run, sync, runs_dir)
    at_least(0)("--seed", seed)
    spec = script.job_spec(Path(source[0]).stem)
    run_dir = make_run_dir(runs_dir, name, source[0])
    clock = Clock()
    with writing(run_dir):
        write_process(run_dir)
        write_job(run_dir, spec)
        journal = FileJournal(run_dir / JOURNAL, clock.read)
    progress = ProgressDisplay(run_dir / JOURNAL, quiet=quiet, job=spec)
    simulation = Simulation(
        script, spec, clock, _Watched(journal, progress), seed=seed, check=check
    )
    try:
        with progress:
            end = simulation.run()
    except InvariantBroken as error:
        again = shlex.join(["polyrhythm", "simulate", *source[1:], "--seed", str(seed)])
        raise InvariantBroken(
            f"{error}; repeat the failure with: {again} --check --debug"
        ) from error
    finally:
        journal.close()
    progress.tick()  # the display reads the rest of the journal
    summary = {
        **described(spec),
        "seed": seed,
        **summarise_state(progress.state, spec),
        "failed": in_words(end.reason) if end.failed else None,
    }
    if journal.fault is not None:
        raise UsageError(journal.fault)
    with writing(run_dir):
        write_result(run_dir, summary)
    result = Result(run_dir, summary, progress.state, spec)
    if end.failed:
        raise JobFailed(in_words(end.reason), result)
    return result


def _script(
    scenario: Path | None, from_run: str | None, sync: str | None, runs_dir: Path
) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario, its name, and the arguments with which the user selected it."""
    policy = () if sync is None else ("--sync", sync)
    if (scenario is None) == (from_run is None):
        raise UsageError("give a scenario, or --from-run with a recorded run")
    if scenario is not None:
        script = read_scenario(scenario)
        if sync is not None:
            script = with_policy(script, sync)
        return script, (str(scenario), str(scenario), *policy)
    run = load_run(find_run(runs_dir, from_run))
    if run.job is None:
        raise UsageError(f"{run.path} cannot be simulated: it has no description of its job")
    script = scenario_of(run.state, run.job, sync or run.job.sync)
    return script, (run.name, "--from-run", str(run.path), *policy)


class _Watched:
    """A journal that updates the progress display a few times a second when a line is written,
    because a simulation has no other thread to do it."""

    def __init__(self, journal: Journal, progress: ProgressDisplay) -> None:
        self._journal = journal
        self._progress = progress
        self._tick_s = 0.0

    def note(self, what: str, **fields: Any) -> None:
        self._journal.note(what, **fields)
        now_s = time.monotonic()
        if now_s >= self._tick_s:
            self._tick_s = now_s + _TICK_EVERY_S
            self._progress.tick()
