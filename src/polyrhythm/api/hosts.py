"""Which processes of a job this command starts, and which commands the user must run on other
hosts."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrhythm.core.peers import SEAT
from polyrhythm.engines.cores import share_of_cores
from polyrhythm.engines.requests import ChildRequest, PackedMain
from polyrhythm.errors import UsageError
from polyrhythm.io.addresses import ANY_HOST, is_loopback
from polyrhythm.io.secretfile import fresh_secret, read_secret
from polyrhythm.observe.words import counted
from polyrhythm.wire.messages import Address, JobSpec

_FAR_AWAY = ("192.0.2.1", 9)
"""An address that no host has. To connect a UDP socket to it sends nothing, but shows which local
address would be used."""
_MOST_HERE = 1000
"""The most servers, and the most workers, that one command starts. Every one of them is a process
that has imported torch."""


@dataclass(frozen=True, slots=True)
class Here:
    """How many of a job's servers and workers run on this host."""

    servers: int
    workers: int

    @classmethod
    def of(cls, job: JobSpec, servers: int | None, workers: int | None) -> "Here":
        here = cls(
            job.servers if servers is None else servers,
            job.workers if workers is None else workers,
        )
        if not 1 <= here.servers <= job.servers:
            raise UsageError(
                f"--local-servers is {here.servers}: give 1 to {job.servers} (--servers); the lead"
                " runs in the first, on this machine"
            )
        if not 0 <= here.workers <= job.workers:
            raise UsageError(
                f"--local-workers is {here.workers}: give 0 to {job.workers} (--workers)"
            )
        for flag, count in (("--servers", here.servers), ("--workers", here.workers)):
            if count > _MOST_HERE:
                raise UsageError(
                    f"{flag} is {count}: one machine starts at most {_MOST_HERE} of them; start the"
                    f" others elsewhere (--local-{flag[2:]})"
                )
        return here

    def invitation(self, job: JobSpec, address: Address, secret_file: Path) -> list[str]:
        """Lines for the user: how many processes must join from other hosts, and the commands that
        start them."""
        host = _way_out() if address.host in ANY_HOST else address.host
        there = f"{host}:{address.port}"
        insecure = "" if is_loopback(host) else " --insecure"
        file = f"{job.name} " if job.path else ""
        lines = []
        secret = "" if is_loopback(host) else f" --secret-file {secret_file.name}"
        if missing := job.servers - self.servers:
            command = f"polyrhythm server --connect {there}{insecure}{secret}"
            lines.append(f"waiting for {_from_elsewhere(missing, 'server')}: {command}")
        if missing := job.workers - self.workers:
            command = f"polyrhythm worker {file}--connect {there}{secret}"
            lines.append(f"waiting for {_from_elsewhere(missing, 'worker')}: {command}")
        if lines and secret:
            lines.append(
                f"the job's secret is in {secret_file}: on another machine, put a copy of it where"
                " only you can read it"
            )
        return lines


def child_requests(
    spec: JobSpec,
    run_dir: Path,
    *,
    link: str,
    digest: str,
    here: Here | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    threads: int | None = None,
    trace: bool = False,
    check: bool = False,
    debug: bool = False,
    secret_file: Path | None = None,
    main: PackedMain | None = None,
) -> list[ChildRequest]:
    """Requests for all processes on this host. `threads`: the threads of each worker; None: an
    equal share of the cores, and 1 in a deterministic job. `secret_file`: the file with the job's
    secret, for commands that join the job. Without it, no command can join. `main`: the function
    that workers run instead of the job's file."""
    secret = fresh_secret() if secret_file is None else read_secret(secret_file)
    here = here or Here(spec.servers, spec.workers)
    share = 1 if spec.deterministic else share_of_cores(here.workers, here.servers)
    threads = threads or share

    def request(role: Any, number: int, name: str, port: int) -> ChildRequest:
        return ChildRequest(
            role=role,
            number=number,
            name=name,
            job=spec,
            link=link,
            digest=digest,
            host=host,
            port=port,
            run_dir=str(run_dir.resolve()),
            threads=threads,
            trace=trace,
            check=check,
            debug=debug,
            main=main if role == "worker" else None,
            secret=secret,
            secret_file="" if secret_file is None else str(secret_file.resolve()),
        )

    servers = [
        request("server", n, f"s{n}", port if n == SEAT.server else 0) for n in range(here.servers)
    ]
    workers = [request("worker", n, f"worker-{n}", 0) for n in range(here.workers)]
    return servers + workers


def _from_elsewhere(count: int, noun: str) -> str:
    each = "" if count == 1 else ", once for each"
    return f"{counted(count, noun)} from elsewhere; run there{each}"


def _way_out() -> str:
    """An address of this host that other hosts can reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_FAR_AWAY)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()  # there is no route to other hosts
