"""Runs one server in this process: for the engine that has started the process, or, in a process that
the command `polyrhythm server` runs, for a job that was started elsewhere.

The server that an engine has started gets its number and the settings of the job from the engine, and
reports its address. If it has the number of the lead's seat, the lead runs in it.

A server of the other kind asks the lead for its number and for the settings of the job. *It announces
an address that other hosts can reach. If it listens on all addresses of its host, it announces the
local address of its link to the lead.*
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from polyrhythm.core.link_kinds import may_have_references
from polyrhythm.core.names import LEAD, server_name
from polyrhythm.core.values import plain_reason
from polyrhythm.engines.host import Control
from polyrhythm.engines.output import set_title
from polyrhythm.engines.process import end_with_own_threads, options_of, settle_in
from polyrhythm.engines.requests import ChildRequest, FilePart, Told, listening_fields
from polyrhythm.errors import LinkError, PolyrhythmError, Refused
from polyrhythm.io.addresses import ANY_HOST
from polyrhythm.io.index import JobIndex, ListedJob
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import dial_tcp
from polyrhythm.learn.slowdowns import Slowdowns
from polyrhythm.observe.journal import FileJournal, Journal, SentJournal
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import JOURNAL
from polyrhythm.observe.watch import report_in_words
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.net.acceptor import Listeners
from polyrhythm.runtime.net.dial import DialerFromOutside, SocketDialer
from polyrhythm.runtime.net.handshake import introduce, offers, patience
from polyrhythm.runtime.operator import JobAddress
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.tensors.compiler import prepare_optimizers
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import TOLD_TO_LEAVE

_LOOK_S = 0.5
"""How often the lead's process attends to a journal that cannot be written."""
_SEND_S = 0.1
"""How often it sends the lines of a journal that it does not write."""
_PART_NBYTES = 1 << 20


# -- a server that an engine has started -------------------------------------------------------


def serve(request: ChildRequest, control: Control) -> int:
    """Run a server that an engine has started. Returns the exit status of the process."""
    listeners = Listeners(request.host, request.port)
    crashpoint.reach(request.name, "made", listeners.address)
    with _registered(request, listeners.address) as indexed:
        return _serve_at(listeners, request, control, indexed=indexed)


def _options(request: ChildRequest, control: Control) -> NodeOptions:
    options = options_of(request, control)
    return replace(
        options,
        fold_pause_s=Slowdowns.parse(request.job.slowdowns).fold_pause_s(request.number),
        model_dir=request.own_dir if request.leads else None,
        saving=lambda: control.tell(Told(saving=True)),
        deliver=partial(_send_model, request, control) if request.folder else options.deliver,
    )


def _send_model(request: ChildRequest, control: Control, files: Sequence[Path], place: str) -> str:
    """Send the files of a model to the engine, and remove them here. Returns the paths at which the
    engine stores them."""
    for path in files:
        nbytes = path.stat().st_size
        with path.open("rb") as file:
            while (at := file.tell()) < nbytes:
                data = file.read(_PART_NBYTES)
                last = at + len(data) == nbytes
                control.tell(Told(file=FilePart(path.name, at, data, last)))
        path.unlink()
    return str(Path(request.run_dir) / Path(place).name) if files else place


def _registered(request: ChildRequest, address: m.Address) -> AbstractContextManager[bool]:
    """Register the lead's address, so that other commands of the same user find the job's secret.
    Yields False if the index of jobs cannot be written."""
    if not request.leads or not request.secret_file or request.secret is None:
        return nullcontext(True)
    if request.folder:
        return nullcontext(False)  # the index must be on the machine of the engine
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
    listeners: Listeners, request: ChildRequest, control: Control, *, indexed: bool
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
    )
    # an engine may run this on another thread of its process, which gets no signals
    gets_signals = threading.current_thread() is threading.main_thread()
    if lead and gets_signals:
        signal.signal(signal.SIGTERM, lambda *_: node.stop())
    node.listen(listeners)
    leaves = False
    if not lead:
        while (told := control.hear()).lead is None:
            leaves = leaves or told.leave
        # A service manager, or the shutdown of a machine, sends SIGTERM to every process of a job. The
        # lead then ends the job, and needs all servers to save the model.
        if gets_signals:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        node.reach_lead(SocketDialer(request.link), told.lead)
    if leaves:
        node.drain()
    control.watch(partial(_handle_engine, node, journal))
    # Python cannot handle a signal during a wait, so each wait is short
    while not node.ended.wait(_SEND_S if isinstance(journal, SentJournal) else _LOOK_S):
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
        _hand_over(journal, control)
        journal.close()
    return int(outcome.reason.code in ("lead-gone", "lead-lost", "refused"))


def _hand_over(journal: FileJournal | SentJournal | None, control: Control) -> None:
    """Send the engine those lines of the journal that may be missing from its file. If the file
    could not be written, try again."""
    if journal is not None:
        journal.retry()
        if (part := journal.part()) is not None:
            control.tell(Told(journal=part))


