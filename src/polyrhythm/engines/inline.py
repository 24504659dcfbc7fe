"""The engine that runs all servers and workers in this process, with one thread per worker and
memory links between the nodes. It is for debugging, for notebooks, and for tests.

What workers print goes directly to the terminal, so that a debugger can use the terminal. *While a
worker is stopped in a debugger, the engine shows no progress.*
"""

import bdb
import contextlib
import faulthandler
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from polyrhythm.core.devices import CudaFound, assign, may_use_cuda
from polyrhythm.core.effects import End
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.engines.cuda import look_for_cuda
from polyrhythm.engines.engine import EngineRun, EngineWatch
from polyrhythm.engines.exits import exit_words, signal_again
from polyrhythm.engines.functions import unpack_main
from polyrhythm.engines.notices import failure_lines, first_line
from polyrhythm.engines.requests import ChildRequest
from polyrhythm.engines.tracebacks import traceback_of
from polyrhythm.engines.worker_process import Presence, run_worker
from polyrhythm.errors import JobFailed, PolyrhythmError, UsageError
from polyrhythm.io.memory import MemoryLink, memory_pair
from polyrhythm.learn.load import load_main
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.journal import FileJournal, MemoryJournal, PagedJournal
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.watch import report_in_words
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import Address, JobSpec

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)", re.MULTILINE)


def in_debugger(threads: Iterable[threading.Thread]) -> bool:
    """Whether one of these threads is in a debugger (pdb, or one that is built on it)."""
    wanted = {thread.ident for thread in threads}
    # `split` returns the text before the first thread, then the identity and the stack of each
    # thread
    _, *found = _THREAD.split(_stacks())
    pairs = zip(found[::2], found[1::2], strict=True)
    return any(int(ident, 16) in wanted and bdb.__file__ in stack for ident, stack in pairs)


def _stacks() -> str:
    """The stacks of all threads of this process.

    *Python code must not walk the stack of a running thread frame by frame: the thread may continue
    meanwhile, and the interpreter would read frames that no longer exist (CPython 3.11 crashes).
    `faulthandler` writes all stacks while no other thread can run.*
    """
    file = os.memfd_create("stacks")
    try:
        faulthandler.dump_traceback(file, all_threads=True)
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    finally:
        os.close(file)


_END_TIMEOUT_S = 10.0
_TICK_S = 0.2
_LAST_WORD_S = 2.0
"""How long the lead may take to end the job after the last worker has ended."""


class Hub:
    """Connects the nodes of this process. The port in an address is the number of a server."""

    shared = False

    def __init__(self) -> None:
        self.servers: list[ServerNode] = []

    def address(self, server: int) -> Address:
        return Address("memory", server, "", "")

    def dial(self, address: Address, peer: str) -> MemoryLink:
        mine, theirs = memory_pair("stranger", peer)
        self.servers[address.port].welcome(theirs)
        return mine


@dataclass(slots=True)
class InlineRun:
    """The result of an inline job."""

    outcome: End | None
    journal: list[dict[str, Any]]
    errors: dict[str, BaseException] = field(default_factory=dict)
    interrupted: int = 0


class InlineEngine:
    """Runs all servers and workers of a job in this process. No other process can join the job."""

    def run(self, requests: Sequence[ChildRequest], watch: EngineWatch) -> EngineRun:
        first = requests[0]
        job, run_dir = first.job, Path(first.run_dir)
        if len(requests) != job.servers + job.workers:
            raise UsageError("the inline engine runs all servers and workers of a job itself")
        traces: set[str] = set()
        options = NodeOptions(
            check=first.check,
            trace_dir=run_dir if first.trace else None,
            model_dir=run_dir,
            share_data=job.share_data,
            report=lambda note: traces.add(
                report_in_words(note.what, ("this process",), note.fields)
            ),
        )
        run = InlineRun(None, [])
        journal = FileJournal(run_dir / "journal.jsonl")

        def tick() -> None:
            journal.retry()
            if (part := journal.part()) is not None:
                watch.hand(part)
            watch.tick()

        try:
            with _stdout_to_stderr():
                devices = _devices_of(requests, watch.say)
                main = _main_of(requests)
                _run(job, main, options, journal, run, math.inf, tick, devices)
        finally:
            journal.close()
            tick()
        for line in sorted(traces):
            watch.say(line)
        traced = {name: _traced(error, whole=first.debug) for name, error in run.errors.items()}
        for line in failure_lines(traced):
            watch.say(line)
        outcome = run.outcome
        return EngineRun(
            ended=None if outcome is None else in_words(outcome.reason),
            failed=in_words(outcome.reason) if outcome is not None and outcome.failed else None,
            worker_failures={name: _how(error) for name, error in run.errors.items()},
            interrupted=run.interrupted,
            unrecorded=journal.incomplete,
        )


def _stdout_to_stderr() -> contextlib.AbstractContextManager[object]:
    """If stdout is a file or a pipe, send the output of workers to stderr, because stdout gets the
    result of the command. If stdout is a terminal, it also gets the output, because a debugger
    needs the true stdout."""
    if sys.stdout is None or sys.stdout.isatty():
        return contextlib.nullcontext()
    return contextlib.redirect_stdout(sys.stderr)


def _how(error: BaseException) -> str:
    """How a worker failed."""
    if isinstance(error, bdb.BdbQuit):
        return "its debugger was ended"
    if isinstance(error, SystemExit):
        return exit_words(error)
    if isinstance(error, PolyrhythmError):
        return str(error)  # the local engine reports the same text for such an error
    return f"{type(error).__name__}: {error}"


