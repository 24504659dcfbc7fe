"""The child processes of a job on this host: started through the fork server, each with a control
socket."""

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from polyrhythm.core.devices import CudaFound
from polyrhythm.engines.environment import environment
from polyrhythm.engines.exits import Exits, ending
from polyrhythm.engines.requests import LOOK_FOR_CUDA, ChildRequest, Exit, Told, pack_line
from polyrhythm.errors import JobFailed

_CLOSE_S = 5.0
_STATUS_S = 1.0
"""How long to wait for the exit status of a fork server that has closed its socket."""


@dataclass(slots=True)
class Child:
    """One server or worker process, and the messages that it has sent to the engine so far."""

    request: ChildRequest
    pid: int
    control: socket.socket
    unread: bytes = b""
    status: int | None = None
    failure: str | None = None
    orphaned: bool = False
    lead_lost: bool = False
    reported: bool = False
    """Whether this server has reported its address."""
    over: bool = False
    """Whether the process was told that the job has ended. If so, its exit is not a failure."""
    signals: set[int] = field(default_factory=set)
    """The signals that the engine has sent to the process."""

    @property
    def alive(self) -> bool:
        return self.status is None

    @property
    def was_ended(self) -> bool:
        """Whether the process ended because the job did: it was told so, or a signal of the engine
        killed it."""
        return self.over or (self.status is not None and -self.status in self.signals)

    @property
    def how(self) -> str:
        """How the process ended: its own message, or its exit status."""
        if self.failure is not None:
            return self.failure
        assert self.status is not None
        return ending(self.status)


def _stderr() -> int:
    """The descriptor of stderr. In a notebook `sys.stderr` may have no descriptor; the descriptor
    of the process's stderr is returned then. If the process was started without stderr, the null device
    is opened instead."""
    if sys.stderr is None:
        return subprocess.DEVNULL
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):
        return 2


