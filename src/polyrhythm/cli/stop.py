"""`polyrhythm stop`: ends a running job from another terminal."""

import getpass
import signal
import socket
import sys
import time
from typing import Annotated

import typer

from polyrhythm.api import flags
from polyrhythm.api.flags import RUNS, RunsDir
from polyrhythm.api.saying import say, tell
from polyrhythm.cli.lead import Lead, check_running, find_lead
from polyrhythm.core.values import name_fault, plain_reason
from polyrhythm.errors import LinkError, PolyrhythmError, RunError
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import is_alive, load_run
from polyrhythm.runtime.operator import ask_lead
from polyrhythm.wire.messages import OperatorAnswer, OperatorRequest
from polyrhythm.wire.messages.operator import STOP

_LOOK_EVERY_S = 0.1


def stop(
    run: flags.RunOrAddress,
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
        _say(f"{lead.name} is still stopping; 'polyrhythm status' shows how far it is")
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
        for answer in ask_lead(
            lead.host, lead.port, operator_name(), lead.job, lead.secret, request
        ):
            if answer.done or not wait:
                return answer
            if (words := in_words(plain_reason(answer.reason))) != told:
                told = words
                _say(told)
    except LinkError as error:
        _explain(lead, error, asked=bool(told))
    raise AssertionError  # this line is never reached: the last answer has `done`


def _explain(lead: Lead, error: LinkError, *, asked: bool) -> None:
    """Raise an error that says why the lead cannot be reached or why its link has ended."""
    if asked:
        _await_end(lead)
    if lead.path is not None:
        check_running(load_run(lead.path))  # raises an error if the run has just ended
    raise RunError(f"the lead of {lead.name} cannot be reached: {error}")


def _await_end(lead: Lead) -> None:
    """Wait until the process of `polyrhythm train` has ended, if that process is on this host."""
    while lead.process is not None and is_alive(lead.process):
        time.sleep(_LOOK_EVERY_S)


def operator_name() -> str:
    """The name of this user as an operator in the journal: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # this user id has no entry in the list of users
        user = "operator"
    name = f"{user}@{socket.gethostname()}"
    return "operator" if name_fault(name) is not None else name


def _say(line: str) -> None:
    say(f"polyrhythm: {line}")
