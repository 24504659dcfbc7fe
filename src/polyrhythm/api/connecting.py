"""`polyrhythm.connect`: makes this process a worker of a running job."""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Never

from polyrhythm.api.boundary import public
from polyrhythm.api.checks import check_way_in
from polyrhythm.api.options import check_options
from polyrhythm.api.saying import say
from polyrhythm.api.secret import Known, find_secret
from polyrhythm.core.devices import as_text, parse_devices
from polyrhythm.core.values import MOST_NAME, name_fault
from polyrhythm.errors import UsageError
from polyrhythm.io.secretfile import VARIABLE
from polyrhythm.observe.reasons import in_words

if TYPE_CHECKING:
    from polyrhythm.engines.worker_process import ConnectedWorker

_RANKS = ("RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
"""The variables in which launchers give a process its number: torchrun, Slurm, and MPI."""
_found: dict[tuple[str, int], Known] = {}
"""Secrets that this process has read from the environment. Reading a secret also removes it from
the environment."""


@public
def connect(
    address: str,
    *,
    name: str | None = None,
    secret_file: Path | str | None = None,
    job_id: str = "",
    link: str = "auto",
    digest: str = "auto",
    devices: str | list[str] = "auto",
    share_data: bool = False,
    quiet: bool = False,
    **unknown: Never,
) -> "ConnectedWorker":
    """Make this process a worker of a running job, and return the worker.

    Use it for workers that something else starts: torchrun, Slurm, cron, or you by hand. The job
    was started with `polyrhythm.serve` or `polyrhythm serve`, or with `polyrhythm.train` and
    fewer `local_workers` than `workers`. The worker has everything that the `worker` of `main`
    has. Use it as a context manager, or call `close()` at the end.

    The process stays yours: signal handlers, torch's threads and random numbers stay as they are.
    While the worker is connected, an exception that ends the program is also reported to the job
    as the failure of this worker.

    Args:
        address: HOST:PORT of the job.
        name: the name of the worker. Without it, a process of torchrun, Slurm or MPI is called
            `rank-N` by its number there, and any other process by its host and process id.
        secret_file: a copy of the file `secret` of the run. Without it, the secret is taken from
            the variable `POLYRHYTHM_SECRET`, or from the index of your jobs on this host.
        job_id: join only the job with this id.
        link: how the worker is linked to the servers: `"auto"` (shared memory where possible) or
            `"tcp"`.
        digest: the checksum of messages: `"auto"`, `"xxh3"`, `"sha1"`, `"blake2b"` or `"none"`.
        devices: the device of this worker: `"auto"` (a CUDA device, or cpu if there is none),
            `"cpu"`, or one such as `"cuda:1"`. Of a list, a process of torchrun, Slurm or MPI
            takes the item with its number on this host.
        share_data: in a job with private data, points of this worker may be sent to other
            workers. Without it they never leave this process.
        quiet: print nothing to stderr.

    Returns:
        The worker.

    Raises:
        UsageError: an argument is wrong, or this process is a worker already.
        LinkError: the job cannot be reached, or does not know the same secret.
        Refused: the job refuses this worker, for example because its name is taken.

    Example:
        >>> with pr.connect(job.address) as worker:
        ...     model = torch.nn.Linear(8, 1)
        ...     optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        ...     for x, y in worker.batches((inputs, targets), batch_size=32):
        ...         loss = torch.nn.functional.mse_loss(model(x), y)
        ...         loss.backward()
        ...         optimizer.step(objective=loss)
    """
    devices = as_text(devices)
    parse_devices(devices)
    check_options(connect, locals(), unknown)
    host, port = check_way_in(str(address), link, digest)
    if name is not None and (fault := name_fault(name)) is not None:
        raise UsageError(f"name cannot be used: {in_words(fault)}")
    known = _secret(host, port, secret_file)
    if not quiet:
        first = "" if "torch" in sys.modules else "importing torch, then "
        say(f"polyrhythm: {first}connecting to {host}:{port}")
    # This import takes seconds. It comes after the line above, so that the line is printed at once.
    from polyrhythm.engines.worker_process import JoinOptions, connect_worker
    from polyrhythm.runtime.operator import JobAddress

    names = (name,) if name is not None else names_of(os.environ, socket.gethostname(), os.getpid())
    worker = connect_worker(
        JobAddress(host, port, known.secret, job_id or known.job),
        names,
        JoinOptions(link, digest, devices, share_data),
        say=lambda line: say(f"polyrhythm: {line}"),
    )
    if not quiet:
        say(f"polyrhythm: this process is {worker.name} of the job at {worker.address}")
    return worker


def _secret(host: str, port: int, secret_file: Path | str | None) -> Known:
    if secret_file is not None:
        return find_secret(host, port, Path(secret_file).expanduser())
    if VARIABLE in os.environ:
        _found[host, port] = find_secret(host, port, None)
    return _found.get((host, port)) or find_secret(host, port, None)


def names_of(environ: Mapping[str, str], host: str, pid: int) -> tuple[str, ...]:
    """Names for this process, the best one first. The last one is free even if the lead has not noticed
    yet that an earlier worker of this process has left."""
    unique = f"{host[: MOST_NAME - 30]}-{pid}"
    for variable in _RANKS:
        rank = environ.get(variable, "")
        if rank.isascii() and rank.isdigit() and len(rank) < 10:
            return f"rank-{int(rank)}", f"rank-{int(rank)}-{unique}"
    return unique, f"{unique}-2"
