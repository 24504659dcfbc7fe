"""Messages between an operator and the lead. An operator is a command of the job's user that asks the
lead of a running job for something, such as a stop; it is no member of the job."""

from polyrhythm.wire.messages.fields import PROTOCOL, Count, Label, Message
from polyrhythm.wire.messages.reasons import Reason

STOP = "stop"
"""A request: end the job, in order or at once."""
CHECKPOINT = "checkpoint"
"""A request: make a checkpoint now. It is done when the checkpoint is written."""


class OperatorHello(Message, frozen=True, kw_only=True):
    """The first frame of an operator, to the lead."""

    name: str
    """The operator as the journal names it, such as `anna@host`."""
    job: str
    protocol: Count = PROTOCOL
    digests: tuple[int, ...] = ()
    nonce: bytes = b""
    """Random bytes for the proofs of both ends (`wire/proof.py`); over TCP only."""


class OperatorRequest(Message, frozen=True, kw_only=True):
    """The only message of an operator after its hello."""

    what: Label
    at_once: bool = False
    """With `STOP`: do not let the workers leave their loops in order."""


class OperatorAnswer(Message, frozen=True, kw_only=True):
    """How far the request is. The last answer is `done`, and the lead closes the link after it. A
    request that cannot be met gets a `Refusal` instead."""

    reason: Reason
    done: bool = False
    failed: bool = False
    """With `done`: the request was not met, or the job failed meanwhile."""
