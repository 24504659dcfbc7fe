"""`polyrhythm server`: one more server for a job that was begun on another machine."""

import sys
from typing import Annotated

import typer

from polyrhythm.cli.train import check_choice, check_host
from polyrhythm.cli.worker import LINKS_FROM_OUTSIDE, parse_address
from polyrhythm.errors import UsageError
from polyrhythm.runtime.choices import DIGESTS


def server(
    connect: Annotated[
        str, typer.Option(help="HOST:PORT, as 'polyrhythm train' says at its start.")
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            help="Address that this server listens on; default: the one by which this machine"
            " reaches the job."
        ),
    ] = "",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let it be an address that others can reach.")
    ] = False,
    job_id: Annotated[
        str, typer.Option("--job", help="Serve this job only: its id, as job.json has it.")
    ] = "",
    link: Annotated[
        str, typer.Option(help="Links: auto (shared memory where it can), or tcp.")
    ] = "auto",
    digest: Annotated[
        str, typer.Option(help="Digest of frames: auto, xxh3, sha1, blake2b, none.")
    ] = "auto",
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Be one more server of a job that waits for it, hold a share of its model, end with it.

    The job was begun with fewer --local-servers than --servers; its lead gives this one a number.

    Examples:

      polyrhythm server --connect 10.0.0.1:7000 --insecure

      polyrhythm server --connect 10.0.0.1:7000 --host 10.0.0.2 --port 7001 --insecure
    """
    lead_host, lead_port = parse_address(connect)
    check_choice("--link", link, LINKS_FROM_OUTSIDE)
    check_choice("--digest", digest, DIGESTS)
    if not 0 <= port < 65536:
        raise UsageError(f"--port is {port}: give one below 65536, or 0 for any free one")
    if host:
        check_host(host, insecure)
    from polyrhythm.engines.outpost import serve_remote  # torch, once it is known to be of use

    serve_remote(
        lead_host,
        lead_port,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        check_host=lambda address: check_host(address, insecure),
        listen_on=(host, port),
        job=job_id,
        link=link,
        digest=digest,
    )
