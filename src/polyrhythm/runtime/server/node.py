"""The process of a server: its links, its slice store, and its machines.

The lead's machine runs in the process of one of the servers. Messages between the lead and this
server stay in the process; all other messages go over links.
"""

import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.lead.pacemaker import PACEMAKER, Pacemaker
from polyrhythm.core.liveness import HeardThrottle
from polyrhythm.core.machine import Effect, Machine
from polyrhythm.core.model import nonsense
from polyrhythm.core.names import LEAD, server_name
from polyrhythm.core.performers import SERVER_EFFECTS, performers_of
from polyrhythm.core.placement.division import given_division
from polyrhythm.core.placement.slices import layout_of
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.values import plain_reason
from polyrhythm.errors import FrameError, LinkError, UsageError
from polyrhythm.io.codefile import read_code
from polyrhythm.io.limits import usable_cores
from polyrhythm.io.link import Link, Payload, Sendable
from polyrhythm.observe.journal import PagedJournal
from polyrhythm.observe.reasons import in_words
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.acceptor import ConnectionAcceptor, Listeners
from polyrhythm.runtime.net.boundary import for_the_lead
from polyrhythm.runtime.net.dial import Dialer
from polyrhythm.runtime.net.meter import Meter
from polyrhythm.runtime.net.peers import HeartbeatSender, LinkWatch, Peers
from polyrhythm.runtime.net.server_links import LinkHandlers, ServerLinks
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.adding import OnArrivalAdding, RoundsAdding, is_large
from polyrhythm.runtime.server.checkpoints import Checkpoints, KeptStates, resume_asked
from polyrhythm.runtime.server.placed import PlacedSlices
from polyrhythm.runtime.server.publishing import Publishing
from polyrhythm.runtime.server.saving import ModelSaver, ParameterSender
from polyrhythm.runtime.trace import Origin, Trace
from polyrhythm.tensors.kinds import KINDS
from polyrhythm.tensors.optimizers import check_optimizer, check_rows
from polyrhythm.tensors.rows import ABSENT
from polyrhythm.tensors.threads import thread_limit
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.operator import MOST_PAGE_NBYTES
from polyrhythm.wire.messages.reasons import TOLD_TO_LEAVE, Reason, refused


def code_answer(job: m.JobSpec, copy: str = "") -> m.OperatorAnswer:
    """The answer with the job's file, or with the reason why it is not sent. `copy`: the file on
    this machine, if it is not at its original path."""
    try:
        source = read_code(Path(copy or job.path), job.code_digest)
    except UsageError as error:
        refused = Reason("code-refused", {"detail": str(error)})
        return m.OperatorAnswer(reason=refused, done=True, failed=True)
    return m.OperatorAnswer(reason=Reason("code-sent"), done=True, source=source)


def journal_answer(
    journal: PagedJournal | None, at: int, run_dir: str, job: m.JobSpec
) -> m.OperatorAnswer:
    """The answer with a page of the journal, or with the reason why it cannot be read."""
    try:
        if journal is None:
            raise OSError(0, "this job keeps no journal")
        page = journal.page(at, MOST_PAGE_NBYTES)
    except OSError as error:
        unread = Reason("journal-unread", {"detail": f"{error.strerror}"})
        return m.OperatorAnswer(reason=unread, done=True, failed=True)
    sent = m.JournalPage(
        run_dir=run_dir, job=job, now_s=page.now_s, lines=page.lines, last=page.last
    )
    return m.OperatorAnswer(reason=Reason("journal-sent"), done=True, page=sent)


_USED_BY_NODE = {m.Alive, m.Attach, m.OperatorRequest, m.Kept, m.Collected}
"""The messages to the lead that the process itself also uses."""


