"""Who says what to whom: which messages are for the lead's machine, and who may send them."""

from polyrhythm.core.effects import LEAD, server_name, worker_name
from polyrhythm.core.events import ServerHelloReceived, WorkerHelloReceived
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import Hello

_WORKER_TO_LEAD = (m.Attach, m.Enrol, m.Trailer, m.Abstained, m.Asking, m.Report, m.Leave)
_SERVER_TO_LEAD = (m.Placed, m.Seeded, m.Arrived, m.Folded, m.CaughtUp, m.Unreachable)
_SERVER_TO_SERVER = (m.Copy, m.Copied, m.Fetch, m.State, m.Adopted)
_WORKER_TO_SERVER = (m.Contribution, m.Seed, m.Pull, m.Pulled)
_LEAD_TO_SERVER = (m.Place, m.Fold, m.Stop)  # and its own Alive

TO_LEAD: frozenset[type[m.Message]] = frozenset({*_WORKER_TO_LEAD, *_SERVER_TO_LEAD, m.Alive})
TO_SERVER: frozenset[type[m.Message]] = frozenset(
    {*_WORKER_TO_SERVER, *_LEAD_TO_SERVER, *_SERVER_TO_SERVER}
)
_BY_WORKERS = frozenset(_WORKER_TO_LEAD + _WORKER_TO_SERVER)
_BY_SERVERS = frozenset(_SERVER_TO_LEAD + _SERVER_TO_SERVER)


def speaker(message: m.Message) -> str:
    """In whose name it is said."""
    kind = type(message)
    if kind in _BY_WORKERS or (kind is m.Alive and message.worker >= 0):
        return worker_name(message.worker)
    if kind in _BY_SERVERS or (kind is m.Alive and message.server >= 0):
        return server_name(message.server)
    return LEAD


def is_to_lead(message: m.Message) -> bool:
    """Whether the lead's machine takes it. The lead's own heartbeat, which names neither a worker
    nor a server, goes the other way."""
    kind = type(message)
    if kind is m.Alive:
        return message.worker >= 0 or message.server >= 0
    return kind in TO_LEAD


def caller(hello: Hello) -> str:
    """By which name a server that does not lead knows who says hello."""
    if isinstance(hello, m.WorkerHello):
        return worker_name(hello.worker)
    return server_name(hello.server)


def hello_event(link: str, hello: Hello) -> WorkerHelloReceived | ServerHelloReceived:
    """What the lead hears of who says hello."""
    if isinstance(hello, m.WorkerHello):
        return WorkerHelloReceived(link, hello)
    return ServerHelloReceived(link, hello)