def _handle_engine(node: ServerNode, journal: Journal | None, told: Told) -> None:
    """Act on a message of the engine. `journal`: that of the lead's process."""
    if told.leave:
        node.drain()
    if journal is None:
        return
    if told.note is not None:
        journal.note(told.note.what, **told.note.fields)
    if told.stop:
        node.stop(at_once=not told.in_order, failed=told.failed or "")


def _journal(
    request: ChildRequest, address: m.Address, *, indexed: bool
) -> FileJournal | SentJournal:
    journal: FileJournal | SentJournal
    try:
        kind = SentJournal if request.folder else FileJournal
        journal = kind(request.own_dir / JOURNAL)
    except OSError as error:
        raise PolyrhythmError(f"cannot write to {request.own_dir}: {error.strerror}") from None
    journal.note("listening", **listening_fields(request, address, indexed=indexed))
    if journal.fault is not None:
        # nothing is lost yet, so it is better not to begin the job
        raise PolyrhythmError(journal.fault)
    return journal


# -- a server that a command runs, for a job that was started elsewhere --------------------------


def serve_remote(
    lead: JobAddress,
    *,
    say: Callable[[str], None],
    check_host: Callable[[str], None],
    listen_on: tuple[str, int] = ("", 0),
    link: str = "auto",
    digest: str = "auto",
) -> int:
    """Hold slices for the job of this lead, until the job ends or a signal asks the
    server to leave: it then moves its slices to other servers first. A second signal ends it at once.
    Returns the exit status of the command: 0, or 128 plus the number of the signal that ended the
    server at once.

    `listen_on`: the address to listen on. Without a host, the server listens on the local address
    of its link to the lead. `check_host` is called with that address and may refuse it.
    """
    settle_in()
    end_with_own_threads()
    prepare_optimizers(steps=False)
    to_lead = dial_tcp(lead.host, lead.port, LEAD)
    try:
        listen_host = listen_on[0] or to_lead.host_here
        check_host(listen_host)
        listeners = Listeners(listen_host, listen_on[1])
    except PolyrhythmError:
        to_lead.close()
        raise
    address = listeners.address
    if address.host in ANY_HOST:
        address = msgspec.structs.replace(address, host=to_lead.host_here)
    signals: list[int] = []
    node: ServerNode | None = None

    def leave() -> None:
        if node is not None:
            node.drain() if len(signals) == 1 else node.stop()

    def stop(number: int, frame: object) -> None:
        signals.append(number)
        if node is None and len(signals) > 1:
            sys.exit(128 + signals[0])
        leave()

    # once admitted, the server holds slices for the job, so a signal must not end it at once
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    admitted = _enter(to_lead, address, lead, digest)
    name = server_name(admitted.server)
    node = ServerNode(
        admitted.server,
        admitted.job,
        address,
        lead=False,
        options=NodeOptions(
            digest=digest,
            link=link,
            fold_pause_s=Slowdowns.parse(admitted.job.slowdowns).fold_pause_s(admitted.server),
            report=lambda note: say(report_in_words(note.what, (name,), note.fields)),
            secret=lead.secret,
        ),
        shared=may_have_references(link),
    )
    set_title(f"polyrhythm: {name} of {admitted.job.name}", name)
    say(f"joined job {admitted.job.name} at {lead} as {name}")
    say(f"{name} listens on {address.host}:{address.port}")
    node.listen(listeners)
    node.follow_lead(to_lead, DialerFromOutside(link, lead.host))
    if signals:
        leave()
    told = False
    # Python handles a signal only between two waits, so each wait is short
    while not node.ended.wait(_LOOK_S):
        if signals and not told:
            told = True
            say(
                f"{name} asks the lead to move its slices to other servers, and then leaves; a second"
                " signal ends it at once"
            )
    node.close()
    listeners.close()
    assert node.outcome is not None
    if node.outcome.reason.code in ("lead-gone", "lead-lost"):
        raise LinkError(f"{name} ends: {in_words(node.outcome.reason)}")
    say(f"left: {in_words(node.outcome.reason)}")
    return 128 + signals[0] if node.outcome.reason == TOLD_TO_LEAVE else 0


def _enter(link: StreamLink, address: m.Address, lead: JobAddress, digest: str) -> m.Admitted:
    """Ask the lead for a number and for the settings of the job."""
    hello = m.ServerHello(
        pid=os.getpid(),
        host=socket.gethostname(),
        name=f"a server on {socket.gethostname()} (process {os.getpid()})",
        job=lead.job,
        address=address,
        identity=address.identity,
        digests=offers(digest, link.kind),
    )
    with patience(link):
        introduce(link, hello, lead.secret)
    answer, _ = link.receive()
    while isinstance(answer, m.Alive):  # skip the heartbeats that the lead sends over every link
        answer, _ = link.receive()
    if isinstance(answer, m.Refusal):
        raise Refused(in_words(plain_reason(answer.reason)))
    if not isinstance(answer, m.Admitted):
        raise LinkError(f"the lead did not admit this server: it sent {type(answer).__name__}")
    return answer
