"""The main function of a child process: it runs a server or a worker, and reports to the engine.

The child also watches its control socket: when the engine is gone, the socket closes and the child
ends.
"""

import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO

import msgspec
import torch

from polyrhythm.core.events import ResumeAsked
from polyrhythm.core.link_kinds import may_have_references
from polyrhythm.core.record import Record
from polyrhythm.engines import output
from polyrhythm.engines.exits import exit_words
from polyrhythm.engines.functions import unpack_main
from polyrhythm.engines.output import set_title
from polyrhythm.engines.requests import ChildRequest, ReportLine, Told, listening_fields, pack_line
from polyrhythm.engines.tracebacks import traceback_of
from polyrhythm.engines.worker_process import presence, settle_in, train
from polyrhythm.errors import JobFailed, LeadLost, LinkEnded, PolyrhythmError, Refused
from polyrhythm.io.index import JobIndex, ListedJob
from polyrhythm.io.limits import none_left, too_few
from polyrhythm.io.stream import close_when_forked
from polyrhythm.learn.load import load_main
from polyrhythm.learn.staging import Staging
from polyrhythm.observe.journal import FileJournal
from polyrhythm.observe.output import log_file
from polyrhythm.observe.reasons import in_words
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.net.acceptor import Listeners
from polyrhythm.runtime.net.dial import SocketDialer
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.store.checkpoints import load, read_record
from polyrhythm.store.objects import open_store
from polyrhythm.wire.messages import Address, JobSpec

_LOOK_S = 0.5
"""How often the lead's process attends to a journal that cannot be written."""


class _Control:
    def __init__(self, sock: socket.socket, log: Path) -> None:
        self._sock = sock
        self._log = log
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
        line = self._lines.readline()
        if not line:
            os._exit(1)
        return msgspec.json.decode(line, type=Told)

    def watch(self, handle: Callable[[Told], None] = lambda told: None) -> None:
        """End this process when the engine has ended, for whatever reason. Until then, `handle`
        gets the messages of the engine."""

        def wait() -> None:
            while line := self._lines.readline():
                told = msgspec.json.decode(line, type=Told)
                if told.new_log:
                    output.begin_anew(self._log)
                else:
                    handle(told)
            os._exit(1)

        threading.Thread(target=wait, name="lifeline", daemon=True).start()


def run_child(request: ChildRequest, sock: socket.socket) -> int:
    run_dir = Path(request.run_dir)
    set_title(f"polyrhythm: {_described(request)} of {run_dir.name}", request.name)
    log = log_file(run_dir, request.name)
    control = _Control(sock, log)
    try:
        if request.run_dir:
            output.send_to(log)
        return _run(request, control)
    except OSError as error:
        if not none_left(error):
            raise
        control.tell(Told(failed=too_few()))
        return 1
    finally:
        output.end()


def _described(request: ChildRequest) -> str:
    return f"{request.name} (the lead)" if request.leads else request.name


def _run(request: ChildRequest, control: _Control) -> int:
    settle_in()
    try:
        if request.role == "server":
            return _serve(request, control)
        return _work(request, control)
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
    """Whether a worker failed because it has lost a link and cannot make it again."""
    if isinstance(error, Refused):
        return error.code in ("link-lost", "rejoin-failed")
    return isinstance(error, LinkEnded)


def _options(request: ChildRequest, control: _Control) -> NodeOptions:
    server = request.role == "server"
    return NodeOptions(
        digest=request.digest,
        link=request.link,
        check=request.check,
        trace_dir=Path(request.run_dir) if request.trace else None,
        fold_pause_s=Staging.parse(request.job.staging).fold_pause_s(request.number)
        if server
        else 0,
        report=lambda note: control.tell(Told(note=ReportLine(note.what, note.fields))),
        secret=request.secret,
        device=request.device,
        share_data=request.job.share_data,
        model_dir=Path(request.run_dir) if request.leads else None,
        saving=lambda: control.tell(Told(saving=True)),
        contributed=lambda: control.tell(Told(contributed=True)),
    )


def _serve(request: ChildRequest, control: _Control) -> int:
    listeners = Listeners(request.host, request.port)
    crashpoint.reach(request.name, "made", listeners.address)
    with _registered(request, listeners.address) as indexed:
        return _serve_at(listeners, request, control, indexed=indexed)


def _registered(request: ChildRequest, address: Address) -> AbstractContextManager[bool]:
    """Register the lead's address, so that other commands of the same user find the job's secret.
    Yields False if the index of jobs cannot be written."""
    if not request.leads or not request.secret_file or request.secret is None:
        return nullcontext(True)
    entry = ListedJob(
        host=address.host,
        port=address.port,
        job=request.job.job,
        run_dir=request.run_dir,
        secret=request.secret,
        path=request.job.path,
    )
    return JobIndex(os.environ).registered(entry)


