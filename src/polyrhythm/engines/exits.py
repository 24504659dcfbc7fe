"""Reads the reports of the fork server: one line for each process that was started or has exited.

*One read may return several lines. Lines that were read are handled even if no more data arrives.*
"""

import select
import signal
import socket
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec

from polyrhythm.engines.requests import Exit
from polyrhythm.errors import JobFailed

_LOOK_MS = 100


def ending(status: int) -> str:
    """How a process ended, in words. A negative `status` is the number of a signal."""
    if status < 0:
        return f"killed by {name_of(-status)}"
    return f"exit status {status}"


def name_of(number: int) -> str:
    """The name of a signal, such as SIGTERM."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def signal_again(number: int, stopped: str) -> NoReturn:
    """Give this process the signal that has stopped its job, now that the signal's former handler is
    restored: Ctrl-C raises KeyboardInterrupt, SIGTERM ends the process, and a handler of the user's
    program runs. If the program goes on after that, KeyboardInterrupt says what was stopped."""
    signal.raise_signal(number)
    raise KeyboardInterrupt(f"{stopped} was stopped by {name_of(number)}")


def exit_words(error: SystemExit) -> str:
    """How a worker ended whose code called `sys.exit`, in words: with the number or the text that
    the code gave."""
    if error.code is None or isinstance(error.code, int):
        return f"exit status {int(error.code or 0)}"
    return f"sys.exit: {error.code}"


class Exits:
    def __init__(
        self, fork_server: socket.socket, how: Callable[[], str], waiting: Callable[[], None]
    ) -> None:
        """`how` is called when the socket is closed. It returns how the fork server ended.
        `waiting` is called a few times a second while `next` waits. It may raise an exception."""
        self.fork_server = fork_server
        self._how = how
        self._waiting = waiting
        self._poll = select.poll()
        self._poll.register(fork_server, select.POLLIN)
        self._unread = b""

    def next(self) -> Exit:
        """Wait for the next line. Raises JobFailed if a process could not be started."""
        while b"\n" not in self._unread:
            if self._poll.poll(_LOOK_MS):
                self._read()
            else:
                self._waiting()
        line, _, self._unread = self._unread.partition(b"\n")
        report = msgspec.json.decode(line, type=Exit)
        if report.fault is not None:
            raise JobFailed(report.fault)
        return report

    def at_hand(self) -> Iterator[Exit]:
        """The lines that were read and not returned yet. This does not wait."""
        while b"\n" in self._unread:
            yield self.next()

    def read(self) -> Iterator[Exit]:
        """Read from a socket that has data, and return all complete lines."""
        self._read()
        yield from self.at_hand()

    def close(self) -> None:
        self.fork_server.close()

    def _read(self) -> None:
        try:
            part = self.fork_server.recv(65536)
        except ConnectionResetError:  # the fork server ended without reading a request
            part = b""
        if not part:
            raise JobFailed(f"the process that starts the others died ({self._how()})")
        self._unread += part
