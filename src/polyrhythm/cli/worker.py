"""`polyrhythm worker`: join a running job as one more worker."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from polyrhythm.api import flags
from polyrhythm.api.checks import await_job, check_way_in
from polyrhythm.api.saying import say
from polyrhythm.api.secret import find_secret
from polyrhythm.api.values import at_least
from polyrhythm.core.devices import parse_devices
from polyrhythm.core.values import name_fault
from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.io.limits import none_left
from polyrhythm.io.secretfile import VARIABLE
from polyrhythm.learn.load import check_job
from polyrhythm.learn.slowdowns import Slowdown
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire.proof import Secret


def worker(
    job: Annotated[
        str,
        typer.Argument(
            help="The job's code on this machine; needed if the command does not find it by itself."
        ),
    ] = "",
    connect: flags.Connect = "",
    name: Annotated[
        str | None, typer.Option(help="This worker's name; default: the host's name and a number.")
    ] = None,
    secret_file: flags.SecretFile = None,
    job_id: flags.JobId = "",
    wait: flags.Wait = None,
    accept_code: Annotated[
        bool,
        typer.Option(
            "--accept-code",
            help="Run the job's file as the lead sends it, if you name no file. It runs with your"
            " rights: accept only jobs whose user you trust.",
        ),
    ] = False,
    link: flags.LinkFromOutside = "auto",
    digest: flags.Digest = "auto",
    threads: flags.Threads = None,
    devices: flags.DeviceFromOutside = "auto",
    share_data: Annotated[
        bool,
        typer.Option(
            "--share-data",
            help="In a job with --data-private: points of this worker's data set may be sent to other"
            " workers of the job, so that these points are visited as often as those of fast workers."
            " Without this flag the points never leave this process.",
        ),
    ] = False,
    colocate: Annotated[
        bool,
        typer.Option(
            "--colocate",
            help="Also start a server here, as 'polyrhythm server' does. It moves its slices away and"
            " leaves when this worker leaves.",
        ),
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="With --colocate: the server may listen on an address that other machines can reach.",
        ),
    ] = False,
    min_step: Annotated[
        str | None,
        typer.Option(help="Slowdown: every step computes for at least this long, such as 10ms."),
    ] = None,
    slow: Annotated[
        str | None, typer.Option(help="Slowdown: 4x makes this worker compute four times as long.")
    ] = None,
    slow_at: Annotated[
        str | None,
        typer.Option(
            help="Slowdown: 60s:4x makes this worker compute four times as long after 60 s of training."
        ),
    ] = None,
    stall: Annotated[
        str | None,
        typer.Option(
            help="Slowdown: 32ms/1000 makes this worker pause for 32 ms after every 1000 points."
        ),
    ] = None,
    tenant: Annotated[
        bool, typer.Option("--tenant", help="Slowdown: another process keeps a core busy.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Record a trace of every event and decision in this folder, for debugging."
        ),
    ] = None,
    debug: flags.Debug = False,
) -> None:
    """Join a running job as one more worker. It trains with the job, and leaves when the job ends.

    After Ctrl-C or SIGTERM the worker contributes what it has, returns its data, and leaves; the
    command ends with status 130 or 143. After a second signal it leaves at once.

    Examples:

      polyrhythm worker --connect 127.0.0.1:40123

      polyrhythm worker mine.py --connect 10.0.0.5:7000 --secret-file secret --threads 8

      polyrhythm worker --connect 127.0.0.1:40123 --devices cuda:1

      polyrhythm worker mine.py --connect 10.0.0.5:7000 --secret-file secret --share-data

      polyrhythm worker --accept-code --connect 10.0.0.5:7000 --secret-file secret

      polyrhythm worker mine.py --colocate --insecure --connect 10.0.0.5:7000 --secret-file secret
    """
    host, port = check_way_in(connect, link, digest, wait)
    if insecure and not colocate:
        raise UsageError("--insecure applies to the server that --colocate starts: give both")
    if threads is not None:
        at_least(1)("--threads", threads)
    parse_devices(devices)
    if name is not None and not name.strip():
        raise UsageError("--name is empty: give this worker a name")
    if name is not None and (fault := name_fault(name)) is not None:
        raise UsageError(f"--name cannot be used: {in_words(fault)}")
    if job:
        check_job(job)
    if trace is not None and not trace.is_dir():
        raise UsageError(f"--trace {trace}: there is no such folder")
    flags_given = {
        "min-step": min_step,
        "slow": slow,
        "slow-at": slow_at,
        "stall": stall,
        "tenant": "" if tenant else None,
    }
    slowdowns = {flag: text for flag, text in flags_given.items() if text is not None}
    Slowdown().amended(slowdowns)
    await_job(host, port, wait)
    known = find_secret(host, port, secret_file)
    say(f"importing torch, then connecting to {host}:{port}")
    # Import this only after the checks of the flags, because it imports torch, which takes seconds.
    from polyrhythm.engines.tracebacks import traceback_of
    from polyrhythm.engines.worker_process import JoinOptions, run_remote
    from polyrhythm.runtime.operator import JobAddress

    beside = ["--connect", connect, "--link", link, "--digest", digest]
    if job_id:
        beside += ["--job", job_id]
    if wait is not None:
        beside += ["--wait", wait]
    if insecure:
        beside.append("--insecure")
    with _server_beside(beside, known.secret) if colocate else nullcontext():
        try:
            status = run_remote(
                JobAddress(host, port, known.secret, job_id or known.job),
                name or f"{socket.gethostname()}-{os.getpid()}",
                JoinOptions(link, digest, devices, share_data, trace),
                say=say,
                file=job or (known.path if Path(known.path).is_file() else ""),
                accept_code=accept_code,
                threads=threads,
                slowdowns=slowdowns,
            )
        except PolyrhythmError:
            raise
        except Exception as error:  # the code of the user has failed
            if debug or none_left(error):
                raise
            say(f"polyrhythm: {type(error).__name__}: {error}\n{traceback_of(error).rstrip()}")
            sys.exit(PolyrhythmError.status)
        if status:
            sys.exit(status)


@contextmanager
def _server_beside(arguments: list[str], secret: Secret) -> Iterator[None]:
    """Run `polyrhythm server` beside this worker. If the server ends with the job, the worker's
    command ends too. If the worker leaves first, the server moves its slices away and then ends."""
    command = [sys.executable, "-m", "polyrhythm", "server", *arguments]
    with subprocess.Popen(command, env={**os.environ, VARIABLE: secret.text}) as process:
        try:
            yield
        except BaseException:
            process.terminate()
            raise
