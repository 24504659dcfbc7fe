"""Requests of the engine to the processes that it starts, and their messages: lines of JSON."""

from typing import Any, Literal

import msgspec

from polyrhythm.core.peers import SEAT
from polyrhythm.wire.messages import Address, JobSpec
from polyrhythm.wire.proof import Secret


class ReportLine(msgspec.Struct, frozen=True):
    """A `Note` of a machine, sent to the engine by a process without a journal."""

    what: str
    fields: dict[str, Any]


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
    threads: int = 1
    """How many threads torch uses in a worker."""
    trace: bool = False
    check: bool = False
    debug: bool = False
    lead: Address | None = None
    secret: Secret | None = None
    """The secret of the job. It is sent in this request only, over a socket between two processes:
    never in the environment, on a command line, in the job's settings, the journal or a trace."""
    secret_file: str = ""
    """The file from which other commands read the secret; empty if there is none."""

    @property
    def leads(self) -> bool:
        """Whether the lead runs in this process."""
        return self.role == "server" and self.number == SEAT.server


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a child to the engine, or of the engine to a child (`lead`, `stop`, `note`)."""

    address: Address | None = None
    lead: Address | None = None
    ended: str | None = None
    failed: str | None = None
    whole_job: bool = False
    """`failed` is how the job ended, and not a fault of this process alone."""
    orphaned: bool = False
    """A server ends because the lead is gone, or has removed it from the job."""
    lead_lost: bool = False
    """`failed` because the lead was silent for --lead-timeout."""
    stop: bool = False
    """From the engine to the lead's process: end the job, at once because it has failed, or
    `in_order` because its user asked for it."""
    in_order: bool = False
    saving: bool = False
    """From the lead's process: the job is over, and its model is being written."""
    note: ReportLine | None = None
    """A child's report while it runs. From the engine to the lead's process: a line for the
    journal."""


class Exit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A report of the fork server: a child was started, or has exited."""

    started: int | None = None
    exited: int | None = None
    status: int = 0


encode = msgspec.json.Encoder().encode


def pack_line(value: msgspec.Struct) -> bytes:
    return encode(value) + b"\n"