def _end_of(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """Wait for the end of a process, and return its status. `Popen.wait` with a timeout looks for the
    end only from time to time, up to 50 ms late."""
    if process.poll() is not None:
        return process.returncode
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:  # Linux before 5.3 has no pidfd
        return process.wait(timeout_s)
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    ended.poll(timeout_s * 1e3)
    os.close(descriptor)
    return process.wait(0)


class Processes:
    """`told` is called with each message of a child. `exited` is called with each child that has
    ended, after the child's last message. `waiting` is called a few times a second while the fork
    server, which may have to import modules first, starts a process. It may raise an exception."""

    def __init__(
        self,
        told: Callable[[Child, Told], None],
        exited: Callable[[Child], None],
        waiting: Callable[[], None],
    ) -> None:
        self._told = told
        self._exited = exited
        self._waiting = waiting
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._exits: Exits | None = None
        self.lost: str | None = None
        """How the fork server died; None while it is alive."""

    # -- the processes -------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether the fork server was started."""
        return self._fork_server is not None

    @property
    def all(self) -> list[Child]:
        return list(self._children.values())

    @property
    def workers(self) -> list[Child]:
        return [child for child in self.all if child.request.role == "worker"]

    @property
    def servers(self) -> list[Child]:
        return [child for child in self.all if child.request.role == "server"]

    @property
    def lead(self) -> Child | None:
        """The process in which the lead runs, if it is alive."""
        return next((child for child in self.all if child.request.leads and child.alive), None)

    # -- starting ------------------------------------------------------------------------------

    def begin(self, run: str, preload: str, threads: Sequence[int], *, cuda: bool) -> None:
        """Start the fork server of a run. `preload`: the job whose module the fork server imports.
        `threads`: the number of threads of each worker. `cuda`: the fork server looks for CUDA
        devices."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "polyrhythm.engines.fork_server"]
        arguments = [str(theirs.fileno()), run, *([preload] if preload else [])]
        arguments += [LOOK_FOR_CUDA] if cuda else []
        self._fork_server = subprocess.Popen(
            [*command, *arguments],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=_stderr(),
            stderr=subprocess.DEVNULL if sys.stderr is None else None,
            start_new_session=True,
            env={**environment(threads), "PYTHONUNBUFFERED": "1"},
        )
        theirs.close()
        self._exits = Exits(ours, self._fork_server_end, self._waiting)
        self._selector.register(ours, selectors.EVENT_READ, None)

    def cuda_found(self) -> CudaFound:
        """The CUDA devices of this host. Call this once, after `begin` with `cuda`: the call waits
        until the fork server has looked for them."""
        assert self._exits is not None
        found = self._exits.next().found
        assert found is not None
        return found

    def _fork_server_end(self) -> str:
        """How the fork server ended. Call this when the fork server has closed its socket."""
        assert self._fork_server is not None
        try:
            return ending(_end_of(self._fork_server, _STATUS_S))
        except subprocess.TimeoutExpired:
            return "it closed its socket"

    def start(self, request: ChildRequest) -> Child:
        ours, theirs = socket.socketpair()
        assert self._exits is not None
        sent = msgspec.structs.replace(request, main=None, main_follows=request.main is not None)
        body = msgspec.json.encode(sent)
        try:
            with theirs:
                socket.send_fds(self._exits.fork_server, [body], [theirs.fileno()])
            while (line := self._exits.next()).started is None:
                self._note_exit(line)
        except BaseException:  # the job is stopped, or the fork server has died
            ours.close()
            raise
        child = Child(request, line.started, ours)
        self._children[line.started] = child
        self._selector.register(ours, selectors.EVENT_READ, child)
        if request.main is not None:
            self.tell(child, Told(main=request.main))
        return child

    # -- messages ------------------------------------------------------------------------------

    def tell(self, child: Child, told: Told) -> None:
        with contextlib.suppress(OSError):  # the child has died, and the fork server will report it
            child.control.sendall(pack_line(told))

    def signal(self, child: Child, number: signal.Signals) -> None:
        if child.alive:
            child.signals.add(number)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    def poll(self, timeout_s: float) -> None:
        """Wait for messages and exits for at most `timeout_s`, and pass them to the callbacks."""
        assert self._exits is not None
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._read_reports()
            # skip a child that was removed meanwhile
            elif key.data.control in self._selector.get_map():
                self._hear(key.data)
        # handle lines that were read while a process was being started
        for line in self._exits.at_hand():
            self._note_exit(line)
        if self.lost is not None:
            self._find_ended()

    def _read_reports(self) -> None:
        assert self._exits is not None
        try:
            for line in self._exits.read():
                self._note_exit(line)
        except JobFailed as error:
            self._selector.unregister(self._exits.fork_server)
            self.lost = str(error)

    def _find_ended(self) -> None:
        """The fork server is dead, so no exit is reported any more: a child has ended when its control
        socket is closed. Its exit status is not known."""
        for child in self.all:
            if child.alive and child.control not in self._selector.get_map():
                child.status = 0 if child.failure is None else 1
                self._exited(child)

    def _hear(self, child: Child) -> None:
        for told in self._read(child):
            self._told(child, told)

    def _read(self, child: Child) -> Iterator[Told]:
        try:
            part = child.control.recv(65536)
        except ConnectionResetError:  # the child died without reading all messages
            part = b""
        if not part:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.control)
            return
        *lines, child.unread = (child.unread + part).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=Told)

    def _note_exit(self, line: Exit) -> None:
        child = self._children.get(line.exited or -1)
        if child is None:
            return
        # read the last messages of the child, which may still be in the socket
        child.control.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while child.control in self._selector.get_map():
                self._hear(child)
        child.status = line.status
        self._exited(child)

    # -- ending --------------------------------------------------------------------------------

    def forget(self, child: Child) -> None:
        """Close the socket of a child that will be replaced."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.control)
        child.control.close()
        self._children.pop(child.pid, None)

    def close(self) -> None:
        """End all processes: when the socket of the fork server closes, it kills the children that
        are left."""
        if self._exits is not None:
            self._exits.close()
        for child in self.all:
            child.control.close()
        if self._fork_server is not None:
            if not self._children:
                # The closed socket may not end the fork server now, because it does not read the
                # socket while it imports modules. It may also have started a process that it has not
                # reported yet. So end its process group.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._fork_server.pid, signal.SIGKILL)
            try:
                _end_of(self._fork_server, _CLOSE_S)
            except subprocess.TimeoutExpired:
                self._fork_server.kill()
                self._fork_server.wait()
        self._selector.close()
