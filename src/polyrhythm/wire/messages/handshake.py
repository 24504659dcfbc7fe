"""Messages of the link itself: the handshake, refusals, and memory segments of local links."""

from polyrhythm.wire.messages.fields import PROTOCOL, Amount, Count, Message, Seconds
from polyrhythm.wire.messages.reasons import Reason
from polyrhythm.wire.messages.specs import Address


class WorkerHello(Message, frozen=True, kw_only=True):
    """The first frame of a worker. `incarnation`: to a server, the worker's incarnation; to the
    lead, the incarnation that the worker had before, if it rejoins."""

    name: str
    job: str
    identity: str
    protocol: Count = PROTOCOL
    digests: tuple[int, ...] = ()
    capabilities: tuple[str, ...] = ("torch",)
    nonce: bytes = b""
    """Random bytes for the proofs of both ends (`wire/proof.py`); over TCP only."""
    pid: Amount = 0
    """The id of the worker's process and the name of its host, for users who look for the
    process."""
    host: str = ""
    device: str = ""
    """The device on which the worker computes, such as `cuda:0`, for people."""


class ServerHello(Message, frozen=True, kw_only=True):
    """The first frame of a server, to the lead or to another server."""

    name: str
    job: str
    address: Address
    identity: str
    protocol: Count = PROTOCOL
    digests: tuple[int, ...] = ()
    nonce: bytes = b""
    pid: Amount = 0
    host: str = ""


class Challenge(Message, frozen=True, kw_only=True):
    """The acceptor's answer to a hello over TCP: its nonce, its name, its job, and its proof that
    it knows the job's secret."""

    nonce: bytes
    name: str
    job: str
    proof: bytes = b""


class Proof(Message, frozen=True, kw_only=True):
    """The opener's proof that it knows the job's secret."""

    proof: bytes


class HelloReply(Message, frozen=True, kw_only=True):
    """The end of the handshake: the name of the server that was dialled, and the digest that all
    later frames carry."""

    name: str
    digest: int
    address: Address
    heartbeat_s: Seconds = 0.5
    """The period of the lead's heartbeats. A worker needs this period and the timeout before it is
    admitted and gets the settings of the job."""
    lead_timeout_s: Seconds = 120.0
    protocol: Count = PROTOCOL


class Refusal(Message, frozen=True, kw_only=True):
    """The sender ends the link, for this reason. It is the last frame of the link."""

    reason: Reason
    ending: bool = False
    """Whether the link ends because the job is ending as planned and admits no more workers."""


class SegmentOffered(Message, frozen=True, kw_only=True):
    """Local links only: the peer may map this memory segment, whose file descriptor is sent with
    this frame."""

    segment: Amount
    nbytes: Amount


class SegmentWithdrawn(Message, frozen=True, kw_only=True):
    """Local links only: no later frame refers to this segment. The peer unmaps it, so that its
    memory is freed."""

    segment: Amount
