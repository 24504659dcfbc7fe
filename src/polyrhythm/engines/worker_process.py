"""Runs a worker in this process: the worker trains, and then leaves the job in an orderly way.

After SIGTERM the worker contributes the steps that it has taken, returns its chunks, and runs the
rest of `main` after its training loop. After a second SIGTERM it leaves at once. A separate thread
acts on the signals, because an exception that a signal handler raises could appear anywhere in the
worker's own thread, even in a finalizer.

Runs one worker in this process, without an engine, for a job on this or another host.

*If the job has ended, and the user's code does not return to its training loop, the process ends
after a grace period, as the processes that an engine has started do. The code after the loop may go
on.*

A worker in a process that the user has started, without an engine and without a command: the
user's code runs as it is, and this module joins the job and leaves it.

*The process keeps its signal handlers. It leaves the job when the worker is closed. An exception
that leaves the `with` block of the worker, or that ends the program, is reported to the lead as the
failure of this worker. A process that ends in any other way closes its links, and the lead counts
it as gone.*

The code that a joining worker gets from the lead, if its user accepts that (`--accept-code`).
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
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch

from polyrhythm.core.combinations import sharing_fault
from polyrhythm.core.devices import AUTO, device_of_process, local_number
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.engines.cores import share_of_cores
from polyrhythm.engines.cuda import look_for_cuda, use_device
from polyrhythm.engines.exits import exit_words
from polyrhythm.engines.output import set_title
from polyrhythm.engines.tracebacks import begins_in_ours, without_ours
from polyrhythm.errors import (
    CodeMissing,
    JobFailed,
    LeadLost,
    LinkError,
    NotFinite,
    OutOfMemory,
    PolyrhythmError,
    Refused,
    ToldToLeave,
    UsageError,
)
from polyrhythm.io.codefile import check_size, digest_of
from polyrhythm.io.limits import none_left, too_few
from polyrhythm.io.local import host_identity
from polyrhythm.learn.load import JOBS, check_job, load_main
from polyrhythm.learn.staging import Staging
from polyrhythm.learn.tenant import tenant
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.watch import report_in_words
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.net.dial import DialerFromOutside
from polyrhythm.runtime.operator import ask_lead, may_run
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker.node import WorkerNode
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
from polyrhythm.wire.proof import Secret

_OUT_OF_MEMORY = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
SWITCH_INTERVAL_S = 1e-4
"""How often Python switches threads. With the default of 5 ms, a thread that reads a link can wait
10 ms for a thread that computes."""


def settle_in() -> None:
    """Set up this process. Every process of a job calls this first."""
    crashpoint.arm()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    threading.excepthook = _die


def _die(args: threading.ExceptHookArgs) -> None:
    """End the process when one of polyrhythm's own threads fails. Otherwise the process would seem
    alive without doing its work. A thread of the user's code ends as in any Python program."""
    if not begins_in_ours(args.exc_traceback):
        threading.__excepthook__(args)
        return
    if args.exc_value is not None and none_left(args.exc_value):
        print(f"polyrhythm: {too_few()}", file=sys.stderr, flush=True)
        os._exit(PolyrhythmError.status)
    traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)
    os._exit(70)


@dataclass(slots=True)
class Presence:
    """How this process takes part in the job."""

    own_command: bool
    """Whether a user, and not the engine, started this process as a command. If so, its exit status
    names the signal that ended it, as shells and supervisors expect."""
    signal: int = 0
    """The number of the first signal that asked the worker to leave; 0 if none came."""

    @property
    def status(self) -> int:
        """The exit status of the process when it leaves without an error."""
        return 128 + self.signal if self.own_command and self.signal else 0


@contextlib.contextmanager
def presence(
    node: WorkerNode, signals: tuple[signal.Signals, ...], *, own_command: bool = False
) -> Iterator[Presence]:
    """Run the body of the `with` statement as a member of the job. When the body ends, the worker
    leaves and tells the lead why. `signals`: the signals that ask the worker to leave."""
    reason, raised = NEVER_ATTACHED, False
    present = Presence(own_command)
    _handle(node, signals, present)
    try:
        yield present
        reason = TOLD_TO_LEAVE if node.loop.asked else node.loop.done
    except (ToldToLeave, JobFailed, Refused, LinkError, CodeMissing) as error:
        reason = NO_CODE if isinstance(error, CodeMissing) else failed(error)
        reason = TOLD_TO_LEAVE if node.loop.asked else reason
        # a worker that was told to leave ends without an error, even if the job has ended
        if not node.loop.asked:
            raise
    except BaseException as error:  # report the error to the lead, and raise it again
        reason, raised = why_failed(error), True
        raise
    finally:
        for number in signals:
            # the worker is leaving: ignore further signals
            signal.signal(number, signal.SIG_IGN)
        node.leave(reason, failed=raised)
        node.close()


