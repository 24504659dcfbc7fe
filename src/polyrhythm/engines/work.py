"""Runs a worker in this process: the worker trains, and then leaves the job in an orderly way.

After SIGTERM the worker contributes the steps that it has taken, returns its chunks, and runs the
rest of `main` after its training loop. After a second SIGTERM it leaves at once. A separate thread
acts on the signals, because an exception that a signal handler raises could appear anywhere in the
worker's own thread, even in a finalizer.
"""

import contextlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from polyrhythm.engines.cuda import use_device
from polyrhythm.engines.exits import exit_words
from polyrhythm.engines.tracebacks import begins_in_ours
from polyrhythm.errors import (
    CodeMissing,
    JobFailed,
    LinkError,
    NotFinite,
    OutOfMemory,
    PolyrhythmError,
    Refused,
    ToldToLeave,
)
from polyrhythm.io.descriptors import none_left, too_few
from polyrhythm.learn.staging import Staging
from polyrhythm.learn.tenant import tenant
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import (
    NEVER_ATTACHED,
    NO_CODE,
    TOLD_TO_LEAVE,
    Reason,
    failed,
    not_finite,
)

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
