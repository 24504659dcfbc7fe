"""The options of a TCP socket: its buffers, and when the kernel ends it."""

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


def test_a_peer_whose_machine_is_gone_is_noticed_but_not_within_a_minute() -> None:
    """The user timeout also ends links to processes that are merely stopped."""
    with listen_tcp("127.0.0.1", 0) as listener:
        link = dial_tcp("127.0.0.1", listener.getsockname()[1], "there")
        with socket.socket(fileno=os.dup(link.fileno())) as same:
            assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
            link.outlast(130)
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 130_000
        link.close()
        link.dispose()
