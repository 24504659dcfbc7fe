"""Messages between an operator and the lead. An operator is a command of the job's user that asks
the lead of a running job for something, such as a stop; it is no member of the job."""

from typing import Annotated

import msgspec
from msgspec import Meta

from polyrhythm.wire.messages.fields import PROTOCOL, Amount, Count, Label, Message, Number
from polyrhythm.wire.messages.job import JobSpec
from polyrhythm.wire.messages.reasons import Reason

STOP = "stop"
"""A request: end the job, after the workers have left their loops, or at once."""
CHECKPOINT = "checkpoint"
"""A request: make a checkpoint now. The request is done when the checkpoint is written."""

DRAIN = "drain"
"""A request: move the slices of a server to the others, and let it leave. The request is done when
the server has left."""
NO_SERVER = -1

CODE = "code"
"""A request: send the file with the job's code."""
MOST_CODE_NBYTES = 1024 * 1024
"""The largest file with a job's code that is sent."""

JOURNAL = "journal"
"""A request: send a page of the journal. Every page is a request, over another link, so the lead
holds at most one page for an operator."""
MOST_PAGE_NBYTES = 512 * 1024
"""The size of a page of the journal."""


class OperatorHello(Message, frozen=True, kw_only=True):
    """The first frame of an operator, to the lead."""

    name: str
    """The operator's name in the journal, such as `anna@host`."""
    job: str
    protocol: Count = PROTOCOL
    digests: tuple[int, ...] = ()
    nonce: bytes = b""
    """Random bytes for the proofs of both ends (`wire/proof.py`); over TCP only."""


class OperatorRequest(Message, frozen=True, kw_only=True):
    """The only message of an operator after its hello."""

    what: Label
    at_once: bool = False
    """With `STOP`: whether to end the job without waiting until the workers have left their
    loops."""
    server: Annotated[int, Meta(ge=NO_SERVER)] = NO_SERVER
    """With `DRAIN`: the number of the server."""
    at: Amount = 0
    """With `JOURNAL`: where the page begins, in bytes."""


class JournalPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the journal of a running job, with other information that a reader of the journal
    needs."""

    run_dir: Annotated[str, Meta(max_length=4096)]
    """The folder of the run, on the machine that has it."""
    job: JobSpec
    now_s: Number
    """The present time on the clock of the journal."""
    lines: Annotated[bytes, Meta(max_length=MOST_PAGE_NBYTES)]
    """The bytes of the journal from where the page begins. A line may continue on the next page."""
    last: bool
    """Whether the journal ends with this page."""


class OperatorAnswer(Message, frozen=True, kw_only=True):
    """The progress of the request. The last answer has `done` set; the lead then closes the link.
    The answer to an impossible request is a `Refusal`."""

    reason: Reason
    done: bool = False
    failed: bool = False
    """With `done`: whether the request was not carried out, or the job failed meanwhile."""
    source: Annotated[bytes, Meta(max_length=MOST_CODE_NBYTES)] = b""
    """With `CODE`: the contents of the job's file."""
    page: JournalPage | None = None
    """With `JOURNAL`: the page."""
