"""`polyrhythm status`, `why`, `story` and `runs`: describe runs from their journals alone.

The commands work from another terminal during a run, and after it. From another machine they work
during the run: the lead sends its journal.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, RenderableType

from polyrhythm.api import flags
from polyrhythm.api.flags import RUNS, RunsDir
from polyrhythm.api.saying import say, tell
from polyrhythm.cli.lead import FoundRun, read_run
from polyrhythm.errors import RunError, UsageError
from polyrhythm.observe import story as stories
from polyrhythm.observe import tables
from polyrhythm.observe.advice import advise
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.measured import links_in_words
from polyrhythm.observe.reasons import few, in_words
from polyrhythm.observe.runs import Run, load_run, run_dirs
from polyrhythm.observe.state import RunState
from polyrhythm.observe.summary import described, result
from polyrhythm.observe.why import (
    Explanation,
    explain,
    explain_silent_lead,
    in_sentences,
    with_cluster,
    with_given_up,
    with_learning,
)
from polyrhythm.observe.words import width_of
from polyrhythm.wire.messages import JobSpec

_WIDTH = 160
"""The width of output that does not go to a terminal."""

RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run's name or folder, or HOST:PORT of a running job; default: the newest run.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def status(
    run: RunName = None,
    secret_file: flags.SecretFile = None,
    runs_dir: RunsDir = RUNS,
    links: Annotated[
        bool,
        typer.Option(
            "--links", help="Show the measured rates between hosts, and what each server holds."
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Show how far a run is, whether it learns, and who is slow.

    A run that was killed is shown as "ended without a word".

    Examples:

      polyrhythm status

      polyrhythm status mine --json

      polyrhythm status 10.0.0.5:7000 --secret-file secret
    """
    with _found(runs_dir, run, secret_file) as found:
        if json_:
            print(json.dumps(status_of(found.run)))
        elif links:
            print("\n".join(links_in_words(found.run.state, _columns())))
        else:
            _print(tables.status(found.run, _columns(), plain=not _has_unicode()))


def why(
    run: RunName = None,
    secret_file: flags.SecretFile = None,
    runs_dir: RunsDir = RUNS,
    json_: Json = False,
) -> None:
    """Explain what a run waits for, who is slow, and what helps.

    The answer names processes, since when and until when, and the rule. After the end of a run, it
    says how the run ended, and what would help next time.

    Examples:

      polyrhythm why

      polyrhythm why mine --json
    """
    with _found(runs_dir, run, secret_file) as found:
        explanation = explanation_of(found.run)
        if json_:
            described = {"run": found.run.name, "is": found.run.word}
            print(json.dumps({**described, **explanation.as_dict()}))
        else:
            tell("\n".join(in_sentences(explanation)))


def story(
    run: RunName = None,
    worker: Annotated[
        str | None, typer.Option(help="Only the events of this worker: its number or name.")
    ] = None,
    secret_file: flags.SecretFile = None,
    runs_dir: RunsDir = RUNS,
    json_: Json = False,
) -> None:
    """Tell what happened in a run, in sentences with times.

    Examples:

      polyrhythm story

      polyrhythm story mine --worker 3
    """
    with _found(runs_dir, run, secret_file) as found:
        state, journal = found.run.state, found.journal
        number = None if worker is None else _worker_number(state, worker)
        told = list(stories.tell(read_journal(journal), number)) if journal.is_file() else []
    if state.ended is None and found.run.word != "running":
        told.append(f"{state.at_s:6.1f} s  {found.run.described}")
    if json_:
        print(json.dumps({"run": found.run.name, "story": told}))
    else:
        tell("\n".join(told))


def runs(runs_dir: RunsDir = RUNS, json_: Json = False) -> None:
    """List all runs, oldest first.

    Examples:

      polyrhythm runs

      polyrhythm runs --runs-dir elsewhere --json
    """
    found = [load_run(path) for path in run_dirs(runs_dir)]
    if json_:
        print(json.dumps([status_of(run) for run in found]))
    elif found:
        print("\n".join(tables.runs(found, _columns())))
    else:
        raise RunError(f"there is no run in {runs_dir}: start one with 'polyrhythm train'")


@contextmanager
def _found(runs_dir: Path, run: str | None, secret_file: Path | None) -> Iterator[FoundRun]:
    """A run and its journal. Prints the folder of the run if the user may not expect the run
    there."""
    with read_run(run, runs_dir, secret_file) as found:
        path = found.run.path
        sought = path.is_absolute() and not runs_dir.is_absolute()
        if found.is_here and sought and (run is None or "/" not in run):
            say(f"polyrhythm: run {path.name} is in {path.parent}")
        yield found


def status_of(run: Run) -> dict[str, Any]:
    """The result that `status --json` prints: the result so far, the members, and what the run
    waits for."""
    state, job = run.state, run.job or JobSpec(job="")
    return {
        "run": run.name,
        "is": run.word,
        "reason": run.reason,
        "worker_failures": run.failures,
        **described(job),
        **result(state, job),
        "at_s": state.at_s,
        "members": [
            {
                "worker": worker.worker,
                "name": worker.name,
                "device": worker.device or None,
                "clock": worker.clock,
                "contributions_per_s": worker.contributions_per_s,
                "points_per_s": worker.points_per_s,
                "shares": worker.recent.shares or worker.totals.shares,
                "skipped": worker.totals.skipped,
                "without_step": worker.totals.without_step,
                "passes": worker.passes,
                "reports": worker.reports,
                "left_s": worker.left_s,
                "left": None if worker.left is None else in_words(worker.left, state.name_of),
            }
            for worker in state.workers.values()
        ],
        "processes": {
            name: {"pid": pid, "host": host} for name, (pid, host) in state.processes.items()
        },
        "slices": {f"s{server}": count for server, count in state.slices.items()},
        "held": {f"s{server}": nbytes for server, nbytes in state.loads.items()},
        "links": None if state.measured is None else msgspec.structs.asdict(state.measured),
        "waiting": explanation_of(run).as_dict() if state.waiting or run.suspects else None,
    }


def explanation_of(run: Run) -> Explanation:
    """What a run waits for, or how it ended."""
    if run.word == "running" and run.suspects:
        return explain_silent_lead(run.suspects, run.now_s, time.time())
    if run.word == "running":
        return explain(run.state, run.now_s, run.job)
    ended = with_given_up(with_cluster(Explanation(run.described), run.state), run.state)
    advice = None if run.job is None else advise(run.state, run.job)
    failed: dict[str, list[str]] = {}
    for name, how in run.failures.items():
        failed.setdefault(how.partition("\n")[0].removeprefix(f"{name}, "), []).append(name)
    gone = tuple(f"{few(names)}: {how}" for how, names in failed.items())
    return with_learning(replace(ended, advice=advice, gone=gone), run.state, run.job)


def _worker_number(state: RunState, worker: str) -> int:
    for known in state.workers.values():
        if worker in (str(known.worker), known.name):
            return known.worker
    names = ", ".join(known.name for known in state.workers.values()) or "none yet"
    raise UsageError(f"--worker {worker!r} is not in this run: its workers are {names}")


def _columns() -> int:
    return width_of(sys.stdout) or _WIDTH


def _has_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


def _print(what: RenderableType) -> None:
    # lines are already broken; a path that is longer than the terminal stays whole
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    # without colours, rich must omit the rest of a bar, which would look like the bar
    console.no_color = console.no_color or console.color_system is None
    console.print(what)