def _traced(error: BaseException, *, whole: bool) -> str:
    """How a worker failed, with the traceback if the user's code raised the error."""
    if isinstance(error, PolyrhythmError | SystemExit | bdb.BdbQuit):
        return _how(error)
    return f"{_how(error)}\n{traceback_of(error, whole=whole)}"


def _main_of(requests: Sequence[ChildRequest]) -> Callable[[Worker], None]:
    packed = requests[-1].main
    return load_main(requests[-1].job.name) if packed is None else unpack_main(packed)


def _devices_of(requests: Sequence[ChildRequest], say: Callable[[str], None]) -> tuple[str, ...]:
    """The devices of the workers. This process looks for CUDA devices itself, and forks no process to do
    so."""
    asked = [request.device for request in requests if request.role == "worker"]
    found = look_for_cuda() if any(map(may_use_cuda, asked)) else CudaFound()
    assigned = assign(asked, found)
    for note in assigned.notes:
        say(in_words(note, lambda number: f"worker-{number}"))
    return assigned.devices


def run_inline(
    job: JobSpec,
    main: Callable[[Worker], None],
    *,
    options: NodeOptions | None = None,
    timeout_s: float = 600.0,
) -> InlineRun:
    """Run `main` on `job.workers` workers. Raises the error of a worker if any worker failed. A signal
    that stops the job has its usual effect afterwards."""
    journal = MemoryJournal()
    run = InlineRun(None, journal.lines)
    _run(job, main, options or NodeOptions(check=True), journal, run, timeout_s)
    if run.interrupted:
        signal_again(run.interrupted, f"the job {job.job}")
    _raise_first(run)
    return run


def _run(
    job: JobSpec,
    main: Callable[[Worker], None],
    options: NodeOptions,
    journal: PagedJournal,
    run: InlineRun,
    timeout_s: float,
    tick: Callable[[], None] = lambda: None,
    devices: Sequence[str] = (),
) -> None:
    """`devices`: per worker, its device; empty: all workers use the CPU."""
    hub = Hub()
    on = [replace(options, device=device) for device in devices] or [options] * job.workers
    for server in range(job.servers):
        leads = server == FIRST_SEAT.server
        node = ServerNode(
            server,
            job,
            hub.address(server),
            lead=leads,
            options=options,
            journal=journal if leads else None,
            shared=False,
        )
        hub.servers.append(node)
    lead = hub.servers[FIRST_SEAT.server]
    try:
        for node in hub.servers:
            if node is not lead:
                node.reach_lead(hub, hub.address(FIRST_SEAT.server))
        threads = [
            threading.Thread(
                target=_work, args=(f"worker-{index}", job, hub, main, on[index], run), daemon=True
            )
            for index in range(job.workers)
        ]
        for thread in threads:
            thread.start()
        with _signals(run):
            _await_end(lead, threads, run, timeout_s, tick)
        for thread in threads:
            thread.join(_END_TIMEOUT_S)
        run.outcome = lead.outcome
    finally:
        for node in hub.servers:
            node.close()


def _await_end(
    lead: ServerNode,
    threads: list[threading.Thread],
    run: InlineRun,
    timeout_s: float,
    tick: Callable[[], None] | None,
) -> None:
    """Wait until the job ends. Stop the job after a signal, or if no worker is left and the lead does
    not end the job."""
    until_s = time.monotonic() + timeout_s
    present_s = time.monotonic()
    stopping = False
    while not lead.ended.wait(_TICK_S):
        if run.interrupted and not stopping:
            stopping = True
            lead.stop()
        if tick is not None and not in_debugger(threads):
            tick()
        now_s = time.monotonic()
        if now_s > until_s:
            raise JobFailed(f"the job did not end within {timeout_s:.0f} s")
        if any(thread.is_alive() for thread in threads):
            present_s = now_s
        if len(run.errors) == len(threads):
            lead.stop(at_once=True, failed=_all_failed(run))
        elif now_s > present_s + _LAST_WORD_S:
            lead.stop(at_once=True, failed="all workers ended before the job reached its goal")


def _all_failed(run: InlineRun) -> str:
    lines = failure_lines({name: first_line(_how(error)) for name, error in run.errors.items()})
    return f"no worker is left: {'; '.join(lines)}"


@contextlib.contextmanager
def _signals(run: InlineRun) -> Iterator[None]:
    """Note the first Ctrl-C or SIGTERM, which shuts the job down cleanly. A second one
    raises KeyboardInterrupt. Python handles signals in its main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if run.interrupted:
            raise KeyboardInterrupt
        run.interrupted = number

    before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(
    name: str,
    job: JobSpec,
    hub: Hub,
    main: Callable[[Worker], None],
    options: NodeOptions,
    run: InlineRun,
) -> None:
    node = WorkerNode(name, job.job, hub, options)

    @contextlib.contextmanager
    def code(job: JobSpec, present: Presence) -> Iterator[Callable[[Worker], None]]:
        try:
            yield main
        except (Exception, SystemExit) as error:
            # note the failure before the worker leaves: the others may fail when it has left
            run.errors[name] = error
            raise

    try:
        run_worker(node, hub.address(FIRST_SEAT.server), code)
    # The caller of the job gets the exception. `sys.exit` ends this worker, and not the process, in
    # which other workers run.
    except (Exception, SystemExit) as error:
        run.errors.setdefault(name, error)


def _raise_first(run: InlineRun) -> None:
    """Raise a worker's error. Prefer a worker that failed first to workers that stopped because of
    it."""
    errors = sorted(run.errors.values(), key=lambda error: isinstance(error, PolyrhythmError))
    if errors:
        raise errors[0]
    if run.outcome is not None and run.outcome.failed:
        raise JobFailed(in_words(run.outcome.reason))
