"""Runs one worker in this process. There are four ways in which a worker starts:

- `work`: an engine has started the process. The engine names the lead, and gets the worker's failure.
  SIGTERM asks the worker to leave.
- `run_remote`: `polyrhythm worker` runs in this process and names the lead. The worker runs a file of
  this machine, or one that the lead sends. SIGTERM and Ctrl-C ask it to leave, and a failure ends the
  command.
- `engines/inline.py` runs all workers of a job in threads of one process. They leave when the job has
  ended, and the engine gets their failures.
- `connect_worker`: a program of the user names the lead, goes on as a worker, and leaves by `close()`.

The first three take one path (`run_worker`): join, load the code, train, leave. All four give the lead
the same reasons when they leave (`why_left`).
"""

import atexit
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch

from polyrhythm.core.combinations import sharing_fault
from polyrhythm.core.devices import AUTO, device_of_process, local_number
from polyrhythm.core.kinds import steps_on_workers
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.engines.cores import share_of_cores
from polyrhythm.engines.cuda import look_for_cuda, use_device
from polyrhythm.engines.exits import exit_words
from polyrhythm.engines.functions import unpack_main
from polyrhythm.engines.host import Control
from polyrhythm.engines.output import set_title
from polyrhythm.engines.process import end_with_own_threads, options_of, settle_in
from polyrhythm.engines.requests import ChildRequest, Told
from polyrhythm.engines.tracebacks import without_ours
from polyrhythm.errors import (
    CodeMissing,
    JobFailed,
    LeadLost,
    LinkError,
    NeverAttached,
    NotFinite,
    OutOfMemory,
    Refused,
    ToldToLeave,
    UsageError,
)
from polyrhythm.io.codefile import check_size, digest_of
from polyrhythm.io.local import host_identity
from polyrhythm.learn.load import JOBS, check_job, load_main
from polyrhythm.learn.slowdowns import Slowdowns
from polyrhythm.learn.tenant import tenant
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.watch import report_in_words
from polyrhythm.runtime.net.dial import DialerFromOutside, SocketDialer
from polyrhythm.runtime.operator import JobAddress, ask_lead, may_run
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.compiler import prepare_optimizers
from polyrhythm.wire.messages import Address, JobSpec, OperatorRequest
from polyrhythm.wire.messages.operator import CODE
from polyrhythm.wire.messages.reasons import (
    NEVER_ATTACHED,
    NO_CODE,
    TOLD_TO_LEAVE,
    Reason,
    failed,
    not_finite,
)

_OUT_OF_MEMORY = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

Main = Callable[[Worker], None]
"""The function that the user has written for workers."""


@dataclass(slots=True)
class Presence:
    """How this process takes part in the job."""

    own_command: bool
    """Whether a user started this process as a command, instead of an engine. Then its exit status
    names the signal that ended it, as shells and supervisors expect."""
    signal: int = 0
    """The number of the first signal that asked the worker to leave; 0 if none came."""

    @property
    def status(self) -> int:
        """The exit status of the process when it leaves without an error."""
        return 128 + self.signal if self.own_command and self.signal else 0


@contextlib.contextmanager
def presence(
    node: WorkerNode,
    signals: tuple[signal.Signals, ...],
    *,
    own_command: bool = False,
    orders: "LeaveOrders | None" = None,
) -> Iterator[Presence]:
    """Run the body of the `with` statement as a member of the job. When the body ends, the worker
    leaves and tells the lead why. `signals`: the signals that ask the worker to leave. `orders`: the
    messages that ask it to leave."""
    present = Presence(own_command)
    ask = _handle(node, signals, present)
    if orders is not None:
        orders.follow(lambda: ask(signal.SIGTERM))
    left: tuple[Reason, bool] | None = None
    try:
        yield present
    except BaseException as error:  # report the error to the lead, and raise it again
        left = why_left(node, error)
        # a worker that was told to leave ends without an error, even if the job has ended
        if left != (TOLD_TO_LEAVE, False):
            raise
    finally:
        for number in signals:
            # the worker is leaving: ignore further signals
            signal.signal(number, signal.SIG_IGN)
        reason, has_failed = left or why_left(node, None)
        node.leave(reason, failed=has_failed)
        node.close()