def _serve_at(
    listeners: Listeners, request: ChildRequest, control: _Control, *, indexed: bool
) -> int:
    control.tell(Told(address=listeners.address))
    crashpoint.reach(request.name, "told", listeners.address)
    lead = request.leads
    journal = _journal(request, listeners.address, indexed=indexed) if lead else None
    node = ServerNode(
        request.number,
        request.job,
        listeners.address,
        lead=lead,
        options=_options(request, control),
        journal=journal,
        shared=may_have_references(request.link),
        resumed=_resumed(request.job) if lead else None,
    )
    if lead:
        signal.signal(signal.SIGTERM, lambda *_: node.stop())
    node.listen(listeners)
    if not lead:
        told = control.hear()
        assert told.lead is not None
        # A service manager, or the shutdown of a machine, sends SIGTERM to every process of a job. The
        # lead then ends the job, and needs all servers to save the model.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        node.reach_lead(SocketDialer(request.link), told.lead)
    if journal is None:
        control.watch()
    else:
        control.watch(partial(_handle_engine, node, journal))
    # Python cannot handle a signal during a wait, so each wait is short
    while not node.ended.wait(_LOOK_S):
        _hand_over(journal, control)
    outcome = node.outcome
    assert outcome is not None
    if journal is not None:
        journal.retry(now=True)
        _hand_over(journal, control)
        ended = in_words(outcome.reason)
        failed = ended if outcome.failed else None
        unrecorded = journal.incomplete
        control.tell(Told(ended=ended, failed=failed, whole_job=True, unrecorded=unrecorded))
    elif outcome.reason.code == "refused":
        control.tell(Told(failed=in_words(outcome.reason)))
    elif outcome.reason.code == "lead-gone":
        control.tell(Told(failed=in_words(outcome.reason), orphaned=True))
    elif outcome.reason.code == "lead-lost":
        control.tell(Told(failed=in_words(outcome.reason), lead_lost=True))
    node.close()
    listeners.close()
    if journal is not None:
        journal.close()
    return int(outcome.reason.code in ("lead-gone", "lead-lost", "refused"))


def _hand_over(journal: FileJournal | None, control: _Control) -> None:
    """If the journal cannot be written, try again, and send its lines to the engine."""
    if journal is not None:
        journal.retry()
        if (part := journal.part()) is not None:
            control.tell(Told(journal=part))


def _resumed(job: JobSpec) -> ResumeAsked | None:
    """The event that makes the lead continue from a checkpoint. It contains what the checkpoint
    stores about the lead (`core/record.py`) and the description of the model. None: the job does
    not continue from a checkpoint."""
    if not job.resume:
        return None
    store = open_store(job.resume)
    checkpoint = load(store, job.resume_number)
    record, kept = read_record(store, checkpoint, Record), checkpoint.manifest.kept
    return ResumeAsked(record, checkpoint.manifest.model, 0 if kept is None else kept.nbytes)


def _handle_engine(node: ServerNode, journal: FileJournal, told: Told) -> None:
    """Act on a message that the engine sent to the lead's process."""
    if told.note is not None:
        journal.note(told.note.what, **told.note.fields)
    if told.stop:
        node.stop(at_once=not told.in_order, failed=told.failed or "")


def _journal(request: ChildRequest, address: Address, *, indexed: bool) -> FileJournal:
    try:
        journal = FileJournal(Path(request.run_dir) / "journal.jsonl")
    except OSError as error:
        raise PolyrhythmError(f"cannot write to {request.run_dir}: {error.strerror}") from None
    journal.note("listening", **listening_fields(request, address, indexed=indexed))
    if journal.fault is not None:
        raise PolyrhythmError(journal.fault)  # nothing is lost yet, so the job should not begin
    return journal


def _work(request: ChildRequest, control: _Control) -> int:
    assert request.lead is not None
    torch.set_num_threads(request.threads)
    packed = control.hear().main if request.main_follows else None
    control.watch()
    node = WorkerNode(
        request.name, request.job.job, SocketDialer(request.link), _options(request, control)
    )
    with presence(node, (signal.SIGTERM,)):
        # join before the user's code is loaded: the lead can then end a job whose code hangs there
        job = node.join(request.lead)
        main = load_main(request.job.name) if packed is None else unpack_main(packed)
        train(main, node, job)
    return 0
