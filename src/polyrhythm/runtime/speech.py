"""Who may say what to whom. A peer speaks for itself only, and orders are the lead's to give."""

from polyrhythm.core.effects import LEAD, server_name, worker_name
from polyrhythm.errors import FrameError
from polyrhythm.io.link import Link
from polyrhythm.wire import messages as m

_WORKER_TO_LEAD = (m.Attach, m.Enrol, m.Trailer, m.Abstained, m.Asking, m.Report, m.Leave)
_SERVER_TO_LEAD = (m.Placed, m.Seeded, m.Arrived, m.Folded, m.CaughtUp, m.Unreachable)
_SERVER_TO_SERVER = (m.Copy, m.Copied, m.Fetch, m.State, m.Adopted)
_LEADS_SERVER = server_name(0)
_WORKER_TO_SERVER = (m.Contribution, m.Seed, m.Pull, m.Pulled)
_LEAD_TO_SERVER = (m.Place, m.Fold, m.Stop)

_LEADS_EAR: dict[type[m.Message], bool] = {
    **dict.fromkeys((*_WORKER_TO_LEAD, *_SERVER_TO_LEAD, m.Alive), True),
    **dict.fromkeys(_WORKER_TO_SERVER + _LEAD_TO_SERVER + _SERVER_TO_SERVER, False),
}
_BY_WORKERS = frozenset(_WORKER_TO_LEAD + _WORKER_TO_SERVER)
_BY_SERVERS = frozenset(_SERVER_TO_LEAD + _SERVER_TO_SERVER)


def for_the_lead(link: Link, message: m.Message) -> bool:
    """Whether a message that came over `link` is for the lead's machine (else for the server's);
    refuses what its sender has no business to say."""
    kind = type(message)
    to_lead = _LEADS_EAR.get(kind)
    if to_lead is None:
        raise FrameError(f"a {kind.__name__} has no business here")
    if kind in _BY_WORKERS or (kind is m.Alive and message.worker >= 0):
        speaker = worker_name(message.worker)
    elif kind in _BY_SERVERS or kind is m.Alive:
        speaker = server_name(message.server)
    else:
        speaker = LEAD
    if link.peer != speaker and (speaker, link.peer) != (_LEADS_SERVER, LEAD):
        raise FrameError(f"{link.peer} spoke in the name of another: {kind.__name__}")
    return to_lead
