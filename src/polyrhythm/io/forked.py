"""Closes the sockets of this process in processes that it forks.

A training loop may fork, for example for the processes of a `DataLoader`. *If such a process kept a
copy of a socket, the link would not end with the worker's death, and the death would be noticed
late.*
"""

import os
import socket
from weakref import WeakSet

_sockets: WeakSet[socket.socket] = WeakSet()


def close_when_forked(sock: socket.socket) -> None:
    """Close this socket in every process that this process forks from now on."""
    _sockets.add(sock)


def _close() -> None:
    for sock in list(_sockets):
        fd = sock.detach()
        if fd >= 0:
            os.close(fd)


os.register_at_fork(after_in_child=_close)
