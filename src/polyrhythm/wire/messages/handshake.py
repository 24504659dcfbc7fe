"""Messages of the link itself: the handshake, refusals, and memory segments of local links."""

from polyrhythm.wire.messages.fields import PROTOCOL, Amount, Count, Message, Seconds
from polyrhythm.wire.messages.reasons import Reason
from polyrhythm.wire.messages.specs import Address


class WorkerHello(Message, frozen=True, kw_only=True):
    """The first frame of a worker. It names the worker's incarnation to a server, and the one that
    it had before, if any, to the lead."""

    name: str
    job: str
    identity: str
    protocol: Count = PROTOCOL
    digests: tuple[int, ...] = ()
    capabilities: tuple[str, ...] = ("torch",)
    nonce: bytes = b""
    """Random bytes for the proofs of both ends (`wire/proof.py`); over TCP only."""


class ServerHello(Message, frozen=True, kw_only=True):
    """The first frame of a server, to the lead or to another server."""

    name: str
    job: str
    address: Address
    identity: str
    protocol: Count = PROTOCOL
    digests: tuple[int, ...] = ()
    nonce: bytes = b""


class Challenge(Message, frozen=True, kw_only=True):
    """The answer to a hello over TCP: the acceptor's nonce, its name and job, and its proof that it
    knows the job's secret."""

    nonce: bytes
    name: str
    job: str
    proof: bytes = b""


class Proof(Message, frozen=True, kw_only=True):
    """The opener's proof that it knows the job's secret."""

    proof: bytes


class HelloReply(Message, frozen=True, kw_only=True):
    """The answer to a hello: the name of the answering server, and the digest of all later
    frames."""

    name: str
    digest: int
    address: Address
    heartbeat_s: Seconds = 0.5
    """The period of the lead's heartbeats. A worker needs it, and the timeout, before it is
    admitted and gets the settings of the job."""
    lead_timeout_s: Seconds = 120.0
    protocol: Count = PROTOCOL


class Refusal(Message, frozen=True, kw_only=True):
    """The last frame of a link that its sender ends, with the reason."""

    reason: Reason
    ending: bool = False
    """The job ends in order, and admits no worker any more."""


class SegmentOffered(Message, frozen=True, kw_only=True):
    """A memory segment whose descriptor travels with this frame (local links only)."""

    segment: Amount
    nbytes: Amount


class SegmentWithdrawn(Message, frozen=True, kw_only=True):
    """No later frame refers to this segment: unmap it, so that its memory is freed."""

    segment: Amount