def why_failed(error: BaseException) -> Reason:
    """The reason that a worker whose code raised this error gives to the lead."""
    if isinstance(error, NotFinite):
        return not_finite(error.what, error.tensor, error.step, str(error))
    return failed(exit_words(error) if isinstance(error, SystemExit) else error)


def _handle(node: WorkerNode, signals: tuple[signal.Signals, ...], present: Presence) -> None:
    def leave_at_once() -> None:
        try:
            node.leave(TOLD_TO_LEAVE, at_once=True)
            node.close()
        finally:
            os._exit(present.status)

    def on_signal(number: int, frame: object) -> None:
        act = leave_at_once if present.signal else node.ask_to_leave
        present.signal = present.signal or number
        threading.Thread(target=act, name="leave", daemon=True).start()

    for number in signals:
        signal.signal(number, on_signal)


def train(
    main: Callable[[Worker], None],
    node: WorkerNode,
    job: JobSpec,
    staging: Mapping[str, str] | None = None,
) -> None:
    """Run the user's `main`. `staging` changes the staging of the job for this worker."""
    stage = Staging.parse(job.staging).of(node.name).amended(staging or {})
    use_device(node.device)
    worker = Worker(node, job, stage)
    with tenant() if stage.tenant else contextlib.nullcontext():
        try:
            call(main, worker)
            worker.finish()
        finally:
            worker.close()


def call(main: Callable[[Worker], None], worker: Worker) -> None:
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
    """A worker of a job in a process that the user has started (`polyrhythm.connect`). It is a
    context manager that leaves the job at the end of the `with` block."""

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
        """Whether this worker has left the job."""
        return self._closed

    @property
    def stopped(self) -> bool:
        """Whether the training loop must end: the job has ended, or this worker was told to leave
        or is closed."""
        return self._closed or super().stopped

    def check_open(self, what: str) -> None:
        """Raise UsageError if this worker has left the job."""
        if self._closed:
            raise UsageError(
                f"{what} was called after {self.name} had left the job at {self.address}: call it"
                " before close(), inside the with block"
            )

    def leave(self) -> None:
        """Ask this worker to leave: its training loop contributes what it has computed and ends. A
        signal handler may call this. The program then goes on after the loop."""
        threading.Thread(target=self._node.ask_to_leave, name="leave", daemon=True).start()

    def close(self) -> None:
        """Leave the job when all contributions are acknowledged, or after five seconds. A second
        call does nothing."""
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
            try:
                self._node.leave(reason, failed=raised)
            finally:
                self._node.close()
                _forget(self)
                refuse = partial(self.check_open, "optimizer.step()")
                self._models.before_step = refuse  # type: ignore[method-assign]

    def _reason(self, error: BaseException | None) -> tuple[Reason, bool]:
        """Why this worker leaves, and whether its program has failed."""
        if self._node.loop.asked or isinstance(error, KeyboardInterrupt):
            return TOLD_TO_LEAVE, False
        if error is None or (isinstance(error, SystemExit) and not error.code):
            return self._node.loop.done, False
        if isinstance(error, ToldToLeave | JobFailed | Refused | LinkError):
            return failed(error), False
        if isinstance(error, SystemExit):
            return failed(f"the program ended with status {error.code}"), True
        return why_failed(error), True

    def _report_uncaught(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        """An exception ends the program: leave the job, then show the exception as before."""
        try:
            self._leave(error)
        # a second error must not hide the exception that ended the program
        except Exception as failure:
            detail = f"{type(failure).__name__}: {failure}".partition("\n")[0]
            print(f"polyrhythm: could not leave the job as usual: {detail}", file=sys.stderr)
        self._hook_before(kind, error, without_ours(traceback))


_present: tuple[int, ConnectedWorker] | None = None
"""The process id and the worker of this process. A forked process has no worker of its own."""


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
    host: str,
    port: int,
    names: tuple[str, ...],
    *,
    say: Callable[[str], None],
    secret: Secret,
    job: str = "",
    link: str = "auto",
    digest: str = "auto",
    devices: str = AUTO,
    share_data: bool = False,
) -> ConnectedWorker:
    """Join the job whose lead is at host:port. `names`: names for this worker; if one is taken, the
    next is tried. `devices`: the device of this worker (`core/devices.py`). `share_data`: its private
    points may be sent to other workers."""
    global _present
    check_absent()
    crashpoint.arm()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    name, *others = names
    options = NodeOptions(
        digest=digest,
        link=link,
        report=lambda note: say(report_in_words(note.what, (name,), note.fields)),
        secret=secret,
        device=device_of_process(devices, look_for_cuda(), local_number(os.environ)),
        share_data=share_data,
    )
    node = WorkerNode(name, job, DialerFromOutside(link, host), options)
    try:
        spec = node.join(Address(host, port, "", ""))
    except BaseException as error:
        node.close()
        if others and isinstance(error, Refused) and error.code == _NAME_TAKEN:
            return connect_worker(
                *(host, port, tuple(others)),
                say=say,
                secret=secret,
                job=job,
                link=link,
                digest=digest,
                devices=devices,
                share_data=share_data,
            )
        raise
    if share_data and (why := sharing_fault(spec, traits_of(spec.sync))) is not None:
        say(f"share_data has no effect: {why}")
    worker = ConnectedWorker(node, spec, f"{host}:{port}")
    _present = os.getpid(), worker
    return worker


