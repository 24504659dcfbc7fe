"""`polyrhythm drain`: lets a server leave a running job, without stopping the job."""

from typing import Annotated

import typer

from polyrhythm.api import flags
from polyrhythm.api.flags import RUNS, RunsDir
from polyrhythm.api.saying import tell
from polyrhythm.cli.lead import carry_out, find_lead
from polyrhythm.core.names import server_number
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import OperatorRequest
from polyrhythm.wire.messages.operator import DRAIN


def drain(
    run: flags.RunOrAddress,
    server: Annotated[
        str, typer.Argument(metavar="SERVER", help="The server that leaves, such as s1.")
    ],
    secret_file: flags.SecretFile = None,
    runs_dir: RunsDir = RUNS,
    debug: flags.Debug = False,
) -> None:
    """Let a server leave a running job, and wait until it has left.

    The slices of the server move to the other servers while the job trains, and then the server ends
    with status 0. No contribution is lost, even without --replicas. The server in which the lead runs
    (s0) cannot be drained.

    Examples:

      polyrhythm drain mine s1

      polyrhythm drain 10.0.0.5:7000 s2 --secret-file secret
    """
    number = server_number(server)
    if number is None:
        raise UsageError(f"SERVER is {server!r}: give the name of a server, such as s1")
    lead = find_lead(run, runs_dir, secret_file)
    request = OperatorRequest(what=DRAIN, server=number)
    done = ("drained", "drained-by-death")
    tell(carry_out(lead, request, done=done, fault=f"{server} was not drained"))
