"""Runs the job of `polyrhythm train`: its folder, its processes, the progress, and the result."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import typer

from polyrhythm.cli.folders import writing
from polyrhythm.cli.hosts import Here, child_requests
from polyrhythm.cli.secret import SECRET
from polyrhythm.engines.choice import choose_engine
from polyrhythm.engines.engine import EngineRun, EngineWatch
from polyrhythm.errors import PolyrhythmError
from polyrhythm.io.secretfile import create_secret
from polyrhythm.observe.progress import ProgressDisplay
from polyrhythm.observe.runs import JOURNAL, write_job, write_process, write_result
from polyrhythm.observe.state import RunState
from polyrhythm.observe.summary import described
from polyrhythm.observe.summary import result as result_of_state
from polyrhythm.wire.messages import Address, JobSpec


def launch(
    spec: JobSpec, here: Here, run_dir: Path, *, as_json: bool, quiet: bool, **how: Any
) -> None:
    """Run the job in a new folder, show its progress and its result, and exit with its status.
    `how` holds the options of its processes (`child_requests`)."""
    with writing(run_dir):
        write_process(run_dir)
        write_job(run_dir, spec)
        create_secret(run_dir / SECRET)
    requests = child_requests(spec, run_dir, here=here, secret_file=run_dir / SECRET, **how)
    progress = ProgressDisplay(run_dir / JOURNAL, quiet=quiet, job=spec)

    def invite(address: Address) -> None:
        for line in () if quiet else here.invitation(spec, address, run_dir / SECRET):
            progress.say(line)

    with progress:
        watch = EngineWatch(say=progress.say, tick=progress.tick, listening=invite)
        run = choose_engine().run(requests, watch)
    progress.tick()
    result = result_of(run, spec, progress.state)
    if as_json:
        print(json.dumps(result))
    else:
        progress.finish(result, run_dir)
    if run.failed is None:
        with writing(run_dir):
            write_result(run_dir, result)
    else:
        with contextlib.suppress(OSError):  # it may be why the job failed, which is said below
            write_result(run_dir, result)
    end_with(run)


def result_of(run: EngineRun, spec: JobSpec, state: RunState) -> dict[str, Any]:
    """What `--json` prints: the state of the run by its journal, and how its processes ended."""
    return {
        **described(spec),
        **result_of_state(state, spec),
        "failed": run.failed,
        "worker_failures": run.worker_failures,
        "respawned": run.respawned,
    }


def end_with(run: EngineRun) -> None:
    """End the command: with one line and a non-zero status if the job did not reach its goal."""
    if run.interrupted:
        typer.echo("polyrhythm: stopped on request", err=True)
        sys.exit(128 + run.interrupted)
    if run.failed is not None or run.ended is None:
        raise PolyrhythmError(run.failed or "the job ended before its goal, and nobody says why")
