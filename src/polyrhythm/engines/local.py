"""The engine that runs servers and workers as processes of this machine. A fork server starts the
processes. Each process exchanges messages with the engine over a control socket."""

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from polyrhythm.core.devices import CudaFound, assign, may_use_cuda
from polyrhythm.core.kinds import steps_on_workers
from polyrhythm.engines.engine import EngineRun, EngineWatch
from polyrhythm.engines.environment import environment
from polyrhythm.engines.exits import ending
from polyrhythm.engines.host import Exited, HostEvent, HostLost, ProcessReported
from polyrhythm.engines.output import LogSizes, finish_renaming
from polyrhythm.engines.requests import LOOK_FOR_CUDA, STEPS, ChildRequest, Exit, Told, pack_line
from polyrhythm.engines.supervisor import Supervisor
from polyrhythm.errors import JobFailed
from polyrhythm.io.limits import none_left
from polyrhythm.observe.output import log_file
from polyrhythm.observe.reasons import in_words

_CLOSE_S = 5.0
_STATUS_S = 1.0
"""How long to wait for the exit status of a fork server that has closed its socket."""


class LocalEngine:
    """Runs every server and worker as a process of this machine."""

    def run(self, requests: Sequence[ChildRequest], watch: EngineWatch) -> EngineRun:
        return Supervisor(requests, LocalHost(requests, watch), watch).run()


class ReceivedLines:
    """The lines that arrive at a socket. *One read may return several lines, and a part of the next
    one.*"""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.ended = False
        """Whether the other end is closed, and all lines were read."""
        self._unread = b""

    def read(self) -> list[bytes]:
        """The lines that have arrived. This does not wait."""
        parts = [self._unread]
        while not self.ended:
            try:
                parts.append(self.sock.recv(65536, socket.MSG_DONTWAIT))
            except BlockingIOError:
                break
            except ConnectionResetError:  # the other end was closed before it had read everything
                parts.append(b"")
            self.ended = not parts[-1]
        *lines, self._unread = b"".join(parts).split(b"\n")
        return lines


@dataclass(slots=True)
class _Child:
    name: str
    control: ReceivedLines
    pid: int | None = None
    """None until the fork server has started the process."""
    exited: bool = False
    unsent: list[signal.Signals] = field(default_factory=list)
    """The signals for a process that is not started yet."""