def why_left(node: WorkerNode, error: BaseException | None) -> tuple[Reason, bool]:
    """The reason that a worker gives to the lead when it leaves, and whether its code has failed.
    `error`: the exception of the code; None if the code has returned."""
    by_job = isinstance(error, ToldToLeave | JobFailed | Refused | LinkError | CodeMissing)
    if error is None or by_job:
        if node.loop.asked:
            return TOLD_TO_LEAVE, False
        if error is None:
            return node.loop.done, False
        return (NO_CODE if isinstance(error, CodeMissing) else failed(error)), False
    return why_failed(error), True


def why_failed(error: BaseException) -> Reason:
    """The reason that a worker gives to the lead when its code has raised this error."""
    if isinstance(error, NotFinite):
        return not_finite(error.what, error.tensor, error.step, str(error))
    return failed(exit_words(error) if isinstance(error, SystemExit) else error)


class LeaveOrders:
    """The orders of an engine to leave that come as messages. *An order that comes before the worker
    has joined is carried out when it has joined.*"""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early = 0
        self._ask: Callable[[], None] | None = None

    def on_told(self, told: Told) -> None:
        with self._lock:
            if told.leave and self._ask is not None:
                self._ask()
            elif told.leave:
                self._early += 1

    def follow(self, ask: Callable[[], None]) -> None:
        with self._lock:
            self._ask = ask
            for _ in range(self._early):
                ask()


def _handle(
    node: WorkerNode, signals: tuple[signal.Signals, ...], present: Presence
) -> Callable[[int], None]:
    """Handle these signals. Returns the function that a signal calls."""

    def leave_at_once() -> None:
        try:
            node.leave(TOLD_TO_LEAVE, at_once=True)
            node.close()
        finally:
            os._exit(present.status)

    def ask(number: int) -> None:
        act = leave_at_once if present.signal else node.ask_to_leave
        present.signal = present.signal or number
        threading.Thread(target=act, name="leave", daemon=True).start()

    for number in signals:
        signal.signal(number, lambda number, frame: ask(number))
    return ask


Code = Callable[[JobSpec, Presence], contextlib.AbstractContextManager[Main]]
"""Returns the function that the worker runs. It is called when the worker has joined and knows the
job."""


def run_worker(
    node: WorkerNode,
    lead: Address,
    code: Code,
    *,
    signals: tuple[signal.Signals, ...] = (),
    own_command: bool = False,
    orders: LeaveOrders | None = None,
    slowdowns: Mapping[str, str] | None = None,
) -> Presence:
    """Join the job whose lead is at this address, train, and leave."""
    with presence(node, signals, own_command=own_command, orders=orders) as present:
        # join before loading the user's code: the lead can then end a job whose code hangs while it
        # is loaded
        job = node.join(lead)
        with code(job, present) as main:
            train(main, node, job, slowdowns)
    return present


def train(
    main: Main,
    node: WorkerNode,
    job: JobSpec,
    slowdowns: Mapping[str, str] | None = None,
) -> None:
    """Run the user's `main`. `slowdowns`: changes to the job's rules about slowing down this
    worker."""
    slowdown = Slowdowns.parse(job.slowdowns).of(node.name).amended(slowdowns or {})
    use_device(node.device)
    worker = Worker(node, job, slowdown)
    with tenant() if slowdown.tenant else contextlib.nullcontext():
        try:
            call(main, worker)
            _check_attached(node)
            worker.finish()
        finally:
            worker.close_logs()


def _check_attached(node: WorkerNode) -> None:
    """Raise NeverAttached if the user's `main` has returned while the job runs, and has trained
    nothing."""
    loop = node.loop
    if loop.done == NEVER_ATTACHED and not (loop.asked or loop.stopped):
        raise NeverAttached(
            "main(worker) returned without calling worker.attach(model, optimizer), so this worker has"
            " trained nothing"
        )


def call(main: Main, worker: Worker) -> None:
    """Run the user's `main`. `sys.exit()` without an error ends it as `return` does."""
    try:
        main(worker)
    except SystemExit as error:
        if error.code:
            raise
    except RuntimeError as error:
        if (shorter := out_of_memory(error)) is None:
            raise
        raise shorter from error


