"""A process that has imported torch and polyrhythm, and forks one child for each command.

Importing them takes several seconds of CPU time, which every `polyrhythm` command and every fork server
of a job would spend again. `start.py` runs this file as a program and sends it requests.

A child behaves like a command that was executed: it has the session, signal handlers, descriptors,
limits, folder, environment and arguments of the request, and it ends as Python ends. The differences are
listed in docs/decisions/046-tests-fork-their-commands.md.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "POLYRHYTHM_TEST_MARK"
"""The environment variable by which tests find the processes of one command in /proc."""
MARK_LENGTH = 32
FORK_SERVER = "polyrhythm.engines.fork_server"
BARE_LOOP = "polyrhythm.engines.bare_exchange"
"""The program that `bench exchange` compares itself with."""
MOST_NBYTES = 1 << 20
DESCRIPTORS = 5
"""The most descriptors of a request: the control socket, stdin, stdout, stderr and, for the fork
server of a job, the socket of its engine."""
ENGINE_SOCKET = 3
"""The descriptor of the engine's socket in a fork server."""
START_FILE = "POLYRHYTHM_TEST_START_FILE"
"""The environment variable with a file of Python code that the fork server of a job runs first."""
MOST_DESCRIPTORS = 16
"""The most descriptors that a spare child is given."""
_CLONE_NEWNET = 0x40000000
_MADV_COLLAPSE = 25
_HUGE_PAGE_NBYTES = 1 << 21
_libc = ctypes.CDLL(None, use_errno=True)
_libc.getenv.restype = ctypes.c_void_p
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Spare:
    """A child that a command forked before it ran any code of polyrhythm. It waits until it is to
    become the fork server of a job.

    A command that opens a store needs a spare child for each of its jobs: the store starts threads, and
    a process that is forked afterwards cannot use a store. This class has those methods of
    `subprocess.Popen` that the engine uses."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                _wait_as_spare(theirs)

    def become_fork_server(
        self,
        arguments: Sequence[str],
        *,
        pass_fds: Sequence[int],
        stdin: int,
        stdout: int,
        stderr: None,
        start_new_session: bool,
        env: Mapping[str, str],
    ) -> "Spare":
        assert stdin == subprocess.DEVNULL and stderr is None
        request = {
            "arguments": arguments,
            "keep": pass_fds,
            "new_session": start_new_session,
            "env": dict(env),
        }
        with open(os.devnull) as null:
            given = [*pass_fds, null.fileno(), stdout]
            socket.send_fds(self._requests, [json.dumps(request).encode()], given)
        self._requests.close()
        return self

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ending = os.pidfd_open(self.pid)
            try:
                ready, _, _ = select.select([ending], [], [], timeout)
            finally:
                os.close(ending)
            if not ready:
                raise subprocess.TimeoutExpired(FORK_SERVER, timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


_spares: list[Spare] = []
"""The spare children of this command that no job has taken yet."""


def _wait_as_spare(requests: socket.socket) -> None:
    """Wait in this forked child for the request to become a fork server. If the command ends first, the
    child ends too. This function never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _close_all_but((requests.fileno(),))
        body, given, _, _ = socket.recv_fds(requests, MOST_NBYTES, MOST_DESCRIPTORS)
        if not body:
            os._exit(0)
        request = json.loads(body)
        if request["new_session"]:
            os.setsid()
        targets = [*request["keep"], 0, 1]
        above = 1 + max(*given, *targets)
        # move the descriptors to higher numbers first, so that none is overwritten before it is copied
        for place, fd in enumerate(given, above):
            os.dup2(fd, place)
        for place, target in enumerate(targets, above):
            os.dup2(place, target)
        _become_fork_server(request["arguments"], request["env"], request["keep"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


class WarmPopen(subprocess.Popen[Any]):
    """A `Popen` that forks without executing a new interpreter. It does so only for the fork server of a
    job and for the program with which `bench exchange` compares itself. If the command has a spare
    child, that child becomes the fork server."""

    def __new__(cls, args: Any, **options: Any) -> Any:
        if _spares and _starts(args, FORK_SERVER):
            return _spares.pop(0).become_fork_server(args[3:], **options)
        return super().__new__(cls)

    def __init__(self, args: Any, **options: Any) -> None:
        for module in (FORK_SERVER, BARE_LOOP):
            if _starts(args, module):
                keep = options.get("pass_fds", ())
                options["preexec_fn"] = functools.partial(
                    _become_module, module, args[3:], options.get("env"), keep
                )
        super().__init__(args, **options)


def _starts(args: Any, module: str) -> bool:
    return not isinstance(args, str) and [str(arg) for arg in args[1:3]] == ["-m", module]


def _become_fork_server(
    arguments: Sequence[str], env: Mapping[str, str] | None, keep: Iterable[int]
) -> None:
    _become_module(FORK_SERVER, arguments, env, keep)


def _become_module(
    module: str, arguments: Sequence[str], env: Mapping[str, str] | None, keep: Iterable[int]
) -> None:
    """Run `python -m MODULE ARGUMENTS` in this forked child, and never return. The descriptors 0, 1
    and 2 and the session are set up already."""
    try:
        gc.enable()  # `Popen` switches garbage collection off while it runs `preexec_fn`
        _reset_signals()
        _close_all_but(keep)
        if env is not None:
            _set_environment(env)
        sys.argv = ["", *arguments]
        sys.path[0] = os.getcwd()  # `python -m` does the same
        # The engine sets PYTHONUNBUFFERED, but Python reads it only when it starts. So make stdout
        # unbuffered here.
        output = io.FileIO(1, "w", closefd=False)
        sys.stdout = io.TextIOWrapper(output, sys.stdout.encoding, write_through=True)
        if START_FILE in os.environ:
            runpy.run_path(os.environ[START_FILE])
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.stdout.flush()
        os._exit(0)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def serve(listener: socket.socket, mark_address: int) -> dict[str, Any]:
    """Fork a child for every request of the test processes that connect. End when the last of them
    has disconnected. Only the children return from this function, with their request."""
    running: dict[int, Command] = {}
    clients: set[socket.socket] = set()
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == woken:
                os.read(woken, 4096)
                _report_exits(running)
                continue
            if key.fileobj == listener:
                client, _ = listener.accept()
                client.send(json.dumps({"pid": os.getpid()}).encode())
                clients.add(client)
                selector.register(client, selectors.EVENT_READ)
                continue
            client = key.fileobj
            body, descriptors, _, _ = socket.recv_fds(client, MOST_NBYTES, DESCRIPTORS)
            if not body:  # an empty message means that the test process has ended
                selector.unregister(client)
                clients.remove(client)
                client.close()
                for pid, command in running.items():
                    if command.client == client:
                        os.kill(pid, signal.SIGKILL)
                if not clients:
                    os._exit(0)
                continue
            pid = os.fork()
            if pid == 0:
                # The selector is part of a reference cycle. Without this, garbage collection would
                # close its descriptors later, when this child uses their numbers for other files.
                for each in (selector, listener, *clients):
                    each.close()
                request = json.loads(body)
                _settle(request, descriptors, mark_address)
                if request["fork_server"] is not None:
                    _become_fork_server(request["fork_server"], request["env"], (ENGINE_SOCKET,))
                return request
            control = socket.socket(fileno=descriptors[0])
            for fd in descriptors[1:]:
                os.close(fd)
            running[pid] = Command(client, control)
            control.send(json.dumps({"pid": pid}).encode())


@dataclass(frozen=True)
class Command:
    client: socket.socket
    """The connection of the test process that asked for the command."""
    control: socket.socket
    """Tells the test process the command's process and its exit status."""


def _report_exits(running: dict[int, Command]) -> None:
    while running:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        told = {
            "returncode": os.waitstatus_to_exitcode(status),
            "processor_s": used.ru_utime + used.ru_stime,
        }
        with running.pop(pid).control as control:
            try:
                control.send(json.dumps(told).encode())
            except OSError:
                # the test process has closed its end, because it no longer waits for the command
                pass


def _settle(request: dict[str, Any], descriptors: Sequence[int], mark_address: int) -> None:
    """Give this forked child the state that a command gets from `exec` and from the process that
    starts it."""
    _reset_signals()
    if request["new_session"]:
        os.setsid()
    _place(descriptors[1:])
    if request["network"] is not None:
        _enter_network(request["network"])
    _close_all_but((ENGINE_SOCKET,) if request["fork_server"] is not None else ())
    for name, limits in request["limits"].items():
        resource.setrlimit(getattr(resource, name), limits)
    os.chdir(request["cwd"])
    mark = request["env"].get(MARK, "").encode()
    # /proc/PID/environ shows the memory of the original environment, so write the mark there.
    ctypes.memmove(mark_address, mark.ljust(MARK_LENGTH, b"-"), MARK_LENGTH)
    _set_environment(request["env"])
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    _spares.extend(Spare() for _ in range(request["spares"]))


def _place(given: Sequence[int]) -> None:
    """Give these descriptors the numbers 0, 1, 2 and so on."""
    above = 1 + max(*given, len(given))
    # move the descriptors to higher numbers first, so that none is overwritten before it is copied
    for place, fd in enumerate(given, above):
        os.dup2(fd, place)
    for target in range(len(given)):
        os.dup2(above + target, target)


def _enter_network(name: str) -> None:
    """Enter a network namespace that `ip netns add` has made."""
    if _libc.setns(os.open(f"/run/netns/{name}", os.O_RDONLY), _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # ignore these signals as a new Python process does; `Popen` has reset them
        signal.signal(number, signal.SIG_IGN)


def _close_all_but(keep: Iterable[int]) -> None:
    first = 3
    for fd in sorted(keep):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _set_environment(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    # forget the folder for temporary files, which Python chose by the environment of the warm
    # server
    tempfile.tempdir = None


def _run_script(argv: Sequence[str]) -> None:
    """Run `python ARGV` in this forked child."""
    global _warm_main
    _warm_main = sys.modules["__main__"]
    path = Path(argv[0]).absolute()
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__file__ = str(path)
    sys.path[0] = str(path.parent)
    exec(compile(path.read_bytes(), str(path), "exec"), vars(main))


_warm_main: types.ModuleType | None = None
"""A reference to this module. A script takes its place as `__main__`, and Python clears a module to
which no object refers."""


def _warm_up() -> None:
    """Import the modules that commands and the processes of jobs import. Run nothing that starts a
    thread."""
    import encodings.idna  # noqa: F401  # `socket.getaddrinfo` imports this module

    import torch
    import torch.utils.serialization.config  # `torch.save` imports this module

    import polyrhythm.api.running
    import polyrhythm.engines.local
    import polyrhythm.engines.process
    import polyrhythm.engines.server_process
    import polyrhythm.engines.worker_process
    import polyrhythm.learn.pointwise.runner  # noqa: F401
    from polyrhythm.cli.main import make_app
    from polyrhythm.tensors.compiler import prepare_optimizers

    make_app()  # building the commands imports their modules
    with contextlib.suppress(ImportError):
        importlib.import_module("typer._adapters")  # typer imports this module for its first flag
    prepare_optimizers(steps=True)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # as in tests/conftest.py
    _record_no_tracebacks()


def _record_no_tracebacks() -> None:
    """Keep `torch.manual_seed` from recording a traceback for each kind of device that this process
    has not initialised. torch shows the traceback if the call fails later. The stack of a forked
    worker is deep, and to format it takes 3 ms."""
    for name in ("torch.cuda", "torch.xpu", "torch.mtia"):
        module = sys.modules.get(name)
        if hasattr(module, "traceback"):
            setattr(module, "traceback", types.SimpleNamespace(format_stack=list))  # noqa: B010


def _build_commands() -> None:
    """Build every command once, with the parsers of its flags. So a forked command need not build
    them, which takes 80 ms."""
    import typer.main

    from polyrhythm.cli import main

    make_app = main.make_app = functools.cache(main.make_app)
    get_command = typer.main.get_command = functools.cache(typer.main.get_command)
    for names in (tuple(main.COMMANDS), *((name,) for name in main.COMMANDS)):
        _build_parsers(get_command(make_app(names)))


def _build_parsers(command: Any) -> None:
    for parameter in command.params:
        build = getattr(
            parameter, "get_runtime_param", None
        )  # otherwise typer builds the parser when it converts the first value of the flag
        if build is not None:
            build()
    for subcommand in getattr(command, "commands", {}).values():
        _build_parsers(subcommand)


def use_huge_pages() -> None:
    """Move the memory of this process to huge pages. A fork copies the table of all pages, so with huge
    pages a fork takes a third of the time. A kernel before Linux 6.1, or without huge pages, refuses
    this, and nothing changes."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        area, permissions, inode = fields[0], fields[1], fields[4]
        if permissions != "rw-p" or inode != "0":  # only private memory without a file can be moved
            continue
        begin, end = (int(address, 16) for address in area.split("-"))
        first = -(-begin // _HUGE_PAGE_NBYTES) * _HUGE_PAGE_NBYTES
        for address in range(first, end - _HUGE_PAGE_NBYTES + 1, _HUGE_PAGE_NBYTES):
            _libc.madvise(address, _HUGE_PAGE_NBYTES, _MADV_COLLAPSE)


def _keep_finalizers_for_later_objects() -> None:
    """Forget the finalizers of all objects that the warm server has made, so that a command does
    not run them at its end. torch has many such objects. To free them would take a command 50 ms,
    because the memory pages of these objects, which it shares with the warm server, would be
    copied."""
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]


class _QuickEnd:
    """End a command after its threads and exit handlers, but before Python frees every module.
    Freeing would copy all memory pages that the child shares with the warm server."""

    def __init__(self) -> None:
        self.status: int | None = None
        """The exit status. None: Python ends the process itself, as after an exception that was not
        caught."""
        atexit.register(self._end)  # exit handlers run in reverse order, so this one runs last

    def _end(self) -> None:
        if self.status is None:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # a script may run without stdout or stderr
                    stream.flush()
        except (OSError, ValueError):
            return  # Python computes the exit status itself
        os._exit(self.status)


if __name__ == "__main__":
    gc.disable()  # imports make little garbage
    quick_end = _QuickEnd()
    mark_at = _libc.getenv(MARK.encode())
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    _warm_up()
    _build_commands()
    gc.collect()
    gc.freeze()
    gc.enable()
    _keep_finalizers_for_later_objects()
    # Python's cache of type attributes refers to names. A child that replaces an entry of this cache
    # would copy the memory page of the old name.
    sys._clear_type_cache()
    use_huge_pages()
    own_request = serve(socket.socket(fileno=int(sys.argv[1])), mark_at)
    from polyrhythm.cli.main import run

    try:
        if own_request["script"]:
            sys.exit(_run_script(own_request["argv"]))
        sys.exit(run())
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            quick_end.status = (end.code or 0) & 0xFF
        raise
