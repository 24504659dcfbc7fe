"""Checks of addresses that need no connection. Commands make them before they import anything that
connects."""

import socket

from polyrhythm.core.names import is_loopback

ANY_HOST = ("0.0.0.0", "::")
"""A server that listens on one of these addresses listens on every address of its machine. A peer
cannot connect to these addresses themselves."""


_TIMEOUT_S = 2.0


def nothing_listens(host: str, port: int) -> bool:
    """Whether it is certain that no process listens at this address: it is an address of this
    machine only, and the connection is refused."""
    if not is_loopback(host):
        return False
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
