"""What the engine asks of the processes it starts, and what they tell it: lines of JSON."""

from typing import Any, Literal

import msgspec

from polyrhythm.core.peers import SEAT
from polyrhythm.wire.messages import Address, JobSpec
from polyrhythm.wire.proof import Secret


class ReportLine(msgspec.Struct, frozen=True):
    """A machine's `Note` on its way to the engine, from a process without a journal."""

    what: str
    fields: dict[str, Any]


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One process to be."""

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
    """Of torch, in a worker."""
    trace: bool = False
    check: bool = False
    debug: bool = False
    lead: Address | None = None
    secret: Secret | None = None
    """The job's. It travels in this request only, over a socket between two processes: never in the
    environment, on a command line, in the job's description, the journal or a trace."""
    secret_file: str = ""
    """Where it is written down for other commands; empty: nowhere."""

    @property
    def leads(self) -> bool:
        """Whether the lead runs in this process."""
        return self.role == "server" and self.number == SEAT.server


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child's word to the engine, or the engine's to a child (`lead`)."""

    address: Address | None = None
    lead: Address | None = None
    ended: str | None = None
    failed: str | None = None
    whole_job: bool = False
    """`failed` is how the job ended, and not a fault of this process alone."""
    orphaned: bool = False
    """A server that ends because the lead is gone, or has let go of it."""
    lead_lost: bool = False
    """`failed` because the lead was silent for --lead-timeout."""
    stop: bool = False
    """From the engine to the lead process: the job has failed, and ends at once."""
    note: ReportLine | None = None
    """A child's report while it runs; from the engine to the lead's process: a line for the journal."""


class Exit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The nursery's word: a child was started, or has exited."""

    started: int | None = None
    exited: int | None = None
    status: int = 0


encode = msgspec.json.Encoder().encode


def pack_line(value: msgspec.Struct) -> bytes:
    return encode(value) + b"\n"
