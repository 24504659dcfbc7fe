"""The options of a TCP socket: its buffers, and when the kernel ends its connection."""

import os
import socket
from unittest.mock import Mock

from polyrhythm.io.tcp import bound_buffers, dial_tcp, listen_tcp

KERNEL_DOUBLES = 2


def sizes(sock: socket.socket) -> set[int]:
    return {
        sock.getsockopt(socket.SOL_SOCKET, side) for side in (socket.SO_RCVBUF, socket.SO_SNDBUF)
    }


def test_buffers_are_limited_within_a_machine() -> None:
    with listen_tcp("127.0.0.1", 0) as listener:
        link = dial_tcp("127.0.0.1", listener.getsockname()[1], "there")
        with socket.socket(fileno=os.dup(link.fileno())) as same:
            assert sizes(same) == {KERNEL_DOUBLES * 512 * 1024}
        link.close()
        link.dispose()


def test_buffers_keep_their_defaults_between_machines() -> None:
    sock = Mock(spec=socket.socket)
    sock.getsockname.return_value = ("10.0.0.5", 7000)
    bound_buffers(sock)
    sock.setsockopt.assert_not_called()


def test_the_kernel_ends_a_link_to_a_lost_machine_after_a_minute_at_the_earliest() -> None:
    """A shorter user timeout would also end links to processes that are only stopped."""
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
