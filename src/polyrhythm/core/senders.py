"""Which process may send each message, and whether the lead's machine or a server's machine handles
it."""

from polyrhythm.core.events import (
    OperatorCalled,
    OperatorHelloReceived,
    ServerCalled,
    ServerHelloReceived,
    WorkerCalled,
    WorkerHelloReceived,
)
from polyrhythm.core.names import LEAD, server_name, worker_name
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import Hello

_WORKER_TO_LEAD = (
    m.ModelSize,
    m.Attach,
    m.Enrol,
    m.Delivered,
    m.Trailer,
    m.Abstained,
    m.Asking,
    m.Report,
    m.Leave,
    m.Withheld,
    m.Keeping,
    m.Kept,
)
_SERVER_TO_LEAD = (
    m.Placed,
    m.Seeded,
    m.Arrived,
    m.Folded,
    m.CaughtUp,
    m.Drain,
    m.Unreachable,
    m.RatesMeasured,
    m.Collected,
    m.CutTaken,
    m.CutWritten,
    m.Holding,
)
_SERVER_TO_SERVER = (m.Copy, m.Copied, m.Fetch, m.State, m.Adopted)
_WORKER_TO_SERVER = (m.Contribution, m.Seed, m.Pull, m.Pulled, m.Shared)
LEAD_TO_SERVER = (
    m.Introduced,
    m.Dismissed,
    m.Place,
    m.Fold,
    m.Collect,
    m.Capture,
    m.Cut,
    m.Stays,
    m.Stop,
)  # the lead also sends `Alive`, which is its heartbeat

LEAD_TO_WORKER = (
    m.Admitted,
    m.Divided,
    m.Routing,
    m.Leased,
    m.Release,
    m.Keep,
    m.Share,
    m.Withhold,
    m.Proceed,
    m.Progressed,
    m.Pause,
    m.Appointed,
    m.Evicted,
    m.Stop,
    m.Alive,
)
"""The orders of the lead to a worker. A `Refusal` is not among them, because any server may send
one."""

TO_LEAD: frozenset[type[m.Message]] = frozenset({*_WORKER_TO_LEAD, *_SERVER_TO_LEAD, m.Alive})
TO_SERVER: frozenset[type[m.Message]] = frozenset(
    {*_WORKER_TO_SERVER, *LEAD_TO_SERVER, *_SERVER_TO_SERVER}
)
_BY_WORKERS = frozenset(_WORKER_TO_LEAD + _WORKER_TO_SERVER)
_BY_SERVERS = frozenset(_SERVER_TO_LEAD + _SERVER_TO_SERVER)
_BY_EITHER = (m.Alive, m.Unreachable, m.RatesMeasured)
"""Messages that workers and servers send. A worker writes its number into them."""


def sender(message: m.Message) -> str:
    """The process that the message names as its sender."""
    kind = type(message)
    if kind in _BY_WORKERS or (kind in _BY_EITHER and message.worker >= 0):
        return worker_name(message.worker)
    if kind in _BY_SERVERS or (kind is m.Alive and message.server >= 0):
        return server_name(message.server)
    return LEAD


def is_to_lead(message: m.Message) -> bool:
    """Whether the lead's machine handles the message. The lead's own heartbeat names neither a
    worker nor a server."""
    kind = type(message)
    if kind is m.Alive:
        return message.worker >= 0 or message.server >= 0
    return kind in TO_LEAD


def called(link: str, hello: Hello) -> WorkerCalled | ServerCalled | OperatorCalled:
    """The event for a hello that came to a server which does not run the lead."""
    if isinstance(hello, m.OperatorHello):
        return OperatorCalled(link)
    if isinstance(hello, m.WorkerHello):
        return WorkerCalled(link, hello.worker, hello.incarnation)
    return ServerCalled(link, hello.server, hello.incarnation)


def hello_event(
    link: str, hello: Hello
) -> WorkerHelloReceived | ServerHelloReceived | OperatorHelloReceived:
    """The event for a hello that came to the process of the lead."""
    if isinstance(hello, m.OperatorHello):
        return OperatorHelloReceived(link, hello)
    if isinstance(hello, m.WorkerHello):
        return WorkerHelloReceived(link, hello)
    return ServerHelloReceived(link, hello)