_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.py")


@contextlib.contextmanager
def accepted_code(
    host: str, port: int, name: str, job: JobSpec, secret: Secret
) -> Iterator[tuple[Path, str]]:
    """Get the job's file from the lead, and keep it in a folder that only this user can enter,
    until the end of the `with` block. Yields its path and its digest. Raises CodeMissing if the
    lead does not send it, and LinkError if it is not the file of the job."""
    source = _fetch(host, port, name, job, secret)
    digest = digest_of(source)
    if digest != job.code_digest:
        raise LinkError("the lead has sent a file that is not the job's: the digests differ")
    given = Path(job.name).name
    with tempfile.TemporaryDirectory(prefix="polyrhythm-code-") as folder:
        path = Path(folder) / (given if _MODULE.fullmatch(given) else "job.py")
        path.write_bytes(source)
        yield path, digest


def _fetch(host: str, port: int, name: str, job: JobSpec, secret: Secret) -> bytes:
    for answer in ask_lead(host, port, name, job.job, secret, OperatorRequest(what=CODE)):
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
    user's code."""

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
    host: str,
    port: int,
    name: str,
    *,
    say: Callable[[str], None],
    secret: Secret,
    job: str = "",
    file: str = "",
    link: str = "auto",
    digest: str = "auto",
    threads: int | None = None,
    devices: str = AUTO,
    staging: Mapping[str, str] | None = None,
    trace_dir: Path | None = None,
    accept_code: bool = False,
    share_data: bool = False,
) -> int:
    """Join the job whose lead is at host:port, train, and leave. Returns the exit status of the
    command: 0, or 128 plus the number of the signal that asked the worker to leave. If the user's
    code hangs when the job has ended, the process ends with status 1.

    `job`: join only the job with this id. `file`: the file with the job's code on this host, if the
    user has given one. *A file that only the lead names is never run. Code that the lead sends is run
    only with `accept_code`, if it is the file with which the job began.* `devices`: the device of this
    worker (`core/devices.py`). `share_data`: its private points may be sent to other workers.
    """
    settle_in()
    options = NodeOptions(
        digest=digest,
        link=link,
        trace_dir=trace_dir,
        report=lambda note: say(report_in_words(note.what, (name,), note.fields)),
        secret=secret,
        device=device_of_process(devices, look_for_cuda(), local_number(os.environ)),
        share_data=share_data,
    )
    node = WorkerNode(name, job, DialerFromOutside(link, host), options)
    code_from = partial(_code_of, host=host, port=port, name=name, secret=secret, say=say)
    try:
        with presence(node, (signal.SIGTERM, signal.SIGINT), own_command=True) as present:
            spec = node.join(Address(host, port, "", ""))
            set_title(f"polyrhythm: {name} of {spec.name}", name)
            say(f"joined job {spec.name} at {host}:{port} as {name}")
            if share_data and (why := sharing_fault(spec, traits_of(spec.sync))) is not None:
                say(f"--share-data has no effect: {why}")
            here = node.servers[0].identity == host_identity()
            torch.set_num_threads(threads or _threads_for(spec, here))
            may_go_on = partial(may_run, host, port, name, spec.job, secret)
            with (
                _JobWatch(node, present, may_go_on, say),
                code_from(spec, file, accept=accept_code) as code,
            ):
                train(load_main(code), node, spec, staging)
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
    host: str,
    port: int,
    name: str,
    secret: Secret,
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
        raise CodeMissing(_missing(spec, f"{host}:{port}"))
    with accepted_code(host, port, name, spec, secret) as (path, digest):
        check_job(str(path))
        say(f"runs {path.name}, which the lead has sent ({path.stat().st_size} bytes, {digest})")
        yield str(path)


def _missing(spec: JobSpec, address: str) -> str:
    if spec.served:
        return (
            "this job has no code of its own: name a file with main(worker), as in 'polyrhythm worker"
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
