"""Cut the link between two processes from outside: neither process closes the link itself, and both
continue.

The test gets a duplicate of the socket from the process (`pidfd_getfd`) and shuts it down.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PIDFD_GETFD = 438
_CREDENTIALS = struct.Struct("3i")
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def _sockets(pid: int) -> Iterator[list[socket.socket]]:
    """Duplicates of all sockets of a process."""
    found: list[socket.socket] = []
    pidfd = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not os.readlink(entry).startswith("socket:"):
                    continue
            except FileNotFoundError:
                continue  # the descriptor was closed in the meantime
            fd = _libc.syscall(_PIDFD_GETFD, pidfd, int(entry.name), 0)
            if fd >= 0:
                found.append(socket.socket(fileno=fd))
            elif ctypes.get_errno() == 1:
                raise PermissionError("sockets of other processes cannot be fetched here")
        yield found
    finally:
        os.close(pidfd)
        for sock in found:
            sock.close()


def cut(here: int, there: int) -> int:
    """Cut every link between two processes; return how many there were."""
    count = 0
    with _sockets(here) as mine, _sockets(there) as theirs:
        names = {_name(sock, sock.getsockname) for sock in theirs} - {None}
        for sock in mine:
            if sock.family == socket.AF_UNIX:
                linked = _peer_pid(sock) == there
            else:
                linked = _name(sock, sock.getpeername) in names
            if linked:
                count += 1
                sock.shutdown(socket.SHUT_RDWR)
    return count


def _name(sock: socket.socket, ask: object) -> object:
    if sock.family == socket.AF_UNIX:
        return None
    try:
        return ask()  # type: ignore[operator]
    except OSError:
        return None  # a socket that listens, or is no longer connected, has no peer


def _peer_pid(sock: socket.socket) -> int:
    try:
        sock.getpeername()
    except OSError:
        return 0  # the socket listens
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[0])
