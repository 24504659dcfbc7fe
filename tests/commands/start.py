"""Start `polyrhythm` commands as `subprocess` does, but by a fork of a process that has imported
torch already.

One such process (`warm_server.py`) serves all test processes of a test run. It is started with the
first command, and ends with the last test process that has started a command. Some variables of the
environment are read only when a process is loaded. A command with another value of such a variable
is executed in the usual way, and so is every command with `fresh=True`.
"""

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from polyrhythm.engines.environment import environment
from tests.commands.forked_python import RUN
from tests.commands.warm_server import ENGINE_SOCKET, FORK_SERVER, MARK, MARK_LENGTH, MOST_NBYTES

CLI = Path(sys.executable).with_name("polyrhythm")
_PROGRAM = Path(__file__).with_name("warm_server.py")
_READ_WHEN_LOADED = ("OMP_", "MKL_", "OPENBLAS_", "LD_", "GLIBC_", "MALLOC_", "PYTHON", "TORCH_")
_MOST_TEST_PROCESSES = 64
_UNBUFFERED = "PYTHONUNBUFFERED"
_START_S = 60.0
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))

Stream = int | IO[Any] | None


class _WarmServer:
    """The connection of this test process to the warm server of its test run. The first test process
    that binds the server's address starts the server."""

    def __init__(self) -> None:
        self.loaded = read_when_loaded(os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        """The server, if this test process has started it."""
        until_s = time.monotonic() + _START_S
        while not (told := self._connect(_address(self.loaded))):
            assert time.monotonic() < until_s, "the warm server does not start"
            time.sleep(0.01)
        self.pid: int = json.loads(told)["pid"]

    def _connect(self, address: str) -> bytes:
        """Connect to the server and return its first message. Return nothing if the server of
        another test process is just starting or ending."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                listener.listen(_MOST_TEST_PROCESSES)
                self._process = _start_server(listener)
        self.requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.requests.connect(address)
            return self.requests.recv(MOST_NBYTES)
        except ConnectionError:
            self.requests.close()
            return b""

    def close(self) -> None:
        """Disconnect. The server ends when no test process is connected any more."""
        self.requests.close()


def _address(loaded: Mapping[str, str]) -> str:
    """The address of the warm server. Test processes with another Python, or with other values of
    the variables that are read when a process is loaded, have another address. A test process
    outside xdist has a server of its own."""
    own = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
    # programs that use `forked_python.py` inherit this variable, and compute the same address from
    # it
    run = os.environ.setdefault(RUN, own)
    same = json.dumps([run, sys.executable, sorted(loaded.items())])
    return f"\0polyrhythm-warm-{hashlib.sha256(same.encode()).hexdigest()}"


def _start_server(listener: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(_PROGRAM), str(listener.fileno())],
        pass_fds=(listener.fileno(),),
        stdin=subprocess.DEVNULL,
        env={**environment([1]), MARK: "-" * MARK_LENGTH},
        start_new_session=True,
    )


@functools.cache
def warm_server() -> _WarmServer:
    server = _WarmServer()
    atexit.register(server.close)
    return server


def read_when_loaded(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_WHEN_LOADED)}


_spent: list[float] = []
"""The processor time of each command that was forked for this test process and has ended."""


def processor_s() -> float:
    """The processor time of all commands that were forked for this test process and have ended, and
    of the processes that they waited for."""
    return sum(_spent)


class WarmCommand:
    """A command that was forked. It has those methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        argv: list[str],
        *,
        cwd: Path | None,
        env: Mapping[str, str],
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
        start_new_session: bool,
        network: str | None = None,
        spares: int = 0,
        script: bool = False,
        fork_server: list[str] | None = None,
        engine_socket: int | None = None,
        descriptors: int | None = None,
    ) -> None:
        """`script`: `argv` begins with the path of a Python script, and not with the command.
        `fork_server`: the arguments of a job's fork server, which the process becomes in place of a
        command. `engine_socket`: the descriptor of its engine's socket. `descriptors`: see
        `start`."""
        self.args = argv
        self.returncode: int | None = None
        with contextlib.ExitStack() as opened:
            null = opened.enter_context(open(os.devnull, "r+b"))
            source = null.fileno() if stdin in (None, subprocess.DEVNULL) else _descriptor(stdin)
            out, self.stdout = _output(stdout, 1, null, opened)
            errors, self.stderr = _output(stderr, 2, null, opened)
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(theirs)
            request = {
                "argv": argv,
                "cwd": str(cwd or Path.cwd()),
                "env": dict(env),
                "limits": _limits(descriptors),
                "new_session": start_new_session,
                "network": network,
                "spares": spares,
                "script": script,
                "fork_server": fork_server,
            }
            body = json.dumps(request).encode()
            assert len(body) < MOST_NBYTES
            fds = [theirs.fileno(), source, out, errors]
            fds += [] if engine_socket is None else [engine_socket]
            socket.send_fds(warm_server().requests, [body], fds)
        self.pid: int = self._told()["pid"]

    def _told(self) -> dict[str, Any]:
        told = self._control.recv(MOST_NBYTES)
        assert told, "the process that commands are forked from has died"
        return json.loads(told)

    def poll(self) -> int | None:
        if self.returncode is None and self._has_ended(0.0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _has_ended(self, timeout: float | None) -> bool:
        ready = select.poll()  # unlike select(), poll() takes descriptors above 1023
        ready.register(self._control, select.POLLIN)
        return bool(ready.poll(None if timeout is None else timeout * 1000))

    def _end(self) -> None:
        told = self._told()
        self.returncode = told["returncode"]
        _spent.append(told["processor_s"])
        self._control.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Read the pipes until every process that writes to them has ended, then wait for the
        command."""
        until_s = None if timeout is None else time.monotonic() + timeout
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        parts: dict[IO[str], list[bytes]] = {pipe: [] for pipe in pipes if not pipe.closed}
        with selectors.DefaultSelector() as selector:
            for pipe in parts:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                ready = selector.select(left_s)
                if not ready and left_s is not None:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in ready:
                    part = os.read(key.fd, 1 << 16)
                    parts[key.fileobj].append(part)  # type: ignore[index]
                    if not part:
                        selector.unregister(key.fileobj)
        texts = {pipe: b"".join(read).decode() for pipe, read in parts.items()}
        for pipe in texts:
            pipe.close()
        self.wait(None if until_s is None else max(0.0, until_s - time.monotonic()))
        return (
            None if self.stdout is None else texts.get(self.stdout, ""),
            None if self.stderr is None else texts.get(self.stderr, ""),
        )


def _limits(descriptors: int | None) -> dict[str, tuple[int, int]]:
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS}
    if descriptors is not None:
        for name in limits:
            # this limit has a second name, RLIMIT_OFILE
            if getattr(resource, name) == resource.RLIMIT_NOFILE:
                limits[name] = (descriptors, descriptors)
    return limits


def _output(
    stream: Stream, own: int, null: IO[bytes], opened: contextlib.ExitStack
) -> tuple[int, IO[str] | None]:
    """Return the descriptor that a command writes to, and the end of a pipe from which the test
    reads."""
    if stream == subprocess.PIPE:
        read, write = os.pipe()
        opened.callback(os.close, write)
        return write, open(read)
    if stream == subprocess.DEVNULL:
        return null.fileno(), None
    if stream is None:
        return own, None
    return _descriptor(stream), None


def _descriptor(stream: int | IO[Any]) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


Process = subprocess.Popen[str] | WarmCommand


class WarmForkServers(subprocess.Popen[bytes]):
    """A `Popen` for the engine of a job that runs in a test process: the warm server forks the job's
    fork server, which then imports nothing. Every other program is executed."""

    def __new__(cls, args: Any, **options: Any) -> Any:
        # the variables that the engine sets for a job with one thread per worker
        usual = {**environment([1]), _UNBUFFERED: "1"}
        if (
            [str(arg) for arg in args[1:3]] != ["-m", FORK_SERVER]
            or read_when_loaded(options["env"]) != read_when_loaded(usual)
            or read_when_loaded(os.environ) != warm_server().loaded
        ):
            return super().__new__(cls)
        (engine_socket,) = options["pass_fds"]
        return WarmCommand(
            args,
            cwd=None,
            env=options["env"],
            stdin=options["stdin"],
            stdout=options["stdout"],
            stderr=options["stderr"],
            start_new_session=options["start_new_session"],
            fork_server=[str(ENGINE_SOCKET), *args[4:]],
            engine_socket=engine_socket,
        )


def start(
    *args: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    start_new_session: bool = False,
    network: str | None = None,
    fresh: bool = False,
    spares: int = 0,
    descriptors: int | None = None,
) -> Process:
    """Start `polyrhythm ARGS`. If the name of a network namespace is given, the command runs in it.
    `fresh`: execute the console script in place of a fork. `spares`: the number of jobs that the
    command starts after it has opened a store (see `warm_server.Spare`). `descriptors`: how many
    files and sockets each process of the command may open (`ulimit -n`)."""
    argv = [str(CLI), *(str(arg) for arg in args)]
    env = os.environ if env is None else env
    if fresh or read_when_loaded(env) != warm_server().loaded:
        inside = [] if network is None else ["ip", "netns", "exec", network]
        if descriptors is not None:
            inside += ["bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "bash"]
        return subprocess.Popen(
            [*inside, *argv],
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=start_new_session,
            text=True,
        )
    return WarmCommand(
        argv,
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=start_new_session,
        network=network,
        spares=spares,
        descriptors=descriptors,
    )


def start_script(
    path: Path,
    *args: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdout: Stream = None,
    stderr: Stream = None,
    descriptors: int | None = None,
) -> Process:
    """Start `python PATH ARGS`, forked from the warm server. `descriptors`: see `start`."""
    return WarmCommand(
        [str(path), *args],
        cwd=cwd,
        env=os.environ if env is None else env,
        stdin=None,
        stdout=stdout,
        stderr=stderr,
        start_new_session=False,
        script=True,
        descriptors=descriptors,
    )


def run(
    *args: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 90.0,
    fresh: bool = False,
    spares: int = 0,
    descriptors: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `polyrhythm ARGS` to its end."""
    pipe = subprocess.PIPE
    process = start(
        *args,
        cwd=cwd,
        env=env,
        stdout=pipe,
        stderr=pipe,
        fresh=fresh,
        spares=spares,
        descriptors=descriptors,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
