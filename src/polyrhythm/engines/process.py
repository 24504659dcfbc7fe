"""The common parts of the processes of a job. Also: how a process that an engine has started
exchanges messages with the engine and reports its failure.

`server_process.py` and `worker_process.py` have the two kinds of processes.
"""

import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from polyrhythm.engines.exits import exit_words
from polyrhythm.engines.host import Control
from polyrhythm.engines.output import set_title
from polyrhythm.engines.requests import ChildRequest, ReportLine, Told, pack_line
from polyrhythm.engines.tracebacks import begins_in_ours, traceback_of
from polyrhythm.errors import JobFailed, LeadLost, LinkEnded, PolyrhythmError, Refused
from polyrhythm.io.limits import none_left, too_few
from polyrhythm.io.stream import close_when_forked
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.options import NodeOptions

_SWITCH_INTERVAL_S = 1e-4
"""How often Python switches threads. With the default of 5 ms, a thread that reads a link can wait
10 ms for a thread that computes."""


def settle_in() -> None:
    """Set up this process for its threads. Every process of a job calls this first, even if the
    user has started the process for another purpose."""
    crashpoint.arm()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def end_with_own_threads() -> None:
    """End this process when one of polyrhythm's own threads fails. Otherwise the process would seem
    alive without doing its work. A failing thread of the user's code ends as in any Python
    program."""
    threading.excepthook = _die


def _die(args: threading.ExceptHookArgs) -> None:
    if not begins_in_ours(args.exc_traceback):
        threading.__excepthook__(args)
        return
    if args.exc_value is not None and none_left(args.exc_value):
        print(f"polyrhythm: {too_few()}", file=sys.stderr, flush=True)
        os._exit(PolyrhythmError.status)
    traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)
    os._exit(70)


class SocketControl:
    """Lines of JSON over a socket. *The process ends when the engine closes the socket or is gone.*"""

    def __init__(self, sock: socket.socket, begin_log: Callable[[], None]) -> None:
        """`begin_log`: called to begin a new log, because the present one is large."""
        self._sock = sock
        self._begin_log = begin_log
        close_when_forked(sock)
        self._lock = threading.Lock()
        self._lines: IO[bytes] = sock.makefile("rb")

    def tell(self, told: Told) -> None:
        try:
            with self._lock:  # the lock keeps the lines of several threads apart
                self._sock.sendall(pack_line(told))
        except OSError:
            os._exit(1)  # the engine is gone, so this process must end too

    def hear(self) -> Told:
        try:
            line = self._lines.readline()
        except OSError:
            line = b""  # the engine ended before it had read all that this process told
        if not line:
            os._exit(1)
        return msgspec.json.decode(line, type=Told)

    def watch(self, handle: Callable[[Told], None] = lambda told: None) -> None:
        def wait() -> None:
            while True:
                told = self.hear()
                if told.new_log:
                    self._begin_log()
                else:
                    handle(told)

        threading.Thread(target=wait, name="lifeline", daemon=True).start()


Run = Callable[[ChildRequest, Control], int]


def run_process(request: ChildRequest, control: Control, run: Run) -> int:
    """Run a server or worker (`run`), and report its failure to the engine. Returns the exit status
    of the process."""
    title = f"{request.name} (the lead)" if request.leads else request.name
    set_title(f"polyrhythm: {title} of {Path(request.run_dir).name}", request.name)
    settle_in()
    end_with_own_threads()
    try:
        return run(request, control)
    except PolyrhythmError as error:
        if request.debug:
            traceback.print_exc()
        lost = isinstance(error, LeadLost)
        ended = isinstance(error, JobFailed) and not lost
        orphaned = request.role == "worker" and _lost_link(error)
        control.tell(Told(failed=f"{error}", whole_job=ended, lead_lost=lost, orphaned=orphaned))
    except SystemExit as error:
        control.tell(Told(failed=exit_words(error)))
    # the error comes from the user's code, so the report has its traceback
    except Exception as error:
        if none_left(error):
            if request.debug:
                traceback.print_exc()
            control.tell(Told(failed=f"{error}: {too_few()}"))
            return 1
        frames = traceback_of(error, whole=request.debug)
        control.tell(Told(failed=f"{type(error).__name__}: {error}\n{frames}"))
    return 1


def _lost_link(error: PolyrhythmError) -> bool:
    """Whether a worker failed because it lost a link that it cannot restore."""
    if isinstance(error, Refused):
        return error.code in ("link-lost", "rejoin-failed")
    return isinstance(error, LinkEnded)


def options_of(request: ChildRequest, control: Control) -> NodeOptions:
    """The options of every node in a process that an engine has started."""
    return NodeOptions(
        digest=request.digest,
        link=request.link,
        check=request.check,
        trace_dir=request.own_dir if request.trace else None,
        report=lambda note: control.tell(Told(note=ReportLine(note.what, note.fields))),
        secret=request.secret,
        run_dir=request.run_dir,
        code=request.code,
        device=request.device,
        share_data=request.job.share_data,
        contributed=lambda: control.tell(Told(contributed=True)),
    )
