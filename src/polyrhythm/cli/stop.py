"""`polyrhythm stop`: ends a running job from another terminal."""

import signal
import sys
import time
from typing import Annotated

import typer

from polyrhythm.api import flags
from polyrhythm.api.flags import RUNS, RunsDir
from polyrhythm.api.saying import say, tell
from polyrhythm.cli.lead import Lead, ask, explain, find_lead
from polyrhythm.core.values import plain_reason
from polyrhythm.errors import LinkError, PolyrhythmError
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import is_alive
from polyrhythm.wire.messages import OperatorAnswer, OperatorRequest
from polyrhythm.wire.messages.operator import STOP

_LOOK_EVERY_S = 0.1


def stop(
    run: flags.RunOrAddress = None,
    now: Annotated[
        bool,
        typer.Option("--now", help="End the job at once; the code after the loops may not run."),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")
    ] = True,
    secret_file: flags.SecretFile = None,
    runs_dir: RunsDir = RUNS,
    debug: flags.Debug = False,
) -> None:
    """End a running job, from this or another machine.

    The job shuts down cleanly: every worker leaves its training loop with the final parameters
    and runs the code after the loop. Then `polyrhythm train` ends with status 0. This command waits
    until the job has ended, and shows what it waits for. The journal names the user who asked for the
    stop.

    Examples:

      polyrhythm stop mine

      polyrhythm stop runs/mine --no-wait

      polyrhythm stop 10.0.0.5:7000 --secret-file secret --now
    """
    lead = find_lead(run, runs_dir, secret_file)
    try:
        answer = _ask(lead, OperatorRequest(what=STOP, at_once=now), wait=wait)
        if wait:
            _await_end(lead)
    except KeyboardInterrupt:
        _say(f"{lead.name} is still stopping; 'polyrhythm status' shows its progress")
        sys.exit(128 + signal.SIGINT)
    told = in_words(plain_reason(answer.reason))
    if answer.failed:
        raise PolyrhythmError(f"{lead.name} failed before it could stop: {told}")
    tell(f"{lead.name}: {told}")


def _ask(lead: Lead, request: OperatorRequest, *, wait: bool) -> OperatorAnswer:
    """Send the request and show the answers. Returns the last answer, or the first one if the user
    does not want to wait."""
    told = ""
    try:
        for answer in ask(lead, request):
            if answer.done or not wait:
                return answer
            if (words := in_words(plain_reason(answer.reason))) != told:
                told = words
                _say(told)
    except LinkError as error:
        if told:
            _await_end(lead)
        explain(lead, error)
    raise AssertionError  # this line is never reached: the last answer has `done`


def _await_end(lead: Lead) -> None:
    """Wait until the process of `polyrhythm train` has ended, if that process is on this host."""
    while lead.process is not None and is_alive(lead.process):
        time.sleep(_LOOK_EVERY_S)


def _say(line: str) -> None:
    say(f"polyrhythm: {line}")
