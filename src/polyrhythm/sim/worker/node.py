"""A worker's process in virtual time: its links, the worker's machine, and a model of the user's
loop.

As in the runtime, links are read while the loop waits and not while it computes. Heartbeats are
sent all the time. A stopped process does nothing, and messages to it queue up.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.links import LinkTable
from polyrhythm.core.liveness import HeardThrottle
from polyrhythm.core.model import PART_NBYTES
from polyrhythm.core.names import LEAD, server_name
from polyrhythm.core.performers import WORKER_EFFECTS, performers_of
from polyrhythm.core.placement.bursts import LEAST_NBYTES, Bursts
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.observe.reasons import in_words
from polyrhythm.sim.kept_state import SimKeptState
from polyrhythm.sim.model.link import Channel
from polyrhythm.sim.model.pace import SimulatedPace
from polyrhythm.sim.model.sizes import quantised_sizes, slice_sizes, state_sizes
from polyrhythm.sim.model.statistics import carry
from polyrhythm.sim.process import Hosted, SingleProcess
from polyrhythm.sim.scenario import WorkerSpec
from polyrhythm.sim.server.slice_store import CarriedSum, Given
from polyrhythm.sim.worker.deliveries import SimDeliveries
from polyrhythm.sim.worker.loop import Loop, UserCode
from polyrhythm.sim.world import World
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import TOLD_TO_LEAVE

_ME, POINTS = "worker", "points"
"""`POINTS`: the name that each end of a link between two workers uses for the other end."""
_LEAD_HEARD = ev.LeadHeard()


class WorkerProcess(SingleProcess):
    __slots__ = (
        "_backlog",
        "_bursts",
        "_computing",
        "_deliveries",
        "_dial",
        "_early_since",
        "_expected",
        "_heard_throttle",
        "_host",
        "_job_id",
        "_kept",
        "_lead_linked",
        "_lead_unread",
        "_links",
        "_model",
        "_nbytes",
        "_outbox",
        "_quantised",
        "_sums",
        "applied",
        "failure",
        "loop",
        "machine",
        "name",
        "pace",
        "reports",
    )

    def __init__(
        self,
        spec: WorkerSpec,
        world: World,
        user: UserCode,
        pace: SimulatedPace,
        *,
        dial: Callable[["WorkerProcess", int, m.Address | None], Channel | None],
        dial_worker: Callable[["WorkerProcess", m.ChunkSend], Channel | None],
        host: str = "",
    ) -> None:
        """`dial` returns the channel to a server, or None if no server listens there. `dial_worker`
        returns the channel to another worker. `host`: the host of the worker, if the network is
        measured."""
        job, table = world.job, world.table
        self.machine = WorkerMachine(spec.name)
        super().__init__(world.clock, _ME, self.machine, check=world.checker is not None)
        self.name = spec.name
        self.pace = pace
        self.failure: str | None = None
        self.reports: list[tuple[int, fx.Note]] = []
        """The notes of the worker's machine, with their times."""
        self._lead_linked = ev.LeadLinked(job.heartbeat_s, job.lead_timeout_s)
        self._heard_throttle = HeardThrottle(job.heartbeat_s, job.lead_timeout_s)
        self._lead_unread = False
        """Whether a message of the lead has arrived that the worker has not read yet."""
        self._host = host
        self._bursts = Bursts() if host else None
        self._job_id = job.job
        self._model = user.model
        self._nbytes: dict[int, int] = {}
        self._quantised: dict[int, int] = {}
        """The slices that are quantised in contributions, with their sizes."""
        self._early_since: tuple[int, ...] = ()
        self._sums: dict[int, tuple[int, tuple[Given, ...]]] = {}
        """If that is checked: per slice, the version of the last sum that has come, and the
        contributions in it."""
        self.applied: dict[int, dict[int, tuple[int, tuple[Given, ...]]]] = {}
        """Per version, the sums from which this worker has made it."""
        self._dial = dial
        self._links: LinkTable[Channel] = LinkTable()
        """The channels by which this worker receives."""
        self._backlog: deque[Callable[[], None]] = deque()
        self._expected: int | None = None
        self._outbox = self.machine.outbox
        self._deliveries = SimDeliveries(
            lambda send: dial_worker(self, send),
            lambda event: self.post(_ME, event),
            table.point,
            spec.table.memory,
            shares=user.shares,
        )
        self.loop = Loop(
            self,
            self.machine,
            self._put,
            self._backlog,
            user,
            pace,
            world.objective,
            self._deliveries,
        )
        self._kept = SimKeptState(table.kept)
        if table.kept:
            self.loop.end_iteration = self._send_state
        self._computing = self.loop.computing

    @property
    def contributions(self) -> int:
        """How many contributions the worker has made."""
        return self.loop.sending.contributions

    def say_hello(self) -> None:
        self._link(self.machine.seat.server)

    def _to(self, process: str) -> Channel | None:
        """The channel to the process with this name."""
        channel = self._links.links.get(process)
        return None if channel is None else channel.back

    def _link(
        self, server: int, at: m.Address | None = None, *, incarnation: int = 0, before: int = 0
    ) -> None:
        """Connect to a server. `incarnation`: the incarnation of this server. `before`: the last
        incarnation of this worker, if it joins again."""
        channel = self._dial(self, server, at)
        if channel is None:
            closed = ev.LinkClosed(server_name(server), "no process answers", incarnation)
            self._put(closed)
            return
        channel.back.incarnation = incarnation
        unused = self._links.add(channel.back)
        if unused is not None:
            unused.back.hang_up("the server is linked already")
        if unused is channel.back:
            self._put(ev.Linked(server, incarnation))
            return
        if server == self.machine.seat.server:
            self._put(self._lead_linked)
        channel.send(
            m.WorkerHello(
                worker=self.machine.worker,
                incarnation=self.machine.incarnation or before,
                name=self.name,
                job=self._job_id,
                identity=self._host,
                host=self._host,
            )
        )

    # -- messages ------------------------------------------------------------------------------

    def receive(self, channel: Channel, batch: Sequence[m.Message]) -> None:
        if channel.peer == POINTS:
            self._receive_points(batch)
            return
        if self._computing.on or self.frozen or self._backlog:
            self._lead_unread = self._lead_unread or channel.peer == self._outbox.seat.name
            self._put_off(lambda: self._take(channel, batch))
        else:
            if self._bursts is not None:
                self._measure(self._bursts, channel, batch)
            self._take(channel, batch)
            self.run()

    def _measure(self, bursts: Bursts, channel: Channel, batch: Sequence[m.Message]) -> None:
        """Measure what has come over network cards while the worker was ready to read it."""
        now_ns = self.clock.now_ns
        for message in batch:
            nbytes = self._nbytes.get(message.slice, 0) if isinstance(message, m.Parameters) else 0
            if channel.first_byte_ns and nbytes >= LEAST_NBYTES:
                bursts.add(channel.peer, channel.first_byte_ns, now_ns, nbytes)

    def _receive_points(self, batch: Sequence[m.Message]) -> None:
        """Receive points, even while the worker computes."""
        if self.frozen:
            self._put_off(lambda: self._receive_points(batch))
            return
        for part in batch:
            assert isinstance(part, m.ChunkPart)
            self._deliveries.receive(part)

    def on_closed(self, channel: Channel, reason: str) -> None:
        if channel.peer == POINTS:
            return  # a link between workers: the lead itself notices if a worker has ended
        self._put_off(lambda: self._lose_link(channel, reason))

    def _lose_link(self, channel: Channel, reason: str) -> None:
        if self._links.remove(channel):
            self._put(ev.LinkClosed(channel.peer, reason, channel.incarnation))

    def _put_off(self, take: Callable[[], None]) -> None:
        """Queue this call until the worker reads its links."""
        self._backlog.append(take)
        if not self._computing.on:
            self.unsettled = True
            self.run()
        elif self.loop.looks:
            self._computing.look_up()

    def _take(self, channel: Channel, batch: Sequence[m.Message]) -> None:
        now_ns = self.clock.now_ns
        if now_ns >= self._heard_throttle.next_ns and channel.peer == self._outbox.seat.name:
            self._heard_throttle.due(now_ns)
            self._put(_LEAD_HEARD)
        for message in batch:
            take = _TAKES.get(type(message))
            if take is not None:
                take(self, channel, message)
            else:
                self._put(message)

    def _take_given(self, channel: Channel, message: m.Given) -> None:
        if self._expected is not None:
            self._put(builders.given(message))

    def _take_restored(self, channel: Channel, message: m.Restored) -> None:
        if message.offset + PART_NBYTES >= message.nbytes:
            self._put(ev.StateRestored())

    def _take_slice(self, channel: Channel, message: m.Parameters) -> None:
        if self._expected is None or message.round < self._expected:
            self._put(builders.skipped(message))
            return
        if message.early and self._early_since[message.slice] > message.routing:
            return  # the server of this message was lost since
        if type(message) is CarriedSum:
            self._sums[message.slice] = (message.round, message.cargo)
        now_ns = self.clock.now_ns
        first_byte_ns = channel.first_byte_ns or (
            now_ns - int(self._nbytes[message.slice] * channel.ns_per_byte)
        )
        self.loop.time.on_landed(first_byte_ns, now_ns)
        self._put(builders.landed(message))

    def wake(self, hosted: Hosted) -> None:
        if self._lead_unread and not self.frozen and self.alive:
            self._put(_LEAD_HEARD)
        super().wake(hosted)

    def settle(self) -> None:
        loop, backlog = self.loop, self._backlog
        if loop.ready:
            loop.go_on()
        elif backlog and not loop.computing.on:
            backlog.popleft()()
        elif loop.looking:
            loop.after_steps()
        self.unsettled = self.alive and (loop.ready or loop.looking)
        if not backlog:
            self._lead_unread = False
        elif self.alive and not loop.computing.on:
            self.unsettled = True

    # -- faults and requests -------------------------------------------------------------------

    def freeze(self) -> None:
        if self.alive and not self.frozen:
            self.frozen = True
            self._computing.freeze()

    def thaw(self) -> None:
        if self.alive and self.frozen:
            self.frozen = False
            self.loop.thaw()
            if self.loop.asked:
                self._ask_to_leave()
            self.run()
            self.rearm()

    def leave(self) -> None:
        """Leave, as after SIGTERM: the worker contributes the steps that it has taken, and leaves.
        A stopped process does so when it continues."""
        self.loop.leave()
        if not self.frozen:
            self._ask_to_leave()

    def _ask_to_leave(self) -> None:
        self.post(_ME, ev.LeaveAsked() if self.loop.began else ev.Leaving(TOLD_TO_LEAVE))

    def cut(self, server: int) -> None:
        """Break the link to this server."""
        channel = self._to(server_name(server))
        if channel is not None and self.alive:
            channel.cut("the link was cut")

    def crash(self) -> None:
        if self.alive:
            self.alive = False
            why = f"the link to {self.name} broke"
            for channel in self._links.links.values():
                channel.back.break_off(why)
            self._deliveries.close(lambda channel: channel.break_off(why))

    def _close(self) -> None:
        self.alive = False
        why = f"{self.name} closed the link"
        for channel in self._links.links.values():
            channel.back.hang_up(why)
        self._deliveries.close(lambda channel: channel.hang_up(why))

    # -- effects -------------------------------------------------------------------------------

    def send(self, effect: fx.Send) -> None:
        channel = self._to(self._outbox.seat.process_of(effect.to))
        if channel is None:
            return
        if self._bursts is not None and effect.to == LEAD:
            received = self._bursts.take(self.clock.now_ns)
            if received is not None:
                channel.send(m.RatesMeasured(**self._outbox.identity(), received=received))
        channel.send(effect.message)

    def dial(self, effect: fx.Dial) -> None:
        assert self.machine.job is not None
        job = self.machine.job
        self._nbytes = slice_sizes(self._model, job)
        self._quantised = quantised_sizes(self._model, job)
        if self._quantised:
            self.loop.sending.nbytes = sum((self._nbytes | self._quantised).values())
        lead = self.machine.seat.server
        for spec in effect.servers:
            if spec.server == lead:
                self._put(ev.Linked(lead, spec.incarnation))
            else:
                self._link(spec.server, spec.address, incarnation=spec.incarnation)
        if self._kept.nbytes and not self.loop.began:
            self._put(ev.StateKept(restore=bool(job.resume)))
        self._deliveries.private = job.data_private
        self.loop.admit(job)

    def rejoin(self, effect: fx.Rejoin) -> None:
        for channel in list(self._links.links.values()):
            self._links.remove(channel)
            channel.back.hang_up(in_words(effect.reason))
        self._backlog.clear()
        self._link(self.machine.seat.server, before=effect.incarnation)

    def note(self, effect: fx.Note) -> None:
        self.reports.append((self.clock.now_ns, effect))

    def seed_slices(self, effect: fx.SeedSlices) -> None:
        channel = self._to(server_name(effect.server))
        if channel is None:
            return
        worker, incarnation = self._outbox.worker, self._outbox.incarnation
        for number in effect.slices:
            seed = builders.seed(effect, worker, incarnation, number)
            channel.send(seed, self._nbytes[number])

    def push_slices(self, effect: fx.PushSlices) -> None:
        channel = self._to(server_name(effect.server))
        if channel is None:
            return  # the link has ended: the lead will say whether the server is lost
        if self._sums:
            self.applied.setdefault(effect.round - 1, dict(self._sums))
        outbox, loop, quantised = self._outbox, self.loop, self._quantised
        worker, incarnation, rate = outbox.worker, outbox.incarnation, effect.rates[0]
        differences = loop.sending.differences
        difference = differences.get(effect.buffer) if differences else None
        began_ns = self.clock.now_ns
        left_ns: int | None = began_ns
        for number in effect.slices:
            nbytes = quantised.get(number) if quantised else None
            contribution = builders.contribution(
                effect, worker, incarnation, number, rate, None, None, nbytes is not None
            )
            if difference is not None:
                contribution = carry(contribution, difference)
            left_ns = channel.send(contribution, nbytes or self._nbytes[number])
        if loop.traits.trains_through:
            return
        if left_ns is None:
            channel.when_left(partial(loop.time.left, began_ns))
        else:
            loop.time.left(began_ns, left_ns)

    def expect(self, effect: fx.Expect) -> None:
        self._expected = effect.round

    def capture_state(self, effect: fx.CaptureState) -> None:
        if self._kept.ask(effect):
            self._send_state()

    def share_state(self, effect: fx.ShareState) -> None:
        assert self.machine.job is not None
        sizes = state_sizes(self._model, self.machine.job)
        worker, incarnation = self._outbox.worker, self._outbox.incarnation
        for server, slices in effect.slices:
            channel = self._to(server_name(server))
            if channel is not None:
                for number in slices:
                    shared = builders.shared(effect, worker, incarnation, number)
                    channel.send(shared, sizes[number])
                channel.send(builders.shared(effect, worker, incarnation, m.EVERY_SLICE))

    def _send_state(self) -> None:
        if self._kept.asked is not None:
            self._kept.send(self._to(self._outbox.seat.name))

    def beat(self, effect: fx.Beat) -> None:
        self.send(fx.Send(LEAD, effect.message))

    def prepare_buffers(self, effect: fx.PrepareBuffers) -> None:
        """Note which sums count. No bytes are sent, so there are no push buffers."""
        self._early_since = effect.early_since

    def end(self, effect: fx.End) -> None:
        self._close()

    def take_chunks(self, effect: fx.TakeChunks) -> None:
        computing = self.machine.state is Phase.COMPUTING
        self.loop.take_lease(effect.lease, computing=computing)

    def fail(self, effect: fx.Fail) -> None:
        self.failure = in_words(effect.reason)
        self._close()


WorkerProcess.EFFECTS = performers_of(WorkerProcess, WORKER_EFFECTS)
_TAKES: dict[type, Callable[[WorkerProcess, Channel, Any], None]] = {
    m.Parameters: WorkerProcess._take_slice,
    CarriedSum: WorkerProcess._take_slice,
    m.Given: WorkerProcess._take_given,
    m.HelloReply: lambda process, channel, message: process._put(
        ev.Linked(message.server, channel.incarnation)
    ),
    m.Restored: WorkerProcess._take_restored,
}
"""The handler of each type of message. All other messages are events of the machine."""
