"""Test processes that are forked from one process that has collected all tests.

A test process of xdist needs 17 s of processor time to import and to collect all tests. Here one
process, the collecting process, does this. Every test process is forked from it, and takes over the
collected tests (`collected_tests.py`).

This file is also the program of the collecting process. Its arguments are the descriptor of a socket,
the number of test processes, and then the arguments of pytest. A message on the socket brings the two
pipes of a new test process.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.commands.collected_tests import CollectedTests

_PIPES = 2


class CollectedProcess:
    """The collecting process, as the process that starts test processes sees it."""

    def __init__(self, arguments: Sequence[str], processes: int) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), str(processes), *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )

    def fork(self, stdin: int, stdout: int) -> int:
        """Fork a test process with these pipes, and return its process id."""
        socket.send_fds(self._requests, [b"fork"], [stdin, stdout])
        told = self._requests.recv(64)
        assert told, "the process that test processes are forked from has died"
        return int(told)

    def close(self) -> None:
        """Wait until the collecting process and its test processes have ended."""
        self._requests.close()
        self._process.wait()


class ForkedPopen:
    """A forked test process, with those parts of `subprocess.Popen` that execnet uses."""

    def __init__(self, collected: CollectedProcess) -> None:
        source, stdin = os.pipe()
        stdout, sink = os.pipe()
        try:
            self.pid = collected.fork(source, sink)
        finally:
            os.close(source)
            os.close(sink)
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self._ending = os.pidfd_open(self.pid)

    def wait(self) -> int:
        ended = select.poll()
        ended.register(self._ending, select.POLLIN)
        ended.poll()
        return 0

    def kill(self) -> None:
        signal.pidfd_send_signal(self._ending, signal.SIGKILL)


def fork_test_processes(arguments: Sequence[str], processes: int) -> CollectedProcess:
    """Let xdist fork its test processes in place of executing them. `arguments`: those of pytest."""
    import execnet.gateway_io as gateway

    collected = CollectedProcess(arguments, processes)

    class ForkedIO(gateway.Popen2IOMaster):
        def __init__(self, _: Any, execmodel: Any) -> None:
            self.popen = process = ForkedPopen(collected)
            gateway.Popen2IO.__init__(self, process.stdin, process.stdout, execmodel=execmodel)

    gateway.Popen2IOMaster = ForkedIO
    return collected


def _collect(arguments: Sequence[str], processes: int) -> "CollectedTests | None":
    """Collect all tests. Nothing is shown: each test process reports the errors. Return None if pytest
    cannot collect with these arguments, so that each test process tries this again, and reports why."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.commands.collected_tests import CollectedTests

    collected = None
    shown = [os.dup(1), os.dup(2)]
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    with contextlib.suppress(BaseException):
        collected = CollectedTests(arguments, processes)
    for target, fd in enumerate(shown, 1):
        os.dup2(fd, target)
        os.close(fd)
    return collected


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(requests: socket.socket) -> bool:
    """Fork a test process for each request, until the socket is closed. Return whether this process
    is one of the test processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        body, pipes, _, _ = socket.recv_fds(requests, 64, _PIPES)
        if not body:
            break
        pid = os.fork()
        if pid == 0:
            for target, fd in enumerate(pipes):
                os.dup2(fd, target)
                os.close(fd)
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return True
        for fd in pipes:
            os.close(fd)
        requests.send(str(pid).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return False


def main() -> None:
    requests, processes = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    arguments = sys.argv[3:]
    # execnet normally starts test processes with `python -u -c PROGRAM`, which sets these values
    sys.path[0], sys.argv = "", ["-c"]
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    path = list(sys.path)
    collected = _collect(arguments, processes)
    sys.path[:] = path
    gc.disable()  # importing `tests/conftest.py` disables garbage collection too
    if _serve(requests):
        if collected is not None:
            collected.take_over()
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(eval(sys.stdin.readline()), vars(program))


if __name__ == "__main__":
    # keep a reference, because Python clears a module to which no object refers
    this_module = sys.modules["__main__"]
    main()
