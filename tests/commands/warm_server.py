"""A process that has imported torch and polyrhythm, and forks one child for each command.

Importing them takes several seconds of CPU time, which every `polyrhythm` command and every fork server
of a job would spend again. `start.py` runs this file as a program and sends it requests.

A child behaves like a command that was executed: it has the session, signal handlers, descriptors,
limits, folder, environment and arguments of the request, and it ends as Python ends. The differences are
listed in docs/decisions/046-tests-fork-their-commands.md.
"""

import atexit
import ctypes
import functools
import gc
import io
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "POLYRHYTHM_TEST_MARK"
"""The environment variable by which tests find the processes of one command in /proc."""
MARK_LENGTH = 32
FORK_SERVER = "polyrhythm.engines.fork_server"
MOST_NBYTES = 1 << 20
DESCRIPTORS = 4
"""Descriptors of a request: the control socket, stdin, stdout and stderr."""
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.getenv.restype = ctypes.c_void_p


class WarmPopen(subprocess.Popen[Any]):
    """A `Popen` that only forks if its child is to be the fork server of a job: the child executes
    no new interpreter."""

    def __init__(self, args: Any, **options: Any) -> None:
        if not isinstance(args, str) and [str(arg) for arg in args[1:3]] == ["-m", FORK_SERVER]:
            options["preexec_fn"] = functools.partial(
                _become_fork_server, args[3:], options.get("env"), options.get("pass_fds", ())
            )
        super().__init__(args, **options)


def _become_fork_server(
    arguments: Sequence[str], env: Mapping[str, str] | None, keep: Iterable[int]
) -> None:
    """Run the fork server of a job in this forked child, and never return. `Popen` has set up the
    descriptors 0, 1 and 2 and the session."""
    try:
        gc.enable()  # `Popen` switches it off while it runs `preexec_fn`
        _reset_signals()
        _close_all_but(keep)
        if env is not None:
            _set_environment(env)
        sys.argv = ["", *arguments]
        sys.path[0] = os.getcwd()  # as with `python -m`
        # The engine sets PYTHONUNBUFFERED, but Python reads it only when it starts. So make stdout
        # unbuffered here.
        output = io.FileIO(1, "w", closefd=False)
        sys.stdout = io.TextIOWrapper(output, sys.stdout.encoding, write_through=True)
        runpy.run_module(FORK_SERVER, run_name="__main__", alter_sys=True)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def serve(requests: socket.socket, mark_address: int) -> None:
    """Fork a child for every request. Only the children return from this function."""
    running: dict[int, socket.socket] = {}
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == woken:
                os.read(woken, 4096)
                _report_exits(running)
                continue
            body, descriptors, _, _ = socket.recv_fds(requests, MOST_NBYTES, DESCRIPTORS)
            if not body:  # the test process has ended
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                _settle(json.loads(body), descriptors, mark_address)
                return
            control = socket.socket(fileno=descriptors[0])
            for fd in descriptors[1:]:
                os.close(fd)
            running[pid] = control
            control.send(json.dumps({"pid": pid}).encode())


def _report_exits(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as control:
            try:
                control.send(json.dumps({"returncode": os.waitstatus_to_exitcode(status)}).encode())
            except OSError:
                pass  # the test no longer waits for the command


def _settle(request: dict[str, Any], descriptors: Sequence[int], mark_address: int) -> None:
    """Give this forked child the state that a command gets from `exec` and from the process that
    starts it."""
    _reset_signals()
    if request["new_session"]:
        os.setsid()
    for target, fd in enumerate(descriptors[1:]):
        os.dup2(fd, target)
    if request["network"] is not None:
        _enter_network(request["network"])
    _close_all_but(())
    for name, limits in request["limits"].items():
        resource.setrlimit(getattr(resource, name), limits)
    os.chdir(request["cwd"])
    mark = request["env"].get(MARK, "").encode()
    # /proc/PID/environ shows the memory of the original environment, so write the mark there.
    ctypes.memmove(mark_address, mark.ljust(MARK_LENGTH, b"-"), MARK_LENGTH)
    _set_environment(request["env"])
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)


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
    ):  # `Popen` resets these signals, and a new Python process ignores them
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
    tempfile.tempdir = None  # the folder was chosen by the environment of the warm server


def _warm_up() -> None:
    """Import the modules that commands and the processes of jobs import. Run nothing that starts a
    thread."""
    import torch

    import polyrhythm.engines.child
    import polyrhythm.engines.standalone_server
    import polyrhythm.engines.standalone_worker  # noqa: F401
    from polyrhythm.cli.main import make_app

    make_app()  # imports the modules of all commands
    # The first optimizer of a process imports a large part of torch.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


class _QuickEnd:
    """End a command after its threads and exit handlers, but before Python frees every module.
    Freeing would copy all memory pages that the child shares with the warm server."""

    def __init__(self) -> None:
        self.status: int | None = None
        """The exit status. None: Python ends the process itself, as after an exception that was not
        caught."""
        atexit.register(self._end)  # handlers run in reverse order, so this one is the last

    def _end(self) -> None:
        if self.status is None:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # Python sets the status itself
        os._exit(self.status)


if __name__ == "__main__":
    quick_end = _QuickEnd()
    mark_at = _libc.getenv(MARK.encode())
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    _warm_up()
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])), mark_at)
    from polyrhythm.cli.main import run

    try:
        sys.exit(run())
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            quick_end.status = (end.code or 0) & 0xFF
        raise
