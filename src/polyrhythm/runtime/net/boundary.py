"""Separates faults that a peer causes from faults of this process.

*Any exception while the bytes or the message of one peer are decoded, checked and used ends the
link to that peer, with one line of output, and nothing else.* The exceptions are `InvariantBroken`
and whatever a machine's transition or its effects raise (`Driver.run` is called outside this
boundary): after those, this process's own state may be half changed, and it must not go on.
"""

import sys

from polyrhythm.core.text import plain
from polyrhythm.errors import FrameError, InvariantBroken, LinkError, NotFinite

EXPECTED = (FrameError, LinkError, NotFinite)
"""The exceptions of the checks. Their reason is sent to the peer and goes into the journal."""


def fault_of(peer: str, error: Exception) -> Exception:
    """The error that ends this peer's link. An exception that no check has raised is also shown on
    stderr, because a check is missing. A fault of this process itself is raised again."""
    if isinstance(error, InvariantBroken):
        raise error
    if isinstance(error, EXPECTED):
        return error
    text = plain(f"{type(error).__name__} while a message of {peer} was handled: {error}")
    print(f"polyrhythm: the link to {peer} is ended: {text}", file=sys.stderr, flush=True)
    return LinkError(text)
