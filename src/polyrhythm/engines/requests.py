"""Requests of the engine to start processes, and the messages between these processes and the
engine. All are lines of JSON."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from polyrhythm.core.devices import CPU, CudaFound
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.io.tcp import reached_at
from polyrhythm.observe.join_hint import ANY_FILE
from polyrhythm.observe.journal import JournalPart
from polyrhythm.wire.messages import Address, JobSpec
from polyrhythm.wire.proof import Secret

LOOK_FOR_CUDA, STEPS = "--look-for-cuda", "--steps"
"""Arguments of the fork server: report the CUDA devices of this host; workers make steps of their
optimizers."""


class ReportLine(msgspec.Struct, frozen=True):
    """A `Note` of a machine, sent to the engine by a process without a journal."""

    what: str
    fields: dict[str, Any]


class PackedMain(msgspec.Struct, frozen=True):
    """The function that every worker runs, pickled. It is sent only between processes that one
    command or Python process has started, over their control sockets, and never over a link."""

    pickled: bytes
    path: list[str]
    """The folders from which the function's process imports modules (`sys.path`)."""


class FilePart(msgspec.Struct, frozen=True):
    """A part of a file of the model, for the folder of the run. The parts of a file are sent in
    order."""

    name: str
    at: int
    """Where the part begins in the file."""
    data: bytes
    last: bool


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to start one server or worker."""

    role: Literal["server", "worker"]
    number: int
    name: str
    job: JobSpec
    link: str = "auto"
    digest: str = "auto"
    host: str = "127.0.0.1"
    port: int = 0
    run_dir: str = ""
    """The folder of the run on the machine of the engine."""
    folder: str = ""
    """The folder in which this process may write, if it cannot reach `run_dir`. The process then
    sends the engine everything that belongs into `run_dir`."""
    code: str = ""
    """The copy of the job's file on the machine of this process; empty if the job's own path is
    valid here."""
    threads: int = 1
    """How many threads torch uses in this worker."""
    device: str = CPU
    """The device of this worker. In a request to the engine: what the worker asks for, such as
    `auto` (`core/devices.py`)."""
    trace: bool = False
    check: bool = False
    debug: bool = False
    lead: Address | None = None
    main: PackedMain | None = None
    """The function that the worker runs instead of the job's file. It may be large, so it is sent in
    its own message after this request."""
    main_follows: bool = False
    """Whether the engine sends `main` in its first message to the worker."""
    secret: Secret | None = None
    """The secret of the job. It is sent in this request only, over a socket between two processes:
    never in the environment, on a command line, in the job's settings, the journal or a trace."""
    secret_file: str = ""
    """The file from which other commands read the secret; empty if there is none."""
    local_servers: int = 0
    """How many servers the command starts. These servers have the lowest numbers."""

    @property
    def leads(self) -> bool:
        """Whether the lead runs in this process."""
        return self.role == "server" and self.number == FIRST_SEAT.server

    @property
    def own_dir(self) -> Path:
        """The folder in which this process writes its files."""
        return Path(self.folder or self.run_dir)


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a child to the engine, or of the engine to a child. The engine sends only
    `main`, `lead`, `stop`, `in_order`, `leave`, `failed`, `note` and `new_log`."""

    main: PackedMain | None = None

    address: Address | None = None
    lead: Address | None = None
    ended: str | None = None
    failed: str | None = None
    whole_job: bool = False
    """Whether `failed` says how the whole job ended. If so, this process itself did not fail."""
    orphaned: bool = False
    """Whether this server ends because the lead is gone, or because the lead has removed this
    server from the job. Of a worker: whether it failed because it has lost a link."""
    lead_lost: bool = False
    """Whether the process failed because the lead was silent for longer than --lead-timeout."""
    stop: bool = False
    """From the engine to the lead's process: whether to end the job. Without `in_order` the job
    ends at once: it has failed (`failed` says why), or the user asked for an immediate end."""
    in_order: bool = False
    leave: bool = False
    """From the engine to a worker that it cannot send a signal, or to a server: whether to leave the
    job. A server asks the lead to move its slices first."""
    saving: bool = False
    """From the lead's process: whether the job is over and the lead is writing the model."""
    contributed: bool = False
    """From a worker: whether its first contribution has been acknowledged."""
    new_log: bool = False
    """From the engine: whether this process must begin a new log, because its log is large."""
    note: ReportLine | None = None
    """From a child: a report while it runs. From the engine to the lead's process: a line for the
    journal."""
    journal: JournalPart | None = None
    """From the lead's process: lines of the journal that may be missing from its file, or that the
    engine must write."""
    file: FilePart | None = None
    """From a lead's process that cannot write into the folder of the run: a part of the model."""
    unrecorded: str | None = None
    """From the lead's process, with `ended`: why lines are missing in the journal's file."""


class Exit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A report of the fork server: a child was started, or has exited. `found`: the CUDA devices of
    this host, in the first report, if the fork server was told to look for them. `fault`: why a
    child could not be started."""

    found: CudaFound | None = None
    started: int | None = None
    exited: int | None = None
    fault: str | None = None
    status: int = 0


encode = msgspec.json.Encoder().encode


def pack_line(value: msgspec.Struct) -> bytes:
    return encode(value) + b"\n"


def listening_fields(
    request: ChildRequest, address: Address, *, indexed: bool = True
) -> dict[str, Any]:
    """The journal's information on how to join. `indexed`: the index of this user's jobs contains
    the job, so other commands can find its secret and its file by the address."""
    job = request.job
    without_file = job.served or ":" in job.name
    return {
        "host": address.host,
        "port": address.port,
        "job": job.job,
        "reached_at": reached_at(address.host),
        "file": job.name if job.path else ANY_FILE if without_file else "",
        "served": job.served,
        "secret_file": request.secret_file,
        "indexed": indexed,
        "local_servers": request.local_servers,
    }
