"""Checks of addresses, for commands that have not yet imported the modules of a job's processes."""

import socket
import time

from polyrhythm.core.names import is_loopback

ANY_HOST = ("0.0.0.0", "::")
"""A server that listens on one of these addresses listens on every address of its machine. A peer
cannot connect to these addresses themselves."""


_TIMEOUT_S = 2.0


_AGAIN_S = 1.0
"""The shortest time between two attempts to connect."""


def await_listener(host: str, port: int, wait_s: float) -> None:
    """Wait until a process listens at this address. The name service may not know the address yet.
    After `wait_s` seconds, return anyway: the command then tries to connect, and reports the
    error."""
    until_s = time.monotonic() + wait_s
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), timeout=min(left_s, _TIMEOUT_S)).close()
        except OSError:
            time.sleep(min(_AGAIN_S, max(0.0, until_s - time.monotonic())))
        else:
            return


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
