"""`polyrhythm server`: join a job that was started elsewhere, as one more server."""

import sys
from typing import Annotated

import typer

from polyrhythm.api import flags
from polyrhythm.api.checks import await_job, check_host, check_way_in
from polyrhythm.api.saying import say
from polyrhythm.api.secret import find_secret
from polyrhythm.api.values import a_port
from polyrhythm.engines.environment import rest_at_once


def server(
    connect: flags.Connect = "",
    host: Annotated[
        str,
        typer.Option(
            help="Address that this server listens on; default: the address from which this"
            " machine reaches the job."
        ),
    ] = "",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that other machines can reach.")
    ] = False,
    secret_file: flags.SecretFile = None,
    job_id: flags.JobId = "",
    wait: flags.Wait = None,
    link: flags.LinkFromOutside = "auto",
    digest: flags.Digest = "auto",
    debug: flags.Debug = False,
) -> None:
    """Join a job as a server that holds a share of its model. It leaves when the job ends.

    A server can join at any time. If the job was started with fewer --local-servers than --servers, it
    waits for the missing ones; a server that joins later takes slices over from the others while the
    job trains. The lead of the job chooses the number of the server. On Ctrl-C or SIGTERM the server
    moves its slices to the other servers, and then the command ends with status 0. A second signal ends
    the server at once, with status 130 or 143.

    Examples:

      polyrhythm server --connect 10.0.0.1:7000 --secret-file secret --insecure

      polyrhythm server --connect 127.0.0.1:7000 --port 7001
    """
    lead_host, lead_port = check_way_in(connect, link, digest, wait)
    a_port("--port", port)
    if host:
        check_host(host, insecure)
    await_job(lead_host, lead_port, wait)
    known = find_secret(lead_host, lead_port, secret_file)
    rest_at_once()
    say(f"importing torch, then connecting to {lead_host}:{lead_port}")
    # Import this only after the checks of the flags, because it imports torch, which takes seconds.
    from polyrhythm.engines.server_process import serve_remote
    from polyrhythm.runtime.operator import JobAddress

    status = serve_remote(
        JobAddress(lead_host, lead_port, known.secret, job_id or known.job),
        say=say,
        check_host=lambda address: check_host(address, insecure),
        listen_on=(host, port),
        link=link,
        digest=digest,
    )
    if status:
        sys.exit(status)
