"""Refuses messages that a peer may not send. A peer may send messages only in its own name, and
only the lead may give orders."""

from polyrhythm.core.names import SEAT, is_operator
from polyrhythm.core.senders import TO_SERVER, is_to_lead, sender
from polyrhythm.errors import FrameError
from polyrhythm.io.link import Link
from polyrhythm.wire import messages as m


def for_the_lead(link: Link, message: m.Message) -> bool:
    """Whether a message is for the lead's machine; otherwise it is for the server's machine. Raises
    FrameError if the peer of this link may not send the message."""
    kind = type(message)
    if kind is m.OperatorRequest:
        if not is_operator(link.peer):
            raise FrameError(f"{link.peer} is not an operator, and sent a request of an operator")
        return True
    to_lead = is_to_lead(message)
    if not to_lead and kind not in TO_SERVER and kind is not m.Alive:
        raise FrameError(f"{m.article(kind.__name__)} {kind.__name__} is not a message to a server")
    named = sender(message)
    if named != link.peer and not SEAT.may_send_over(link.peer, named):
        raise FrameError(
            f"{link.peer} sent a message in the name of another process: {kind.__name__}"
        )
    return to_lead
