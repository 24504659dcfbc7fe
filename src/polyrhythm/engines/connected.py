"""A worker in a process that the user has started, without an engine and without a command: the
user's code runs as it is, and this module joins the job and leaves it.

*The process keeps its signal handlers. It leaves the job when the worker is closed. An exception
that leaves the `with` block of the worker, or that ends the program, is reported to the lead as the
failure of this worker. A process that ends in any other way closes its links, and the lead counts
it as gone.*
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from functools import partial, wraps
from types import TracebackType
from typing import Any, TypeVar, cast

from polyrhythm.core.devices import AUTO, device_of_process, local_number
from polyrhythm.core.migration import sharing_fault
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.engines.cuda import look_for_cuda
from polyrhythm.engines.tracebacks import without_ours
from polyrhythm.engines.work import SWITCH_INTERVAL_S, why_failed
from polyrhythm.errors import JobFailed, LinkError, Refused, ToldToLeave, UsageError
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.watch import report_in_words
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.net.dial import DialerFromOutside
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import Address, JobSpec
from polyrhythm.wire.messages.reasons import TOLD_TO_LEAVE, Reason, failed
from polyrhythm.wire.proof import Secret

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
