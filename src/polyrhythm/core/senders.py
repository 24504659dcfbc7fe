"""Who says what to whom: which messages are for the lead's machine, and who may send them."""

from polyrhythm.core.effects import LEAD, server_name, worker_name
from polyrhythm.core.events import ServerKnocked, WorkerKnocked
from polyrhythm.wire import messages as m

Bonjour = m.WorkerBonjour | m.ServerBonjour

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


def caller(bonjour: Bonjour) -> str:
    """By which name a server that does not lead knows who says bonjour."""
    if isinstance(bonjour, m.WorkerBonjour):
        return worker_name(bonjour.worker)
    return server_name(bonjour.server)


def knocked(link: str, bonjour: Bonjour) -> WorkerKnocked | ServerKnocked:
    """What the lead hears of who says bonjour."""
    if isinstance(bonjour, m.WorkerBonjour):
        return WorkerKnocked(link, bonjour)
    return ServerKnocked(link, bonjour)
