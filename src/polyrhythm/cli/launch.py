"""Runs the job of `polyrhythm train` or `polyrhythm resume`, prints its result, and ends the
command with the status of the job."""

import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from polyrhythm.api.saying import say, tell
from polyrhythm.errors import Interrupted, JobFailed
from polyrhythm.observe.words import width_of

if TYPE_CHECKING:
    from polyrhythm.api.result import Result

WORKERS_FAILED = 3
"""The exit status of a job that reached its goal although a worker failed and was not started
again."""
UNRECORDED = 4
"""The exit status of a job that reached its goal although the folder of the run could not be written:
its journal or result is not complete, or its model is in the job's store."""

_WIDTH = 120
"""The width of a summary that does not go to a terminal."""


def launch(run: Callable[[], "Result"], *, as_json: bool, verbose: bool = False) -> None:
    """Call `run`, print the result of the job, and end the command. If the job did not reach its
    goal, the command ends with the error, or with the status of the signal that stopped it. If the
    job reached its goal, but workers failed or the folder of the run could not be written, the
    command ends with a status for that case. `verbose`: print the summary with all details."""
    failure: JobFailed | None = None
    try:
        result = run()
    except Interrupted as error:
        result = error.result
    except JobFailed as error:
        if error.result is None:
            raise  # there is no result to print, because the job did not start
        result, failure = error.result, error
    _ignore_signals()
    if result.status == "running" and not as_json:
        name = result.run.name
        tell(
            f"run {name} continues on the cluster: 'polyrhythm status {name}' shows it, 'polyrhythm stop"
            f" {name}' ends it"
        )
        return
    if as_json:
        print(json.dumps(result.summary), flush=True)
    else:
        columns = width_of(sys.stdout) or _WIDTH
        tell(result.text(details=verbose, failing=failure is not None, columns=columns))
    if result.signal:
        say("polyrhythm: stopped on request")
        sys.exit(128 + result.signal)
    if failure is not None:
        raise failure
    if result.unrecorded:
        for line in result.unrecorded:
            say(f"polyrhythm: {line}")
        sys.exit(UNRECORDED)
    if result.worker_failures:
        sys.exit(WORKERS_FAILED)


def _ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM from now on. The job has ended. Its status is the status of the
    command, even if a signal comes later."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
