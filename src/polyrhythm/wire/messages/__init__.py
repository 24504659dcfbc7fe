"""The typed messages: the contents of a frame's head. Machines take them as events and return them.

Every message carries its whole identity (term, epochs, worker, incarnation, sequence, round, slice,
weight, server), whether it uses all of it or not. So replicas, failover and migration need no new
format. Fields travel by position: a new field is added at the end.

Use this package as `from polyrhythm.wire import messages as m`; its modules divide the messages by
purpose.
"""

import msgspec

from polyrhythm.wire.events import EventType
from polyrhythm.wire.messages.contribution import (
    Abstained,
    Acknowledged,
    Arrived,
    Asking,
    Contribution,
    Fold,
    Folded,
    Parameters,
    Pause,
    Pull,
    Pulled,
    Release,
    Trailer,
)
from polyrhythm.wire.messages.fields import (
    EVERY_SLICE,
    LEAST_WEIGHT,
    MOST_COUNT,
    MOST_NUMBER,
    PROTOCOL,
    WINDOW,
    Amount,
    Count,
    Label,
    Message,
    Number,
    Option,
    Rate,
    Seconds,
    Weight,
)
from polyrhythm.wire.messages.handshake import (
    Challenge,
    HelloReply,
    Proof,
    Refusal,
    SegmentOffered,
    SegmentWithdrawn,
    ServerHello,
    WorkerHello,
)
from polyrhythm.wire.messages.job import JobSpec
from polyrhythm.wire.messages.membership import (
    Admitted,
    Alive,
    Attach,
    Enrol,
    Evicted,
    Leased,
    Leave,
    Report,
    Routing,
    Stop,
)
from polyrhythm.wire.messages.operator import OperatorAnswer, OperatorHello, OperatorRequest
from polyrhythm.wire.messages.replication import Adopted, Copied, Copy, Fetch, State
from polyrhythm.wire.messages.saving import Collect, Collected
from polyrhythm.wire.messages.servers import (
    CaughtUp,
    Dismissed,
    Introduced,
    Place,
    Placed,
    Seed,
    Seeded,
    Unreachable,
)
from polyrhythm.wire.messages.specs import (
    Address,
    ChunkLease,
    ChunkProgress,
    FileEntry,
    MemberSpec,
    ModelSpec,
    OptimizerSpec,
    Route,
    Row,
    ServerSpec,
    SliceStep,
    Stamp,
    StateName,
    TensorSpec,
)

__all__ = [
    "DECODERS",
    "EVENT_TYPES",
    "EVERY_SLICE",
    "LEAST_WEIGHT",
    "MOST_COUNT",
    "MOST_NUMBER",
    "PROTOCOL",
    "WINDOW",
    "Abstained",
    "Acknowledged",
    "Address",
    "Admitted",
    "Adopted",
    "Alive",
    "Amount",
    "Arrived",
    "Asking",
    "Attach",
    "CaughtUp",
    "Challenge",
    "ChunkLease",
    "ChunkProgress",
    "Collect",
    "Collected",
    "Contribution",
    "Copied",
    "Copy",
    "Count",
    "Dismissed",
    "Enrol",
    "Evicted",
    "Fetch",
    "FileEntry",
    "Fold",
    "Folded",
    "HelloReply",
    "Introduced",
    "JobSpec",
    "Label",
    "Leased",
    "Leave",
    "MemberSpec",
    "Message",
    "ModelSpec",
    "Number",
    "OperatorAnswer",
    "OperatorHello",
    "OperatorRequest",
    "OptimizerSpec",
    "Option",
    "Parameters",
    "Pause",
    "Place",
    "Placed",
    "Proof",
    "Pull",
    "Pulled",
    "Rate",
    "Refusal",
    "Release",
    "Report",
    "Route",
    "Routing",
    "Row",
    "Seconds",
    "Seed",
    "Seeded",
    "SegmentOffered",
    "SegmentWithdrawn",
    "ServerHello",
    "ServerSpec",
    "SliceStep",
    "Stamp",
    "State",
    "StateName",
    "Stop",
    "TensorSpec",
    "Trailer",
    "Unreachable",
    "Weight",
    "WorkerHello",
    "article",
    "encode_head",
    "frame_of",
]

EVENT_TYPES: dict[type[Message], EventType] = {
    ServerHello: EventType.SRV_BONJOUR,
    Alive: EventType.ALIVE,
    Seed: EventType.BONJOUR_MDES,
    WorkerHello: EventType.WRK_BONJOUR,
    Contribution: EventType.WRK_UPDATE,
    HelloReply: EventType.GREETING,
    Challenge: EventType.CHALLENGE,
    Proof: EventType.PROOF,
    Refusal: EventType.REFUSED,
    SegmentOffered: EventType.SEGMENT,
    SegmentWithdrawn: EventType.SEGMENT_WITHDRAWN,
    Admitted: EventType.ADMITTED,
    Attach: EventType.ATTACH,
    Routing: EventType.ROUTING,
    Enrol: EventType.ENROL,
    Leased: EventType.LEASED,
    Report: EventType.REPORT,
    Leave: EventType.LEAVE,
    Stop: EventType.STOP,
    Evicted: EventType.EVICTED,
    Trailer: EventType.TRAILER,
    Abstained: EventType.ABSTAINED,
    Arrived: EventType.ARRIVED,
    Fold: EventType.FOLD,
    Folded: EventType.FOLDED,
    Release: EventType.RELEASE,
    Pause: EventType.PAUSE,
    Asking: EventType.ASKING,
    Acknowledged: EventType.ACKNOWLEDGED,
    Pull: EventType.PULL,
    Parameters: EventType.PARAMETERS,
    Pulled: EventType.PULLED,
    Place: EventType.PLACE,
    Placed: EventType.PLACED,
    Seeded: EventType.SEEDED,
    CaughtUp: EventType.CAUGHT_UP,
    Unreachable: EventType.UNREACHABLE,
    Introduced: EventType.INTRODUCED,
    Dismissed: EventType.DISMISSED,
    Copy: EventType.COPY,
    Copied: EventType.COPIED,
    Fetch: EventType.FETCH,
    State: EventType.STATE,
    Adopted: EventType.ADOPTED,
    OperatorHello: EventType.OPERATOR_HELLO,
    OperatorRequest: EventType.OPERATOR_REQUEST,
    OperatorAnswer: EventType.OPERATOR_ANSWER,
    Collect: EventType.COLLECT,
    Collected: EventType.COLLECTED,
}
DECODERS: dict[int, msgspec.msgpack.Decoder[Message]] = {
    event: msgspec.msgpack.Decoder(kind) for kind, event in EVENT_TYPES.items()
}
encode_head = msgspec.msgpack.Encoder().encode


_NAMES: dict[int, str] = {event: kind.__name__ for kind, event in EVENT_TYPES.items()}


def frame_of(event: int) -> str:
    """A frame of a known type, named by the message that it carries."""
    name = _NAMES[event]
    return f"{article(name)} {name} frame"


def article(name: str) -> str:
    return "an" if name[0] in "AEIOU" else "a"