def out_of_memory(error: RuntimeError) -> OutOfMemory | None:
    """The error in one line if the device has no memory left. Torch's own text has several
    sentences about its allocator. Some errors of the driver can be recognised only by their
    text."""
    if not isinstance(error, torch.OutOfMemoryError) and not any(
        words in str(error) for words in _OUT_OF_MEMORY
    ):
        return None
    tried = re.search(r"Tried to allocate (\d+(?:\.\d+)? \w+)", str(error))
    needed = f", which has no {tried[1]} left" if tried else ""
    return OutOfMemory(
        f"out of memory on the device{needed}: use smaller batches, or let fewer workers share the"
        " device"
    )


# -- a worker that an engine has started -------------------------------------------------------


def work(request: ChildRequest, control: Control) -> int:
    """Run a worker that an engine has started. Returns the exit status of the process.

    After SIGTERM a worker contributes the steps that it has taken, returns its chunks, and runs the
    rest of `main` after its training loop. After a second SIGTERM it leaves at once. A separate
    thread acts on the signals, because an exception that a signal handler raises could appear
    anywhere in the worker's own thread, even in a finalizer.
    """
    assert request.lead is not None
    torch.set_num_threads(request.threads)
    packed = control.hear().main if request.main_follows else None
    orders = LeaveOrders()
    control.watch(orders.on_told)
    # an engine may run this on another thread of its process, which gets no signals
    gets_signals = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGTERM,) if gets_signals else ()

    def code(job: JobSpec, present: Presence) -> contextlib.AbstractContextManager[Main]:
        if packed is None:
            return contextlib.nullcontext(
                load_main(request.code or request.job.path or request.job.name)
            )
        return contextlib.nullcontext(unpack_main(packed, elsewhere=bool(request.folder)))

    options = options_of(request, control)
    node = WorkerNode(request.name, request.job.job, SocketDialer(request.link), options)
    return run_worker(node, request.lead, code, signals=signals, orders=orders).status


# -- a worker that finds the lead at HOST:PORT -------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """What a user has chosen for a worker that joins a running job."""

    link: str = "auto"
    digest: str = "auto"
    devices: str = AUTO
    """The device of this worker (`core/devices.py`)."""
    share_data: bool = False
    """Whether its private points may be sent to other workers."""
    trace_dir: Path | None = None


def _node_from_outside(
    lead: JobAddress, name: str, options: JoinOptions, say: Callable[[str], None]
) -> WorkerNode:
    of_node = NodeOptions(
        digest=options.digest,
        link=options.link,
        trace_dir=options.trace_dir,
        report=lambda note: say(report_in_words(note.what, (name,), note.fields)),
        secret=lead.secret,
        device=device_of_process(options.devices, look_for_cuda(), local_number(os.environ)),
        share_data=options.share_data,
    )
    return WorkerNode(name, lead.job, DialerFromOutside(options.link, lead.host), of_node)


def _without_effect(job: JobSpec, option: str, *, share_data: bool) -> list[str]:
    """A hint for the user about the given option to share data."""
    why = sharing_fault(job, traits_of(job.sync)) if share_data else None
    return [] if why is None else [f"{option} has no effect: {why}"]


# -- a worker in a program of the user ---------------------------------------------------------

Method = TypeVar("Method", bound=Callable[..., Any])

_NAME_TAKEN = "name-taken"


def _while_connected(method: Method) -> Method:
    """Wrap a method, so that it raises an error after the worker was closed."""

    @wraps(method)
    def call(worker: "ConnectedWorker", *args: Any, **keywords: Any) -> Any:
        worker.check_open(f"worker.{method.__name__}()")
        return method(worker, *args, **keywords)

    return cast(Method, call)