class ServerNode:
    def __init__(
        self,
        server: int,
        job: m.JobSpec,
        address: m.Address,
        *,
        lead: bool,
        options: NodeOptions,
        journal: PagedJournal | None = None,
        shared: bool = True,
    ) -> None:
        resumed = resume_asked(job) if lead else None
        self.name = server_name(server)
        self.address = address
        self.ended = threading.Event()
        self.outcome: fx.End | None = None
        self._server = server
        self._job = job
        self._journal = journal
        self._leads = lead
        self._run_dir = options.run_dir
        self._code = options.code
        self._optimizes = KINDS[job.kind].steps_on_servers and job.updater == "optimizer"
        self._checked: m.ModelSpec | None = None  # the model that `_check_model` has accepted last
        self._peers = Peers()
        self._meter = Meter()
        self._report = options.report
        self._heard_throttle = HeardThrottle(job.heartbeat_s, job.lead_timeout_s)
        self._heartbeats = HeartbeatSender(self._peers)
        machine = self._machine = ServerMachine(server, job)
        self._link_watch = LinkWatch(self._peers, lambda: machine.seat)
        machines: dict[str, Machine] = {self.name: machine}
        if lead:
            machines[LEAD] = LeadMachine(job)
        self._trace = _trace(options, self.name, machines, job, server)
        self._driver = Driver(
            machines,
            self._perform,
            settle=self._peers.flush,
            trace=self._trace,
            check=options.check,
            before_tick=self._look_at_links,
        )
        self.slices = PlacedSlices(
            server,
            job,
            self._peers,
            tell=self._tell_server,
            put=lambda event: self._driver.put(self.name, event),
            shared=shared,
        )
        placed = self.slices.placed
        me = m.ServerHello(
            pid=os.getpid(),
            host=socket.gethostname(),
            server=server,
            name=self.name,
            job=job.job,
            address=address,
            identity=address.identity,
        )
        self.links = ServerLinks(
            me,
            self._peers,
            self._driver,
            job=job,
            options=options,
            seat=lambda: machine.seat,
            journal=journal,
            handlers=LinkHandlers(
                self._take, self._needs_thread, self._meter.add, self.slices.free_states
            ),
        )
        adding = RoundsAdding if traits_of(job.sync).rounds else OnArrivalAdding
        self._adding = adding(
            self.name,
            placed,
            self._driver,
            pause_s=options.fold_pause_s,
            polls=self.links.reading.polls,
            cores=usable_cores(),
            limit=thread_limit(),
        )
        self.publishing = Publishing(
            server,
            placed,
            self._peers,
            self._driver,
            workers=job.workers,
        )
        links = self.links
        self._kept = KeptStates(job, links.to)
        self.checkpoints = Checkpoints(
            self.name, server, job, placed, self._driver, self._kept, self._give_up
        )
        self._acceptor = ConnectionAcceptor(
            self.name,
            job,
            address,
            options,
            accept_link=links.accept_link,
            end_link=links.end_link,
            report_refusal=links.report_refusal,
        )
        links.reading.start()
        self.saver = ModelSaver(
            options.model_dir,
            job,
            announce=options.saving,
            deliver=options.deliver,
            post=lambda event: self._driver.post(LEAD, event),
        )
        send = self.saver.take if lead else self._send_collected
        self._parameters = ParameterSender(server, placed, send)
        self._pacemaker: Driver | None = None
        if lead:
            self._pacemaker = Driver({PACEMAKER: Pacemaker(job)}, self._perform)
            self._pacemaker.post(PACEMAKER, ev.Tick())
            hello = msgspec.structs.replace(me, identity="")
            if resumed is not None:
                self._driver.post(LEAD, resumed)
            self._driver.post(LEAD, ev.ServerHelloReceived(self.name, hello))

    # -- links ---------------------------------------------------------------------------------

    def listen(self, listeners: Listeners) -> None:
        self._acceptor.listen(listeners)

    def welcome(self, link: Link) -> None:
        self._acceptor.welcome(link)

    def reach_lead(self, dialer: Dialer, address: m.Address) -> None:
        """Open the link to the server that runs the lead."""
        self.links.reach_lead(dialer, address)

    def follow_lead(self, link: Link, dialer: Dialer) -> None:
        """Use `link` as the link to the lead; its handshake is done. `dialer` connects to the other
        servers that the lead names."""
        self.links.follow_lead(link, dialer)

    def _needs_thread(self, link: Link) -> bool:
        store = self.slices.store
        large = store is not None and is_large(store)
        return large and not link.kind.has_payload_references

    # -- messages ------------------------------------------------------------------------------

    def _take(self, link: Link, message: m.Message, payload: Payload | None, wait: bool) -> None:
        if isinstance(message, m.Refusal):
            raise LinkError(in_words(plain_reason(message.reason)))
        seat = self._machine.seat
        if link.peer == seat.name and self._heard_throttle.due(time.monotonic_ns()):
            self._driver.put(self.name, ev.LeadHeard())
        if for_the_lead(link, message, seat):
            if not self._leads and isinstance(message, m.Alive):
                return  # this heartbeat only shows that the link works
            if not self._leads:
                raise LinkError(
                    f"{link.peer} sent a message for the lead, which runs in another process"
                )
            used_here = type(message) in _USED_BY_NODE
            if not used_here or self._take_for_lead(link, message, payload):
                self._driver.put(LEAD, message)
        elif isinstance(message, m.Contribution):
            nothing = message.parts == () or message.indices in (ABSENT, 0)
            data = memoryview(b"") if nothing else _payload(message, payload)
            self._adding.take(link, message, data, wait)
        elif isinstance(message, m.Copy | m.State):
            self.slices.take_from_primary(message, payload)
            crashpoint.reach(self.name, "took", message)
        elif isinstance(message, m.Shared):
            self.slices.take_shared(message, payload)
        elif isinstance(message, m.Seed):
            event = self.slices.placed().seed(message, _payload(message, payload))
            if event is not None:
                self._driver.put(self.name, event)
        else:
            crashpoint.reach(self.name, "took", message)
            self._driver.put(self.name, message)

    def _take_for_lead(self, link: Link, message: m.Message, payload: Payload | None) -> bool:
        """Handle a message to the lead that this process uses too. Returns whether to pass it on to
        the lead's machine."""
        if isinstance(message, m.Alive):
            self._heartbeats.confirm(link, message)
        elif isinstance(message, m.Attach) and self._optimizes:
            if message.spec != self._checked:
                _check_model(message, self._job)
                self._checked = message.spec
        elif isinstance(message, m.OperatorRequest):
            self._driver.put(LEAD, ev.OperatorRequested(link.peer, message))
            return False
        elif isinstance(message, m.Kept):
            data = memoryview(b"") if payload is None else payload.view()
            return self._kept.take(message, data)
        elif isinstance(message, m.Collected):
            self.saver.take(message, _payload(message, payload))
            return False
        return True

    # -- effects -------------------------------------------------------------------------------

    def _perform(self, machine: str, effect: Effect) -> None:
        _EFFECTS[type(effect)](self, effect)

    def send(self, effect: fx.Send) -> None:
        if effect.to == LEAD and (received := self._meter.take()) is not None:
            self._deliver(LEAD, self._measured(received))
        self._deliver(effect.to, effect.message)

    def _measured(self, received: m.Received) -> m.RatesMeasured:
        return m.RatesMeasured(term=self._machine.seat.term, server=self._server, received=received)

    def _deliver(self, to: str, message: m.Message) -> None:
        if to == self.name or (to == LEAD and self._leads):
            self._driver.put(to, message)
            return
        link = self.links.to(to)
        if link is not None:
            at_once = crashpoint.ON or isinstance(
                message, m.Fold
            )  # do not delay a `Fold`, so that the other servers fold at the same time
            link.send(message, flush=at_once)
            self._peers.touch(link)
            crashpoint.reach(self.name, "sent", message)

    def _tell_server(self, server: int, message: m.Message, payload: Sequence[Sendable]) -> None:
        self._send_payload(server_name(server), message, payload)

    def _send_payload(self, to: str, message: m.Message, payload: Sequence[Sendable]) -> None:
        link = self.links.to(to)
        if link is not None:
            link.send(message, payload)
            crashpoint.reach(self.name, "sent", message)

    def _send_collected(self, message: m.Collected, data: memoryview) -> None:
        self._send_payload(LEAD, message, (data,))

    def note(self, effect: fx.Note) -> None:
        if self._journal is not None:
            self._journal.note(effect.what, **effect.fields)
        else:
            self._report(effect)

    def end(self, effect: fx.End) -> None:
        self.outcome = self.outcome or effect
        self.ended.set()

    def _give_up(self, detail: str) -> None:
        """End this server, and also the job if the lead runs here."""
        self.end(fx.End(refused(detail), failed=True))

    def build(self, effect: fx.Build) -> None:
        store = self.slices.build(effect)
        self._adding.make_adders(store)
        if effect.fresh and self._job.resume:
            self.checkpoints.restore(store, effect.routing)

    def reroute(self, effect: fx.Reroute) -> None:
        self._adding.make_adders(self.slices.reroute(effect))

    def beat(self, effect: fx.Beat) -> None:
        self.send(fx.Send(LEAD, effect.message))
        if not self._leads:
            self._peers.keep_alive(effect.message, self._machine.seat)

    def _look_at_links(self) -> None:
        """In the lead's process: tell the lead from which peers bytes have come. In another server:
        tell it which links are quiet. The lead knows from heartbeats who is silent."""
        if self._leads:
            if (heard := self._link_watch.heard()) is not None:
                self._driver.put(LEAD, heard)
        elif (quiet := self._link_watch.quiet()) is not None:
            self._driver.put(self.name, quiet)

    def beat_all(self, effect: fx.BeatAll) -> None:
        self._heartbeats.send(effect.message)

    def start_fold(self, effect: fx.StartFold) -> None:
        self._adding.start(effect)

    def send_parameters(self, effect: fx.SendParameters) -> None:
        self._parameters.send(effect)

    def copy_parameters(self, effect: fx.CopyParameters) -> None:
        self._parameters.copy(effect)

    def expect_kept(self, effect: fx.ExpectKept) -> None:
        self._kept.expect(effect)

    def send_kept(self, effect: fx.SendKept) -> None:
        self._kept.send(effect)

    def send_code(self, effect: fx.SendCode) -> None:
        self.send(fx.Send(effect.to, code_answer(self._job, self._code)))

    def send_journal(self, effect: fx.SendJournal) -> None:
        answer = journal_answer(self._journal, effect.at, self._run_dir, self._job)
        self.send(fx.Send(effect.to, answer))

    # -- the end -------------------------------------------------------------------------------

    def stop(self, *, at_once: bool = False, failed: str = "") -> None:
        """Ask the lead to shut the job down cleanly, or to end it `at_once`. `failed`: why the job
        has failed, if it has. If the lead runs in another process, end only this server."""
        if self._leads:
            self._driver.post(LEAD, ev.StopAsked(at_once, failed))
        else:
            self._driver.post(self.name, m.Stop(term=self._machine.seat.term, reason=TOLD_TO_LEAVE))

    def drain(self) -> None:
        """Ask the lead to move the slices of this server to others; the server then ends."""
        self._driver.post(self.name, ev.DrainAsked())

    def close(self) -> None:
        self.links.stop_reporting()
        self._acceptor.close()
        if self._pacemaker is not None:
            self._pacemaker.close()
        self._driver.close()
        self.saver.close()
        self.links.close()
        self._adding.close()
        self.slices.close()
        if self._trace is not None:
            self._trace.close()


_EFFECTS = performers_of(ServerNode, SERVER_EFFECTS)


def _check_model(message: m.Attach, job: m.JobSpec) -> None:
    try:
        for optimizer in message.spec.optimizers:
            check_optimizer(optimizer)
        # the lead refuses other requests
        if nonsense(message.spec) is None and (message.spec.division or given_division(job)):
            check_rows(message.spec, layout_of(message.spec, job))
    except UsageError as error:
        raise LinkError(f"w{message.worker}'s model cannot be held: {error}") from None


def _payload(message: m.Message, payload: Payload | None) -> memoryview:
    if payload is None:
        name = type(message).__name__
        raise FrameError(f"{m.article(name)} {name} came without its payload")
    return payload.view()


def _trace(
    options: NodeOptions, name: str, machines: dict[str, Machine], job: m.JobSpec, server: int
) -> Trace | None:
    if options.trace_dir is None:
        return None
    origins = [
        Origin(machine, "lead" if machine == LEAD else "server", server, machine, job)
        for machine in machines
    ]
    return Trace(options.trace_dir / f"{name}.trace", origins, options.report)
