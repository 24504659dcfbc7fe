"""Within one machine little lies in a socket; between machines the kernel decides."""

import os
import socket
from unittest.mock import Mock

from polyrhythm.io.tcp import bound_buffers, dial_tcp, listen_tcp

KERNEL_DOUBLES = 2


def sizes(sock: socket.socket) -> set[int]:
    return {
        sock.getsockopt(socket.SOL_SOCKET, side) for side in (socket.SO_RCVBUF, socket.SO_SNDBUF)
    }


def test_within_a_machine_they_are_bounded() -> None:
    with listen_tcp("127.0.0.1", 0) as listener:
        link = dial_tcp("127.0.0.1", listener.getsockname()[1], "there")
        with socket.socket(fileno=os.dup(link.fileno())) as same:
            assert sizes(same) == {KERNEL_DOUBLES * 512 * 1024}
        link.close()
        link.dispose()


def test_between_machines_they_are_left_alone() -> None:
    sock = Mock(spec=socket.socket)
    sock.getsockname.return_value = ("10.0.0.5", 7000)
    bound_buffers(sock)
    sock.setsockopt.assert_not_called()
