"""The process of a server in virtual time. The lead machine runs in the first server.

This file mirrors `runtime/server/node.py`, with sizes in place of bytes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.kinds import sums_only
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.lead.pacemaker import PACEMAKER, Pacemaker
from polyrhythm.core.liveness import HeardThrottle
from polyrhythm.core.machine import Event, Machine
from polyrhythm.core.names import LEAD, server_name, worker_name
from polyrhythm.core.performers import SERVER_EFFECTS, performers_of
from polyrhythm.core.placement.bursts import LEAST_NBYTES, Bursts
from polyrhythm.core.senders import TO_LEAD, is_to_lead
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.errors import LinkError
from polyrhythm.observe.journal import Journal
from polyrhythm.observe.reasons import in_words
from polyrhythm.sim.kept_state import send_restored
from polyrhythm.sim.model.link import Channel
from polyrhythm.sim.model.statistics import CarriedContribution
from polyrhythm.sim.process import Hosted, Process
from polyrhythm.sim.server.adding import SimAdding, SimOnArrivalAdding, SimRoundsAdding
from polyrhythm.sim.server.cuts import SimCuts
from polyrhythm.sim.server.links import SimServerLinks
from polyrhythm.sim.server.placed import SimPlacedSlices
from polyrhythm.sim.server.publishing import SimPublishing
from polyrhythm.sim.server.rows_store import RowsCopy, RowsState
from polyrhythm.sim.server.saving import SimModelSaver
from polyrhythm.sim.server.slice_store import CarriedCopy, CarriedState, SimSliceStore
from polyrhythm.sim.world import World
from polyrhythm.wire import messages as m


class ServerProcess(Process):
    __slots__ = (
        "_adding",
        "_bursts",
        "_checker",
        "_heard_throttle",
        "_job",
        "_journal",
        "_kept_nbytes",
        "_lead",
        "_leads",
        "_machine",
        "_me",
        "_missed",
        "_objective",
        "_placed",
        "_server",
        "_sums_only",
        "address",
        "checkpoints",
        "links",
        "looks",
        "name",
        "outcome",
        "publishing",
        "reports",
        "saver",
        "slices",
    )

    def __init__(
        self,
        server: int,
        world: World,
        *,
        journal: Journal | None,
        dial: Callable[["ServerProcess", m.ServerSpec], Channel | None],
        life: int = 0,
        host: str = "",
    ) -> None:
        """`journal`: None unless the lead runs in this server. `dial` returns the channel to another
        server, or None if that server is not running. `life`: how many servers had this number
        before; it makes the address unique. `host`: the host of the server, if the network is
        measured."""
        self.name = server_name(server)
        job, clock, checker = world.job, world.clock, world.checker
        fold_ns_per_byte = 1e9 / world.table.fold_rate
        machine = self._machine = ServerMachine(server, job)
        machines: dict[str, Machine] = {self.name: machine}
        if journal is not None:
            machines[LEAD] = LeadMachine(job)
            machines[PACEMAKER] = Pacemaker(job)
        super().__init__(clock, machines, check=checker is not None)
        self._me, self._lead = self.hosted[self.name], self.hosted.get(LEAD)
        self.address = m.Address("simulated", life, "", host)
        self._bursts = Bursts() if host else None
        self.outcome: fx.End | None = None
        self.looks = False
        """Whether a link of this server has ever been silent. Then the server must check its links.
        Without such a fault all links carry heartbeats, which are not simulated."""
        self.reports: list[tuple[int, fx.Note]] = []
        """The notes of this server's machines, with their times. A server without the lead has no
        journal for them."""
        self._kept_nbytes = world.table.kept
        self._server = server
        self._job = job
        self._sums_only = sums_only(job)
        self._journal = journal
        self._leads = journal is not None
        self._objective = world.objective
        self._checker = checker
        me = m.ServerHello(
            server=server, name=self.name, job=job.job, host=host, address=self.address, identity=""
        )
        self._heard_throttle = HeardThrottle(job.heartbeat_s, job.lead_timeout_s)
        self.links = SimServerLinks(
            self, me, journal, lambda spec: dial(self, spec), lambda: machine.seat
        )
        self.slices = SimPlacedSlices(
            server,
            job,
            checker,
            tell=self._tell_server,
            put=lambda event: self.put(self.name, event),
        )
        self._placed = self.slices.placed
        self._adding: SimAdding
        if traits_of(job.sync).rounds:
            self._adding = SimRoundsAdding(clock, self._add, self._fold, fold_ns_per_byte)
        else:
            self._adding = SimOnArrivalAdding(clock, self._fold_slice, fold_ns_per_byte)
        self.publishing = SimPublishing(self, server, self.links, self._placed, self._slept_through)
        self.saver = SimModelSaver(
            clock, lambda slice_: self._placed().nbytes_at(slice_), self._post_to_lead
        )
        self.checkpoints = SimCuts(
            self,
            self.name,
            server,
            self._placed,
            self._slept_through,
            checker,
            copy_ns_per_byte=fold_ns_per_byte,
            store_ns_per_byte=1e9 / world.table.store_rate,
        )
        self._missed: deque[Callable[[], None]] = deque()
        """Calls that are delayed because the process is stopped."""

    @property
    def memory(self) -> SimSliceStore | None:
        """The slice store; None until the lead has placed slices on this server."""
        return self.slices.store

    def say_hello(self, lead: Channel | None) -> None:
        """Join the job: over a link to the lead, or directly if the lead runs in this process."""
        self.links.say_hello(lead)
        if self._leads:
            self.post(PACEMAKER, ev.Tick())
        else:
            self.post(self.name, ev.LeadLinked(self._job.heartbeat_s, self._job.lead_timeout_s))

    # -- faults --------------------------------------------------------------------------------

    def crash(self) -> None:
        if self.alive:
            self.alive = False
            self.links.break_off()

    def drain(self) -> None:
        """Ask the lead to drain this server, as after SIGTERM."""
        if self._slept_through(self.drain):
            return
        self.post(self.name, ev.DrainAsked())

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        if self.alive and self.frozen:
            self.frozen = False
            while self._missed and self.alive:
                self._missed.popleft()()
            self.run()
            self.rearm()

    def silence(self, other: Process, *, silent: bool) -> None:
        """Stop all messages over the links to this process, or let them pass again."""
        self.looks = True
        for channel in list(self.links.table.links.values()):
            if channel.back.leads_to(other):
                (channel.back.silence if silent else channel.back.heal)()

    def wake(self, hosted: Hosted) -> None:
        if self.looks and not self._leads and not self.frozen and self.alive:
            self.put(self.name, ev.LinksQuiet(self.links.silent()))
        super().wake(hosted)

    def cut(self, peers: set[str]) -> None:
        """Break the links to these peers."""
        self.links.cut(peers)

    def _slept_through(self, what: Callable[[], None]) -> bool:
        """Whether the process is stopped or dead. A stopped process calls `what` when it
        continues."""
        if self.frozen:
            self._missed.append(what)
        return self.frozen or not self.alive

    # -- messages ------------------------------------------------------------------------------

    def receive(self, channel: Channel, batch: Sequence[m.Message]) -> None:
        if self.frozen:
            self._missed.append(lambda: self.receive(channel, batch))
            return
        now_ns, throttle = self.clock.now_ns, self._heard_throttle
        elsewhere = self._lead is None  # a server has no link to a lead in its own process
        if elsewhere and now_ns >= throttle.next_ns and channel.peer == self._machine.seat.name:
            throttle.due(now_ns)
            self.put(self.name, ev.LeadHeard())
        heard = channel.heard  # False if the link ended while this process was stopped
        for message in batch:
            take = _TAKES.get(type(message))
            if take is not None:
                take(self, channel, message)
            else:
                self.put(self.name, message)
            if heard and not channel.heard:
                break  # the message was refused and ended the link
        self.run()

    def _take_for_lead(self, channel: Channel, message: m.Message) -> None:
        self._queue.append((self._lead, message))
        if self._checker is not None:
            self._checker.told_lead(message)

    def _take_kept(self, channel: Channel, message: m.Kept) -> None:
        if self.checkpoints.take_kept(message):
            self._take_for_lead(channel, message)

    def _take_alive(self, channel: Channel, message: m.Alive) -> None:
        """Handle a heartbeat: of a worker or server to the lead, or of the lead to this server."""
        if is_to_lead(message):
            self._take_for_lead(channel, message)
        else:
            self.put(self.name, message)

    def _take_request(self, channel: Channel, message: m.OperatorRequest) -> None:
        self.put(LEAD, ev.OperatorRequested(channel.peer, message))

    def on_closed(self, channel: Channel, reason: str) -> None:
        if self.frozen:
            self._missed.append(lambda: self.on_closed(channel, reason))
            return
        self.links.forget(channel, reason)
        self.run()

    def _take_seed(self, channel: Channel, message: m.Seed) -> None:
        try:
            event = self._placed().seed(message)
        except LinkError as error:
            self.links.end_link(channel, str(error))
            return
        if event is not None:
            self.put(self.name, event)

    def _take_contribution(self, channel: Channel, message: m.Contribution) -> None:
        store = self.slices.store
        nbytes = None if store is None else store.slices.get(message.slice)
        if nbytes is None:
            try:
                nbytes = self._placed().nbytes_of(message)
            except LinkError as error:
                self.links.end_link(channel, str(error))
                return
        if self._bursts is not None and channel.first_byte_ns and nbytes >= LEAST_NBYTES:
            self._bursts.add(channel.peer, channel.first_byte_ns, self.clock.now_ns, nbytes)
        self._adding.take(message, nbytes)

    def _add(self, message: m.Contribution) -> None:
        event = self.slices.add(message)
        if self._sums_only:
            self.publishing.send_early(message.slice)
        if event is not None:
            self._queue.append((self._me, event))

    def _tell_server(self, server: int, message: m.Message, nbytes: int = 0) -> None:
        self._send_payload(server_name(server), message, nbytes)

    def _send_payload(self, to: str, message: m.Message, nbytes: int) -> None:
        channel = self.links.to(to)
        if channel is not None:
            channel.send(message, nbytes)

    def _fold_slice(self, message: m.Contribution) -> None:
        if self._slept_through(lambda: self._fold_slice(message)):
            return
        self._add(message)
        self._learn()
        self.run()

    def _learn(self) -> None:
        if self._objective is not None and (weight := self._placed().weights.get(0)) is not None:
            self._objective.on_folded(weight)

    # -- effects -------------------------------------------------------------------------------

    def send(self, effect: fx.Send) -> None:
        to, message = effect.to, effect.message
        if self._checker is not None:
            if isinstance(message, m.Fold):
                self._checker.on_decided(message)
            elif isinstance(message, m.Release):
                self._checker.on_released(message)
            if to == LEAD and to in self.machines:
                self._checker.told_lead(message)
        if to == LEAD and self._bursts is not None:
            self._report_rates(self._bursts)
        self._deliver(to, message)

    def _report_rates(self, bursts: Bursts) -> None:
        """Tell the lead what this server has received, if it is time for that."""
        received = bursts.take(self.clock.now_ns)
        if received is not None:
            term = self._machine.seat.term
            message = m.RatesMeasured(term=term, server=self._server, received=received)
            self._deliver(LEAD, message)

    def _deliver(self, to: str, message: m.Message) -> None:
        if to in self.hosted:
            self.put(to, message)
        elif (channel := self.links.to(to)) is not None:
            channel.send(message)

    def note(self, effect: fx.Note) -> None:
        if self._journal is not None:
            self._journal.note(effect.what, **effect.fields)
        else:
            self.reports.append((self.clock.now_ns, effect))

    def end(self, effect: fx.End) -> None:
        self.outcome = self.outcome or effect
        if self._leads:
            self.clock.stop()
        else:
            self.alive = False
            self.links.hang_up(f"{self.name} ended: {in_words(effect.reason)}")

    def build(self, effect: fx.Build) -> None:
        store = self.slices.build(effect)
        if effect.fresh and self._job.resume:
            self.checkpoints.restore(store, effect.routing)

    def _fold(self, effect: fx.StartFold) -> None:
        if self._slept_through(lambda: self._fold(effect)):
            return
        weight = self._placed().fold(effect.round, effect.slot, effect.share, effect.rows)
        self.slices.send_steps()
        self._learn()
        if self._checker is not None:
            self._checker.on_folded(self._server, effect.round)
        self.put(self.name, ev.FoldDone(effect.round, weight))
        self._adding.done()
        self.run()

    def send_parameters(self, effect: fx.SendParameters) -> None:
        for slice_ in effect.slices:
            message = m.Collected(server=self._server, number=effect.number, slice=slice_)
            if self._leads:
                self.saver.take(message)
            else:
                self._send_payload(LEAD, message, self._placed().nbytes_at(slice_))

    def send_kept(self, effect: fx.SendKept) -> None:
        send_restored(self.links.to(worker_name(effect.worker)), effect, self._kept_nbytes)

    def reroute(self, effect: fx.Reroute) -> None:
        self.slices.reroute(effect)

    def start_fold(self, effect: fx.StartFold) -> None:
        self._adding.start(effect, self._placed().nbytes)

    def copy_parameters(self, effect: fx.CopyParameters) -> None:
        """Does nothing: copying takes no virtual time."""

    def expect_kept(self, effect: fx.ExpectKept) -> None:
        self.checkpoints.expect_kept(effect)

    def send_code(self, effect: fx.SendCode) -> None:
        """Does nothing: a simulated job has no code."""

    def send_journal(self, effect: fx.SendJournal) -> None:
        """Does nothing: the journal of a simulated job is read where it is simulated."""

    def _post_to_lead(self, event: Event) -> None:
        if not self._slept_through(lambda: self._post_to_lead(event)):
            self.post(LEAD, event)

    def beat(self, effect: fx.Beat) -> None:
        self.send(fx.Send(LEAD, effect.message))

    def beat_all(self, effect: fx.BeatAll) -> None:
        for channel in self.links.table.links.values():
            channel.back.send(effect.message)


ServerProcess.EFFECTS = performers_of(ServerProcess, SERVER_EFFECTS)
_TAKES: dict[type, Callable[[ServerProcess, Channel, Any], None]] = {
    **dict.fromkeys(TO_LEAD, ServerProcess._take_for_lead),
    m.Alive: ServerProcess._take_alive,
    m.Collected: lambda process, channel, message: process.saver.take(message),
    m.Kept: ServerProcess._take_kept,
    m.Contribution: ServerProcess._take_contribution,
    CarriedContribution: ServerProcess._take_contribution,
    **dict.fromkeys(
        (m.WorkerHello, m.ServerHello, m.OperatorHello),
        lambda process, channel, message: process.links.hear_hello(channel, message),
    ),
    m.HelloReply: lambda process, channel, message: process.put(
        process.name, ev.Linked(message.server, channel.incarnation)
    ),
    m.OperatorRequest: ServerProcess._take_request,
    m.Seed: ServerProcess._take_seed,
    m.Shared: lambda process, channel, message: process.slices.take_shared(message),
    **dict.fromkeys(
        (CarriedCopy, CarriedState, RowsCopy, RowsState),
        lambda process, channel, message: process.slices.take_from_primary(message),
    ),
}
"""The handler of each type of message. All other messages are events of the server's machine."""