class ConnectedWorker(Worker):
    """The worker that `polyrhythm.connect` returns: a `Worker` in a process that you have
    started.

    It has all methods of `Worker`. As a context manager it leaves the job at the end of the
    `with` block. An exception that leaves the block is reported to the job as the failure of this
    worker; `KeyboardInterrupt` and `sys.exit(0)` are not failures. After `close()`, methods that
    need the job raise UsageError. If the job ends before its goal, the next call raises
    JobFailed.

    Example:
        >>> worker = pr.connect(job.address)
        >>> worker.closed
        False
        >>> worker.close()
        >>> worker.closed
        True
    """

    def __init__(self, node: WorkerNode, job: JobSpec, address: str) -> None:
        super().__init__(node, job)
        self.address: str = address
        """HOST:PORT of the job."""
        self._closed = False
        self._closing = threading.Lock()
        self._hook_before = sys.excepthook
        self._hook = self._report_uncaught
        sys.excepthook = self._hook
        # close the links before the other clean-up of the process, which may take long
        atexit.register(node.close)

    attach = _while_connected(Worker.attach)
    keep = _while_connected(Worker.keep)
    probe = _while_connected(Worker.probe)
    batches = _while_connected(Worker.batches)
    report = _while_connected(Worker.report)
    evaluate = _while_connected(Worker.evaluate)

    @property
    def closed(self) -> bool:
        """Whether this worker has left the job.

        Example:
            >>> with pr.connect(job.address) as worker:
            ...     pass
            >>> worker.closed
            True
        """
        return self._closed

    @property
    def stopped(self) -> bool:
        """Whether your training loop must end: the job has ended, or this worker was told to
        leave or is closed.

        Example:
            >>> worker = pr.connect(job.address)
            >>> worker.close()
            >>> worker.stopped
            True
        """
        return self._closed or super().stopped

    def check_open(self, what: str) -> None:
        """Raise UsageError if this worker has left the job. Not for users' code."""
        if self._closed:
            raise UsageError(
                f"{what} was called after {self.name} had left the job at {self.address}: call it"
                " before close(), inside the with block"
            )

    def leave(self) -> None:
        """Let the worker contribute what it has computed, and end its training loop. Your program
        then goes on after the loop. A signal handler may call it.

        Example:
            >>> import signal
            >>> worker = pr.connect(job.address)
            >>> before = signal.signal(signal.SIGTERM, lambda number, frame: worker.leave())
            >>> worker.close()
        """
        threading.Thread(target=self._node.ask_to_leave, name="leave", daemon=True).start()

    def close(self) -> None:
        """Leave the job when all contributions are acknowledged, or after five seconds. A second
        call does nothing.

        Example:
            >>> worker = pr.connect(job.address)
            >>> worker.close()
        """
        self._leave(None)

    def __enter__(self) -> "ConnectedWorker":
        self.check_open("with")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(error)

    def __repr__(self) -> str:
        return f"<{self.name} of the job at {self.address}{', closed' if self._closed else ''}>"

    # -- leaving -------------------------------------------------------------------------------

    def _leave(self, error: BaseException | None) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if sys.excepthook == self._hook:
            sys.excepthook = self._hook_before
        atexit.unregister(self._node.close)
        reason, raised = self._reason(error)
        try:
            if error is None:
                self.finish()
        finally:
            self.close_logs()
            try:
                self._node.leave(reason, failed=raised)
            finally:
                self._node.close()
                _forget(self)
                refuse = partial(self.check_open, "optimizer.step()")
                self._models.before_step = refuse  # type: ignore[method-assign]

    def _reason(self, error: BaseException | None) -> tuple[Reason, bool]:
        """Why this worker leaves, and whether its program has failed."""
        if isinstance(error, SystemExit) and not error.code:
            error = None
        if self._node.loop.asked or isinstance(error, KeyboardInterrupt):
            return TOLD_TO_LEAVE, False
        if isinstance(error, SystemExit):
            return failed(f"the program ended with status {error.code}"), True
        return why_left(self._node, error)

    def _report_uncaught(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        """Leave the job because an exception ends the program, then show the exception as before."""
        try:
            self._leave(error)
        # a second error must not hide the exception that ended the program
        except Exception as failure:
            detail = f"{type(failure).__name__}: {failure}".partition("\n")[0]
            print(f"polyrhythm: could not leave the job as usual: {detail}", file=sys.stderr)
        self._hook_before(kind, error, without_ours(traceback))


_present: tuple[int, ConnectedWorker] | None = None
"""The process id and the worker of this process. After a fork, the child has no worker."""


def check_absent() -> None:
    """Raise UsageError if this process is a worker already."""
    if _present is not None and _present[0] == os.getpid():
        worker = _present[1]
        raise UsageError(
            f"this process is {worker.name} of the job at {worker.address} already: close() that"
            " worker first, or connect in another process"
        )


def _forget(worker: ConnectedWorker) -> None:
    global _present
    if _present is not None and _present[1] is worker:
        _present = None


def connect_worker(
    lead: JobAddress,
    names: tuple[str, ...],
    options: JoinOptions,
    *,
    say: Callable[[str], None],
) -> ConnectedWorker:
    """Join the job of this lead. `names`: names for this worker; if one is taken, the next is tried.

    *The process keeps its signal handlers. It leaves the job when the worker is
    closed. An exception that leaves the `with` block of the worker, or that ends the program, is
    reported to the lead as the failure of this worker. A process that ends in any other way closes
    its links, and the lead counts it as gone.*
    """
    global _present
    check_absent()
    settle_in()
    name, *others = names
    node = _node_from_outside(lead, name, options, say)
    try:
        spec = node.join(Address(lead.host, lead.port, "", ""))
    except BaseException as error:
        node.close()
        if others and isinstance(error, Refused) and error.code == _NAME_TAKEN:
            return connect_worker(lead, tuple(others), options, say=say)
        raise
    for line in _without_effect(spec, "share_data", share_data=options.share_data):
        say(line)
    worker = ConnectedWorker(node, spec, str(lead))
    _present = os.getpid(), worker
    return worker


# -- a worker that a command runs --------------------------------------------------------------

_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.py")


@contextlib.contextmanager
def accepted_code(lead: JobAddress, name: str, job: JobSpec) -> Iterator[tuple[Path, str]]:
    """Get the job's file from the lead, and keep it in a folder that only this user can enter,
    until the end of the `with` block. Yields its path and its digest. Raises CodeMissing if the
    lead does not send it, and LinkError if it is not the file of the job."""
    source = _fetch(replace(lead, job=job.job), name, job)
    digest = digest_of(source)
    if digest != job.code_digest:
        raise LinkError("the lead has sent a file that is not the job's: the digests differ")
    given = Path(job.name).name
    with tempfile.TemporaryDirectory(prefix="polyrhythm-code-") as folder:
        path = Path(folder) / (given if _MODULE.fullmatch(given) else "job.py")
        path.write_bytes(source)
        yield path, digest


def _fetch(lead: JobAddress, name: str, job: JobSpec) -> bytes:
    for answer in ask_lead(lead, name, OperatorRequest(what=CODE)):
        if answer.failed:
            raise CodeMissing(in_words(answer.reason))
        if answer.done:
            try:
                check_size(len(answer.source), Path(job.name).name)
            except UsageError as error:
                raise CodeMissing(str(error)) from None
            return answer.source
    raise LinkError("the lead has ended the link before it had sent the job's file")


_GRACE_S = 5.0
"""How long the user's code may go on after the lead has ended its link to this worker, before this
process asks whether the job still runs."""
_LOOK_EVERY_S = 1.0


class _JobWatch:
    """Ends this process some time after the end of the job. Use it as a context manager around the
    user's code.

    *If the job has ended and the user's code does not return to its training loop, the process ends
    after a grace period. Engines give their processes the same grace period.* Code after the
    training loop may run without a limit.
    """

    def __init__(
        self,
        node: WorkerNode,
        present: Presence,
        may_run: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        """`may_run`: whether the job may still run."""
        self._node = node
        self._present = present
        self._may_run = may_run
        self._say = say
        self._over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="job-watch", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        name, since_s = self._node.name, time.monotonic()
        while not self._over.wait(_LOOK_EVERY_S):
            if not self._node.cut_off:
                since_s = time.monotonic()
            if time.monotonic() < since_s + _GRACE_S:
                continue
            if self._may_run():
                since_s = time.monotonic()  # the lead has evicted this worker, which may rejoin
            elif self._node.loop.stopped:
                self._say(
                    f"the job has ended, and the code of {name} after its training loop still runs:"
                    " this process ends with that code, or at once after two SIGTERM or Ctrl-C"
                )
                return
            elif not self._over.is_set():
                self._say(
                    f"left: the job has ended, and the code of {name} did not return to its training"
                    f" loop within {_GRACE_S:g} s, so this process ends"
                )
                sys.stderr.flush()
                os._exit(self._present.status or 1)


def run_remote(
    lead: JobAddress,
    name: str,
    options: JoinOptions,
    *,
    say: Callable[[str], None],
    file: str = "",
    accept_code: bool = False,
    threads: int | None = None,
    slowdowns: Mapping[str, str] | None = None,
) -> int:
    """Join the job of this lead, train, and leave. Returns the exit status of the
    command: 0, or 128 plus the number of the signal that asked the worker to leave. If the user's
    code hangs when the job has ended, the process ends with status 1.

    `file`: the file with the job's code on this host, if the user has given one. *A file that only
    the lead names is never run. Code that the lead sends is run only with `accept_code`, if it is the
    file with which the job began.*
    """
    settle_in()
    end_with_own_threads()
    prepare_optimizers(steps=False)
    node = _node_from_outside(lead, name, options, say)
    code_from = partial(_code_of, lead=lead, name=name, say=say)

    @contextlib.contextmanager
    def code(spec: JobSpec, present: Presence) -> Iterator[Main]:
        set_title(f"polyrhythm: {name} of {spec.name}", name)
        say(f"joined job {spec.name} at {lead} as {name}")
        for line in _without_effect(spec, "--share-data", share_data=options.share_data):
            say(line)
        here = node.servers[0].identity == host_identity()
        torch.set_num_threads(threads or _threads_for(spec, here))
        prepare_optimizers(steps=steps_on_workers(spec.kind))
        may_go_on = partial(may_run, replace(lead, job=spec.job), name)
        with (
            _JobWatch(node, present, may_go_on, say),
            code_from(spec, file, accept=accept_code) as found,
        ):
            yield load_main(found)

    signals = (signal.SIGTERM, signal.SIGINT)
    address = Address(lead.host, lead.port, "", "")
    try:
        present = run_worker(
            node, address, code, signals=signals, own_command=True, slowdowns=slowdowns
        )
    except LeadLost as error:
        raise LeadLost(f"{name} ends: {error}") from None
    except JobFailed as error:
        say(f"left: the job has ended: {error}")
        return 0
    left = "the job has ended" if node.loop.stopped else in_words(node.loop.done)
    say(f"left: {in_words(TOLD_TO_LEAVE) if node.loop.asked else left}")
    return present.status


def _threads_for(spec: JobSpec, here: bool) -> int:
    """The number of threads of this worker: all cores, or a share of them if workers and servers
    that `train` has started run on this host too."""
    return share_of_cores(spec.workers + 1, spec.servers) if here else share_of_cores(1, 0)


@contextlib.contextmanager
def _code_of(
    spec: JobSpec,
    file: str,
    *,
    accept: bool,
    lead: JobAddress,
    name: str,
    say: Callable[[str], None],
) -> Iterator[str]:
    """The code to run: the file that the user gave to this command, the file that the user gave to
    `train` on this host, a built-in job, or the file that the lead sends, if the user accepts
    it."""
    if spec.name in JOBS and not file:
        yield spec.name
        return
    if file:
        check_job(file)
        if spec.code_digest and digest_of(Path(file).read_bytes()) != spec.code_digest:
            say(f"{file} differs from the job's file: check that both files train the same model")
        yield file
        return
    if not accept or not spec.path:
        raise CodeMissing(_missing(spec, str(lead)))
    with accepted_code(lead, name, spec) as (path, digest):
        check_job(str(path))
        say(f"runs {path.name}, which the lead has sent ({path.stat().st_size} bytes, {digest})")
        yield str(path)


def _missing(spec: JobSpec, address: str) -> str:
    if spec.served:
        return (
            "this job has no code: name a file with main(worker), as in 'polyrhythm worker"
            f' FILE.py --connect {address}\', or call polyrhythm.connect("{address}") in a program'
        )
    if not spec.path:
        return (
            "the code of this job is a function of a Python program, which is never sent to another"
            f" process: put it into a file, as in 'polyrhythm worker FILE.py --connect {address}'"
        )
    file = Path(spec.name).name
    return (
        f"the code of job {spec.name} is not on this machine: name its copy here, as in 'polyrhythm"
        f" worker {file} --connect {address}', or give --accept-code to run the file that the lead"
        " sends"
    )
