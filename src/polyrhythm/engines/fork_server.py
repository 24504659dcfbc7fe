"""The process from which all processes of a job are forked. It imports torch once, so that the
forked processes do not have to.

The fork server stays single-threaded, runs no job itself and never initialises CUDA, because a
process that is forked afterwards could not use CUDA. It reports every child that was started or has
exited. When the engine is gone, it kills all children. It ignores SIGINT and SIGTERM. A service
manager may send SIGTERM to all processes of a job, and the job needs the fork server until it has
shut down cleanly.
"""

import gc

if __name__ == "__main__":
    # imports produce little garbage, and collecting it would take a tenth of their time
    gc.disable()

import os
import selectors
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from polyrhythm.engines import output
from polyrhythm.engines.cuda import look_for_cuda_in_child
from polyrhythm.engines.process import SocketControl, run_process
from polyrhythm.engines.requests import LOOK_FOR_CUDA, STEPS, ChildRequest, Exit, Told, pack_line
from polyrhythm.engines.server_process import serve
from polyrhythm.engines.worker_process import work
from polyrhythm.io.limits import none_left, too_few
from polyrhythm.learn.load import JOBS, load_module
from polyrhythm.observe.output import log_file
from polyrhythm.tensors.compiler import prepare_optimizers

_MOST_NBYTES = 1 << 20


def main(engine: socket.socket, preload: list[str], *, cuda: bool, steps: bool) -> None:
    """`preload`: the jobs whose modules are imported. `cuda`: look for CUDA devices, and report
    them. `steps`: the workers make steps of their optimizers."""
    for job in preload:
        if job in JOBS:
            load_module(job)
    prepare_optimizers(steps=steps)
    if cuda:
        _tell(engine, Exit(found=look_for_cuda_in_child()), set())
    gc.enable()
    gc.collect()
    # without this, a garbage collection in a child would write to the pages of imported modules, and the
    # kernel would have to copy these pages
    gc.freeze()
    children: set[int] = set()
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(engine, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == woken:
                os.read(woken, 4096)
                _reap(engine, children)
                continue
            try:
                body, descriptors, _, _ = socket.recv_fds(engine, _MOST_NBYTES, 1)
            except OSError:  # the engine ended without reading all reports
                _end(children)
            if not body:
                _end(children)
            if descriptors:
                _fork(engine, body, descriptors[0], children, (woken, waker))
            else:  # if the process has no free descriptor number, the kernel drops the descriptor
                _tell(engine, Exit(fault=too_few()), children)


def _fork(
    engine: socket.socket, body: bytes, control_fd: int, children: set[int], pipe: tuple[int, int]
) -> None:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        engine.close()
        for fd in pipe:
            os.close(fd)
        request = msgspec.json.decode(body, type=ChildRequest)
        os._exit(_run(request, socket.socket(fileno=control_fd)))
    os.close(control_fd)
    children.add(pid)
    _tell(engine, Exit(started=pid), children)


def _run(request: ChildRequest, sock: socket.socket) -> int:
    """Run a server or worker whose output goes to its log. Returns the exit status."""
    log = log_file(Path(request.run_dir), request.name)
    control = SocketControl(sock, partial(output.begin_again, log))
    try:
        if request.run_dir:
            output.send_to(log)
        return run_process(request, control, serve if request.role == "server" else work)
    except OSError as error:
        if not none_left(error):
            raise
        control.tell(Told(failed=too_few()))
        return 1
    finally:
        output.end()


def _reap(engine: socket.socket, children: set[int]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        children.discard(pid)
        _tell(engine, Exit(exited=pid, status=os.waitstatus_to_exitcode(status)), children)


def _tell(engine: socket.socket, report: Exit, children: set[int]) -> None:
    try:
        engine.sendall(pack_line(report))
    except OSError:  # the engine is gone
        _end(children)


def _end(children: set[int]) -> NoReturn:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor, run, *options = sys.argv[1:]
    output.set_title(f"polyrhythm: fork server of {run}", "fork server")
    preload = [option for option in options if option not in (LOOK_FOR_CUDA, STEPS)]
    main(
        socket.socket(fileno=int(descriptor)),
        preload,
        cuda=LOOK_FOR_CUDA in options,
        steps=STEPS in options,
    )
