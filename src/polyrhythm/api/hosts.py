"""Which processes of a job this command starts, and which commands the user must run on other
hosts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrhythm.api.values import demands
from polyrhythm.core.devices import CPU, asked_by, parse_devices
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.engines.cores import shares_of_cores
from polyrhythm.engines.engine import ClusterOptions
from polyrhythm.engines.requests import ChildRequest, PackedMain
from polyrhythm.errors import UsageError
from polyrhythm.io.secretfile import fresh_secret, read_secret
from polyrhythm.observe.join_hint import COLOCATED, JoinHint
from polyrhythm.observe.words import counted
from polyrhythm.wire.messages import JobSpec

_DEFAULT_SERVERS = 2
_MOST_HERE = 1000
"""The most servers, and the most workers, that one command starts. Each server and each worker is a
process that has imported torch."""


@dataclass(frozen=True, slots=True)
class Here:
    """How many of a job's servers and workers run on this host."""

    servers: int
    workers: int
    colocated: bool = False
    """Whether the other servers run beside the other workers (`--colocate`)."""

    @classmethod
    def of(
        cls,
        job: JobSpec,
        servers: int | None,
        workers: int | None,
        most: int | None = None,
        *,
        colocated: bool = False,
    ) -> "Here":
        """`most`: the most workers that the job accepts, if it begins with fewer."""
        most = job.workers if most is None else most
        if colocated and servers is None and workers is not None:
            servers = min(max(1, workers), job.servers)
        here = cls(
            job.servers if servers is None else servers,
            most if workers is None else workers,
            colocated,
        )
        if not 1 <= here.servers <= job.servers:
            raise UsageError(
                f"--local-servers is {here.servers}: give 1 to {job.servers} (--servers); the lead"
                " runs in the first server, on this machine"
            )
        if not 0 <= here.workers <= most:
            raise UsageError(f"--local-workers is {here.workers}: give 0 to {most} (--workers)")
        for flag, count in (("--servers", here.servers), ("--workers", here.workers)):
            if count > _MOST_HERE:
                raise UsageError(
                    f"{flag} is {count}: one machine starts at most {_MOST_HERE} of them; start the"
                    f" others elsewhere (--local-{flag[2:]})"
                )
        return here

    def invitation(self, job: JobSpec, hint: JoinHint) -> list[str]:
        """Lines for the user: how many processes must join from other machines, and which command starts
        each."""
        lines = []
        servers, workers = job.servers - self.servers, job.workers - self.workers
        both = min(servers, workers) if self.colocated else 0
        for missing, what, role in (
            (both, "colocated worker", COLOCATED),
            (servers - both, "server", "server"),
            (workers - both, "worker", "worker"),
        ):
            if missing:
                each = "" if missing == 1 else ", once for each"
                there = f"{counted(missing, what)} from other machines; run there{each}"
                lines.append(f"waiting for {there}: {hint.text(role)}")
        return lines


def colocated_servers(servers: int, workers: int) -> int:
    """The number of servers of a job with a server beside each worker. Raises UsageError if another
    number was given."""
    if servers not in (_DEFAULT_SERVERS, workers):
        raise UsageError(
            f"--colocate starts a server beside each worker, {workers} in all: leave --servers"
            f" {servers} out"
        )
    return workers


def cluster_of(given: Mapping[str, Any]) -> ClusterOptions:
    """How the job uses a cluster, from the options of `train`."""
    per_worker, per_server = given["resources_per_worker"], given["resources_per_server"]
    return ClusterOptions(
        given["address"],
        demands(per_worker),
        demands(per_server),
        given["threads"],
        given["detach"],
    )


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What a user has chosen for the processes that a command starts. The settings of the job are in
    its JobSpec."""

    link: str = "auto"
    digest: str = "auto"
    host: str = "127.0.0.1"
    """The address on which the servers listen."""
    port: int = 0
    """The port of the lead; 0: any free one."""
    threads: int | None = None
    """The threads of each worker; None: its share of the cores, and 1 in a deterministic job."""
    devices: str = CPU
    """The devices of the workers (`core/devices.py`)."""
    trace: bool = False
    check: bool = False
    debug: bool = False
    main: PackedMain | None = None
    """The function that workers run instead of the job's file."""


def child_requests(
    spec: JobSpec,
    run_dir: Path,
    options: ProcessOptions | None = None,
    *,
    here: Here | None = None,
    secret_file: Path | None = None,
) -> list[ChildRequest]:
    """Requests for all processes on this host. `secret_file`: the file with the job's secret, for
    commands that join the job. Without it, no command can join."""
    options = options or ProcessOptions()
    secret = fresh_secret() if secret_file is None else read_secret(secret_file)
    here = here or Here(spec.servers, spec.workers)
    items = parse_devices(options.devices)
    asked = [asked_by(items, number) for number in range(here.workers)]
    shares = shares_of_cores(asked, here.servers)

    def threads_of(number: int) -> int:
        return options.threads or (1 if spec.deterministic else shares[number])

    def request(role: Any, number: int, name: str, port: int) -> ChildRequest:
        works = role == "worker"
        return ChildRequest(
            role=role,
            number=number,
            name=name,
            job=spec,
            link=options.link,
            digest=options.digest,
            host=options.host,
            port=port,
            run_dir=str(run_dir.resolve()),
            threads=threads_of(number) if works else 1,
            device=asked[number] if works else CPU,
            trace=options.trace,
            check=options.check,
            debug=options.debug,
            main=options.main if works else None,
            secret=secret,
            secret_file="" if secret_file is None else str(secret_file.resolve()),
            local_servers=here.servers,
        )

    servers = [
        request("server", n, f"s{n}", options.port if n == FIRST_SEAT.server else 0)
        for n in range(here.servers)
    ]
    workers = [request("worker", n, f"worker-{n}", 0) for n in range(here.workers)]
    return servers + workers