class LocalHost:
    """Processes of this machine, which share the folder of the run with this process."""

    def __init__(self, requests: Sequence[ChildRequest], watch: EngineWatch) -> None:
        self._run_dir = Path(requests[0].run_dir)
        self._job = requests[0].job
        self._workers = [request for request in requests if request.role == "worker"]
        self._say = watch.say
        self._children: dict[str, _Child] = {}
        self._unstarted: list[_Child] = []
        """The children that the fork server was asked to start and has not reported yet, in
        order."""
        self._selector = selectors.DefaultSelector()
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._reports: ReceivedLines | None = None
        self._lost = False
        """Whether the fork server has died."""
        self._devices: dict[str, str] | None = {}
        """The device of each worker, if some may use CUDA. None until the fork server has looked for
        CUDA devices."""
        self._held: list[tuple[ChildRequest, socket.socket]] = []
        """The requests that wait for `_devices`, each with the control socket of the process."""
        self._log_sizes = LogSizes(self._run_dir)

    # -- starting ------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the fork server, which imports modules and then serves requests."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "polyrhythm.engines.fork_server"]
        preload = [self._job.name] if self._job.name else []
        arguments = [str(theirs.fileno()), self._run_dir.name, *preload]
        if any(may_use_cuda(request.device) for request in self._workers):
            self._devices = None
            arguments.append(LOOK_FOR_CUDA)
        if steps_on_workers(self._job.kind):
            arguments.append(STEPS)
        threads = [request.threads for request in self._workers]
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
        self.read_reports_of(ours)

    def read_reports_of(self, fork_server: socket.socket) -> None:
        self._reports = ReceivedLines(fork_server)
        self._selector.register(fork_server, selectors.EVENT_READ, None)

    def start(self, request: ChildRequest) -> None:
        before = self._children.get(request.name)
        if before is not None:
            self._stop_reading(before)
            before.control.sock.close()
        ours, theirs = socket.socketpair()
        child = _Child(request.name, ReceivedLines(ours))
        self._children[request.name] = child
        self._unstarted.append(child)
        self._selector.register(ours, selectors.EVENT_READ, child)
        if self._devices is None:
            self._held.append((request, theirs))
        else:
            self._send(request, theirs)
        if request.main is not None:
            self.tell(request.name, Told(main=request.main))

    def prepare(self, name: str) -> None:
        pass  # forking a process takes almost no time

    def _send(self, request: ChildRequest, control: socket.socket) -> None:
        """Ask the fork server to start a process with this control socket."""
        assert self._reports is not None and self._devices is not None
        device = self._devices.get(request.name, request.device)
        follows = request.main is not None
        sent = msgspec.structs.replace(request, device=device, main=None, main_follows=follows)
        with control:
            try:
                body = msgspec.json.encode(sent)
                socket.send_fds(self._reports.sock, [body], [control.fileno()])
            except OSError as error:
                if none_left(error):
                    raise
                # the fork server has died, which `wait` reports

    def _assign_devices(self, found: CudaFound) -> None:
        assigned = assign([request.device for request in self._workers], found)
        for note in assigned.notes:
            self._say(in_words(note, lambda number: self._workers[number].name))
        names = [request.name for request in self._workers]
        self._devices = dict(zip(names, assigned.devices, strict=True))
        for request, control in self._held:
            self._send(request, control)
        self._held.clear()

    # -- messages ------------------------------------------------------------------------------

    def tell(self, name: str, told: Told) -> None:
        with contextlib.suppress(OSError):  # the child has died; the fork server will report it
            self._children[name].control.sock.sendall(pack_line(told))

    def signal(self, name: str, number: signal.Signals) -> None:
        child = self._children[name]
        if child.pid is None:
            child.unsent.append(number)
        elif not child.exited:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    def wait(self, timeout_s: float) -> list[HostEvent]:
        events: list[HostEvent] = []
        for key, _ in self._selector.select(timeout_s):
            events += self._read_reports() if key.data is None else self._hear(key.data)
        if self._lost:
            events += self._find_ended()
        running = [name for name, child in self._children.items() if not child.exited]
        for name in self._log_sizes.large(running):
            self.tell(name, Told(new_log=True))
        return events

    def _hear(self, child: _Child) -> list[HostEvent]:
        """The messages of a child that have arrived."""
        lines = child.control.read()
        if child.control.ended:
            self._stop_reading(child)
        return [ProcessReported(child.name, msgspec.json.decode(line, type=Told)) for line in lines]

    def _stop_reading(self, child: _Child) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.control.sock)

    def _read_reports(self) -> list[HostEvent]:
        assert self._reports is not None
        events: list[HostEvent] = []
        for line in self._reports.read():
            events += self._take_report(msgspec.json.decode(line, type=Exit))
        if self._reports.ended:
            self._selector.unregister(self._reports.sock)
            self._lost = True
            how = f"the process that starts the others died ({self._fork_server_end()})"
            events.append(HostLost(how))
        return events

    def _take_report(self, report: Exit) -> list[HostEvent]:
        if report.fault is not None:
            raise JobFailed(report.fault)
        if report.found is not None:
            self._assign_devices(report.found)
        if report.started is not None:
            child = self._unstarted.pop(0)
            child.pid = report.started
            for number in child.unsent:
                self.signal(child.name, number)
        if report.exited is not None:
            for child in self._children.values():
                if child.pid == report.exited and not child.exited:
                    return self._end(child, report.status, ending(report.status))
        return []

    def _end(self, child: _Child, status: int | None, how: str) -> list[HostEvent]:
        """Handle the end of a child. Its last messages may still be in the socket."""
        events = self._hear(child)
        child.exited = True
        # the child may have been killed while it began a new log
        finish_renaming(log_file(self._run_dir, child.name))
        return [*events, Exited(child.name, status, how)]

    def _find_ended(self) -> list[HostEvent]:
        """Handle the death of the fork server: it reports no exit any more, so a child has ended
        when its control socket is closed. Its exit status is unknown."""
        events: list[HostEvent] = []
        for child in self._children.values():
            if child.control.ended and not child.exited:
                events += self._end(child, None, "exit status unknown")
        return events

    # -- ending --------------------------------------------------------------------------------

    def _fork_server_end(self) -> str:
        """How the fork server ended. Call this when the fork server has closed its socket."""
        assert self._fork_server is not None
        try:
            return ending(_end_of(self._fork_server, _STATUS_S))
        except subprocess.TimeoutExpired:
            return "it closed its socket"

    def close(self) -> None:
        """End all processes: when the socket of the fork server closes, it kills the children that
        are left."""
        if self._reports is not None:
            self._reports.sock.close()
        for child in self._children.values():
            child.control.sock.close()
        for _, control in self._held:
            control.close()
        if self._fork_server is not None:
            if self._unstarted or not self._children:
                # The closed socket may not end the fork server now, because it does not read the
                # socket while it imports modules. So end its process group.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._fork_server.pid, signal.SIGKILL)
            try:
                _end_of(self._fork_server, _CLOSE_S)
            except subprocess.TimeoutExpired:
                self._fork_server.kill()
                self._fork_server.wait()
        self._selector.close()


def _stderr() -> int:
    """The descriptor of stderr. If `sys.stderr` has none, as in a notebook: that of the process's
    stderr. If the process was started without stderr: that of the null device."""
    if sys.stderr is None:
        return subprocess.DEVNULL
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):
        return 2


def _end_of(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """Wait for the end of a process, and return its status. `Popen.wait` with a timeout checks only
    from time to time, and so returns up to 50 ms late."""
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
