"""Being a worker in this process, whoever started it: train, and leave in order.

SIGTERM asks: the worker contributes what it has, returns its chunks, runs what `main` does after its
loop, and ends well. A second one leaves at once. Both act on a thread of their own: an exception
instead could land anywhere in the worker's own thread, in a finalizer or halfway through leaving.
"""

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping

from polyrhythm.errors import JobFailed, LinkError, Refused, ToldToLeave
from polyrhythm.learn.staging import Staging
from polyrhythm.learn.tenant import tenant
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import JobSpec

TOLD = "it was told to leave"
_SWITCH_INTERVAL_S = 1e-4
"""A link's thread otherwise waits 10 ms behind a busy Python thread."""


def settle_in() -> None:
    """What every process of a job does first."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    threading.excepthook = _die


def _die(args: threading.ExceptHookArgs) -> None:
    """A thread that fails must not leave a process that only looks alive."""
    traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)
    os._exit(70)


@contextlib.contextmanager
def presence(node: WorkerNode, signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """However the body ends, the worker leaves with its reason; `signals` ask it to."""
    reason, failed = "", False
    _heed(node, signals)
    try:
        yield
        reason = TOLD if node.asked else ""
    except (ToldToLeave, JobFailed, Refused, LinkError) as error:
        reason = TOLD if node.asked else f"it failed: {error}"
        if not node.asked:
            raise  # who was told to leave may find the job gone: that is no failure
    except BaseException as error:  # whatever it is, the lead hears it, and it is raised again
        reason, failed = f"it failed: {error}", True
        raise
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)  # it is leaving already
        node.leave(reason, failed=failed)
        node.close()


def _heed(node: WorkerNode, signals: tuple[signal.Signals, ...]) -> None:
    asked = False

    def leave_at_once() -> None:
        try:
            node.leave(TOLD, at_once=True)
            node.close()
        finally:
            os._exit(0)

    def heed(*_: object) -> None:
        nonlocal asked
        act = leave_at_once if asked else node.ask_to_leave
        asked = True
        threading.Thread(target=act, name="leave", daemon=True).start()

    for number in signals:
        signal.signal(number, heed)


def train(
    main: Callable[[Worker], None],
    node: WorkerNode,
    job: JobSpec,
    staging: Mapping[str, str] | None = None,
) -> None:
    """Run the user's loop on the stage that the job, and `staging` for this worker, set up."""
    stage = Staging.parse(job.staging).of(node.name).amended(staging or {})
    worker = Worker(node, job, stage)
    with tenant() if stage.tenant else contextlib.nullcontext():
        main(worker)
        worker.finish()
