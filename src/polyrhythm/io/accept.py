"""Accepts connections without running out of file descriptors.

*The last descriptors of a process are a reserve for members. When only the reserve is left, the
caller closes a connection before it accepts the next one. When no descriptor is left, the new
connection is refused, and the existing connections stay.*
"""

import contextlib
import errno
import os
import resource
import socket

RESERVE = 32
"""The size of the reserve in descriptors. It is at most a quarter of the process's limit."""
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class AcceptLimit:
    """Accepts connections from non-blocking listening sockets. It holds one spare descriptor. When
    no other descriptor is left, it closes the spare one, accepts the connection with the freed
    descriptor, and closes the connection. So the peer is refused instead of waiting."""

    def __init__(self) -> None:
        self._spare: int | None = None
        self._take_spare()

    @property
    def is_reserve_reached(self) -> bool:
        """Whether the next connection would take a descriptor of the reserve. The kernel assigns
        the lowest free number, so the number of a new descriptor shows approximately how many are
        in use."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY:
            return False
        try:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        os.close(fd)
        return fd >= most - min(RESERVE, most // 4)

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """The next connection; None if there is none, or if the connection was refused for lack of
        descriptors."""
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _NONE_LEFT:
                self._refuse(listener)
            return None  # the peer has gone, or the listener is closed
        return sock

    @property
    def can_refuse(self) -> bool:
        """Whether there is a spare descriptor. Without it, a connection that finds no descriptor
        stays in the listener's queue."""
        return self._spare is not None

    def _refuse(self, listener: socket.socket) -> None:
        self._give_spare()
        # the peer may have gone, or another thread may have accepted the connection
        with contextlib.suppress(OSError):
            sock, _ = listener.accept()
            sock.close()
        self._take_spare()

    def _take_spare(self) -> None:
        if self._spare is None:
            # if no descriptor is left for the spare one, the next connection stays queued
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def close(self) -> None:
        self._give_spare()
