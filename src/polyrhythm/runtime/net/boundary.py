"""Separates faults that a peer causes from faults of this process.

*Any exception while the bytes or the message of one peer are decoded, checked and used ends only the
link to that peer, and prints one line.* Two kinds of exceptions end the process instead:
`InvariantBroken`, and exceptions of machines and of their effects (`Driver.run` is called outside this
boundary). After these, the state of the process may be half changed.
"""

import sys

from polyrhythm.core.values import plain
from polyrhythm.errors import FrameError, InvariantBroken, LinkError, NotFinite

EXPECTED = (FrameError, LinkError, NotFinite)
"""The exceptions that checks of messages raise. Their text is sent to the peer and goes into the
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
