"""Separates faults of a peer from faults of this process, and refuses messages that a peer may not
send. A peer may send messages only in its own name, and only the process with the lead's seat may
give orders.

*Any exception while the bytes or the message of one peer are decoded, checked and used ends only
the link to that peer, and prints one line.* Two kinds of exceptions end the process, because its
state may then be half changed: `InvariantBroken`, and exceptions of machines and of their effects
(`Driver.run` is called outside this boundary).
"""

import sys

from polyrhythm.core.names import is_operator
from polyrhythm.core.seat import Seat
from polyrhythm.core.senders import TO_SERVER, is_to_lead, sender
from polyrhythm.core.values import plain
from polyrhythm.errors import FrameError, InvariantBroken, LinkError, NotFinite
from polyrhythm.io.link import Link
from polyrhythm.wire import messages as m

EXPECTED = (FrameError, LinkError, NotFinite)
"""The exceptions of checks of messages. Their text is sent to the peer and written to the
journal."""


def fault_of(peer: str, error: Exception) -> Exception:
    """Return the error that ends the link to this peer. An exception that no check has raised is
    also printed to stderr, because it means that a check is missing. `InvariantBroken` is raised
    again."""
    if isinstance(error, InvariantBroken):
        raise error
    if isinstance(error, EXPECTED):
        return error
    text = plain(f"{type(error).__name__} while a message of {peer} was handled: {error}")
    print(f"polyrhythm: the link to {peer} is ended: {text}", file=sys.stderr, flush=True)
    return LinkError(text)


def for_the_lead(link: Link, message: m.Message, seat: Seat) -> bool:
    """Whether a message is for the lead's machine instead of the server's machine. Raises
    FrameError if the peer of this link may not send the message. `seat`: where the lead runs."""
    kind = type(message)
    if kind is m.OperatorRequest:
        if not is_operator(link.peer):
            raise FrameError(f"{link.peer} is not an operator, and sent a request of an operator")
        return True
    to_lead = is_to_lead(message)
    if not to_lead and kind not in TO_SERVER and kind is not m.Alive:
        raise FrameError(f"{m.article(kind.__name__)} {kind.__name__} is not a message to a server")
    if seat.process_of(sender(message)) != link.peer:
        raise FrameError(
            f"{link.peer} sent a message in the name of another process: {kind.__name__}"
        )
    return to_lead
