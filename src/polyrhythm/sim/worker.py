"""A worker's process in virtual time, with a model of the user's loop above it.

The loop attaches a model, enrols its data set, and then takes points, computes for as long as its
step takes, contributes and waits, until the job stops. As in the runtime, its links are read while
it waits and not while it computes; heartbeats leave all the time. A process that is stopped does
nothing at all, and what comes queues up.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from random import Random

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.placement.slices import ITEM_NBYTES, lay_out
from polyrhythm.core.worker import State, WorkerMachine
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.link import Way
from polyrhythm.sim.points import Points
from polyrhythm.sim.process import Process
from polyrhythm.sim.scenario import WorkerSpec
from polyrhythm.wire import messages as m

_ME = "worker"
_LEADS = 0
"""The server that runs the lead."""
_PUSH_BUFFERS = 2
_SETTLE_NS = 250_000_000
"""As in the runtime: so long what was sent has to arrive, when a worker was told to leave."""
_TOLD = "it was told to leave"
_RATES = (0.1,)
_LEAST_STEP = 0.1
"""Of a step's usual time: noise takes away no more than the rest."""


class WorkerProcess(Process):
    def __init__(
        self,
        spec: WorkerSpec,
        job: str,
        model: m.ModelSpec,
        points: int | None,
        batch: int,
        clock: Clock,
        rng: Random,
        dial: Callable[["WorkerProcess", int], Way],
        *,
        check: bool,
    ) -> None:
        """`dial` gives the way to a server, and is called once for each."""
        self.machine = WorkerMachine(spec.name)
        super().__init__(clock, {_ME: self.machine}, check=check)
        self.name = spec.name
        self.slowness = 1.0
        self.failure: str | None = None
        self.steps = 0
        self._spec = spec
        self._job_id = job
        self._model = model
        self._nbytes: list[int] = []
        self._points = points
        self._batch = batch
        self._rng = rng
        self._dial = dial
        self._ways: dict[int, Way] = {}
        self._backlog: deque[Callable[[], None]] = deque()
        self._expected: int | None = None
        # the user's loop
        self._next: Callable[[], None] = self._attach
        """What the user's code does when it is handed back control."""
        self._ready = False
        self._attached = False
        self._began = False
        self._asked = False
        self._enrolling = False
        self._stopped = False
        self._cursor = Points()
        self._lease: m.Leased | None = None
        self._lease_number = 0
        self._given: tuple[float, tuple[m.Progress, ...]] = (0.0, ())
        self._computing = False
        self._step = 0
        self._ends_ns = 0
        self._resumed_ns = 0
        self._exchanges = 0
        self._sent_ns = 0
        self._left_ns = 0
        self._landed_ns = 0
        self._came_ns = 0
        self._waited_ns = 0
        self._transferred_ns = 0

    def knock(self) -> None:
        self._link(_LEADS)

    def _link(self, server: int) -> None:
        way = self._ways[server] = self._dial(self, server)
        way.send(
            m.WorkerBonjour(
                worker=self.machine.worker,
                incarnation=self.machine.incarnation,
                name=self.name,
                job=self._job_id,
                identity="",
            )
        )

    # -- what comes in -------------------------------------------------------------------------

    def receive(self, way: Way, message: m.Message) -> None:
        if self._computing or self.frozen or self._backlog:
            self._put_off(lambda: self._take(way, message))
        else:
            self._take(way, message)
            self.run()

    def closed(self, way: Way, reason: str) -> None:
        self._put_off(lambda: self.put(_ME, ev.LinkClosed(way.peer, reason)))

    def _put_off(self, take: Callable[[], None]) -> None:
        """Until the worker reads its links."""
        self._backlog.append(take)
        if not self._computing:
            self.unsettled = True
            self.run()

    def _take(self, way: Way, message: m.Message) -> None:
        kind = type(message)
        if kind is m.Parameters:
            self._take_slice(way, message)  # type: ignore[arg-type]
        elif kind is m.Greeting:
            self.put(_ME, ev.Linked(message.server))
        else:
            self.put(_ME, message)

    def _take_slice(self, way: Way, message: m.Parameters) -> None:
        if self._expected is None or message.round < self._expected:
            return
        now_ns = self.clock.now_ns
        first_byte_ns = now_ns - int(self._nbytes[message.slice] * way.ns_per_byte)
        self._came_ns += now_ns - max(first_byte_ns, self._landed_ns, self._left_ns)
        self._landed_ns = now_ns
        self.put(_ME, ev.Landed(message.server, message.slice, message.round, message.sequence))

    def settle(self) -> None:
        if self._ready:
            self._ready = False
            self._next()
        elif self._backlog and not self._computing:
            self._backlog.popleft()()
        self.unsettled = self.alive and (
            self._ready or (bool(self._backlog) and not self._computing)
        )

    # -- the user's loop -----------------------------------------------------------------------

    def _attach(self) -> None:
        self._next = self._enrol if self._points is not None else self._go_on
        self.put(_ME, ev.Attaching(self._model))

    def _enrol(self) -> None:
        assert self._points is not None
        self._next = self._go_on
        self._enrolling = True
        self.put(_ME, ev.Enrolling(self._points))

    def _go_on(self) -> None:
        """The parameters of a version are here, and so is a lease if there are points."""
        self._enrolling = False
        self._book()
        self._began = True
        if self._stopped or self._asked:
            self.put(_ME, ev.Leaving(_TOLD if self._asked else ""))
            return
        batches = self._visit()
        if not batches:
            self._begin_exchange()
            self.put(_ME, ev.Exhausted("it has visited all of its points", self._lease_number))
            return
        self._computing = True
        self._ends_ns = self.clock.now_ns + batches * self._step_ns()
        self._compute()

    def _book(self) -> None:
        """Between sending and going on, what was not the parameters' coming was waiting."""
        now_ns = self.clock.now_ns
        if self.steps:
            self._waited_ns = now_ns - self._left_ns - self._came_ns
            self._transferred_ns += self._came_ns
        self._resumed_ns = now_ns

    def _visit(self) -> int:
        """Take points for one contribution; how many batches they are."""
        job = self.machine.job
        assert job is not None
        if self._lease is None:
            self._given = (float(self._batch * job.local_steps), ())
            return job.local_steps
        self._cursor.take(self._lease)
        self._lease_number = self._lease.number
        visited, batches = 0, 0
        progress: dict[int, m.Progress] = {}
        for _ in range(job.local_steps):
            points, steps = self._cursor.next(self._batch)
            if not points:
                break
            visited, batches = visited + points, batches + 1
            progress.update({step.chunk: step for step in steps})
        self._given = (float(visited), tuple(progress.values()))
        return batches

    def _step_ns(self) -> int:
        usual_ns = self._spec.step_ns * self.slowness
        if self._spec.step_noise:
            usual_ns *= max(_LEAST_STEP, self._rng.gauss(1.0, self._spec.step_noise))
        return int(usual_ns)

    def _compute(self) -> None:
        self._step += 1
        self.clock.at(self._ends_ns, self._computed, self._step)

    def _computed(self, step: int) -> None:
        if step != self._step or not self.alive:
            return  # the process was stopped meanwhile, and takes longer
        self._computing = False
        self.unsettled = bool(self._backlog)
        weight, progress = self._given
        event = ev.Computed(
            self.steps % _PUSH_BUFFERS,
            weight,
            _RATES,
            None,
            self.clock.now_ns - self._resumed_ns,
            self._waited_ns,
            self._transferred_ns,
            progress,
            self._lease_number,
        )
        self.steps += 1
        self._begin_exchange()
        if self._asked:
            self._part()
        self.post(_ME, event)

    def _begin_exchange(self) -> None:
        self._exchanges += 1
        self._left_ns = self._sent_ns = self.clock.now_ns
        self._waited_ns = self._transferred_ns = self._came_ns = 0

    # -- what befalls it -----------------------------------------------------------------------

    def freeze(self) -> None:
        if self.alive and not self.frozen:
            self.frozen = True
            self._step += 1
            self._ends_ns -= self.clock.now_ns

    def thaw(self) -> None:
        if self.alive and self.frozen:
            self.frozen = False
            if self._computing:
                self._ends_ns += self.clock.now_ns
                self._compute()
            self._sleeps_until_ns[_ME] = inf
            if self._asked:
                self._part()
            self.run()

    def leave(self) -> None:
        """As on SIGTERM: it contributes what it has and says good-bye; not while it is stopped."""
        self._asked = True
        if not self.frozen:
            self._part()

    def _part(self) -> None:
        if not self._began:
            self.post(_ME, ev.Leaving(_TOLD))
        elif not self._computing:
            until_ns = max(self.clock.now_ns, self._sent_ns + _SETTLE_NS)
            self.clock.at(until_ns, self._let_go, self._exchanges)

    def _let_go(self, exchange: int) -> None:
        """It does not wait for the others once what it sent has had time to arrive; but a version
        that has begun to land is awaited."""
        waits = self.alive and not (self.frozen or self._computing or self._came_ns)
        if waits and exchange == self._exchanges:
            self.post(_ME, ev.Leaving(_TOLD))

    def crash(self) -> None:
        if self.alive:
            self.alive = False
            for way in self._ways.values():
                way.break_off(f"{self.name} died")

    def _close(self) -> None:
        self.alive = False
        for way in self._ways.values():
            way.hang_up(f"{self.name} closed the link")

    # -- what the machine wants done -----------------------------------------------------------

    def _send(self, effect: fx.Send) -> None:
        way = self._ways.get(_LEADS if effect.to == fx.LEAD else int(effect.to[1:]))
        if way is not None:
            way.send(effect.message)

    def _dial_servers(self, effect: fx.Dial) -> None:
        assert self.machine.job is not None
        job = self.machine.job
        layout = lay_out(self._model, job.servers, job.slice_nbytes)
        self._nbytes = [
            slice_.length * ITEM_NBYTES[layout.spaces[slice_.space].dtype]
            for slice_ in layout.slices
        ]
        self.put(_ME, ev.Linked(_LEADS))
        for server in range(len(effect.addresses)):
            if server != _LEADS:
                self._link(server)
        if not self._attached:
            self._attached = True
            self._ready = self.unsettled = True

    def _rejoin(self, effect: fx.Rejoin) -> None:
        for way in self._ways.values():
            way.hang_up(effect.reason)
        self._ways.clear()
        self._backlog.clear()
        self._link(_LEADS)

    def _beat(self, effect: fx.Beat) -> None:
        self._send(fx.Send(fx.LEAD, effect.message))

    def _arrange(self, effect: fx.Arrange) -> None:
        pass  # a contribution is its slices' numbers and sizes: there are no buffers to make

    def _seed(self, effect: fx.SeedSlices) -> None:
        for number in effect.slices:
            seed = m.Seed(
                routing=effect.routing,
                worker=self.machine.worker,
                incarnation=self.machine.incarnation,
                slice=number,
            )
            self._ways[effect.server].send(seed, self._nbytes[number])

    def _push_slices(self, effect: fx.PushSlices) -> None:
        way = self._ways[effect.server]
        began_ns = self.clock.now_ns
        left_ns = began_ns
        for number in effect.slices:
            contribution = m.Contribution(
                view=effect.view,
                routing=effect.routing,
                worker=self.machine.worker,
                incarnation=self.machine.incarnation,
                sequence=effect.sequence,
                round=effect.round,
                slice=number,
                weight=effect.weight,
                slices=len(effect.slices),
                rate=effect.rates[0],
            )
            left_ns = way.send(contribution, self._nbytes[number])
        if left_ns > self._left_ns:
            self._left_ns = left_ns
            self._transferred_ns = left_ns - began_ns

    def _expect(self, effect: fx.Expect) -> None:
        self._expected = effect.round

    def _resume(self, effect: fx.Resume) -> None:
        self._stopped = self._stopped or effect.stop
        if not self._enrolling or self._lease is not None:
            self._ready = self.unsettled = True

    def _take_chunks(self, effect: fx.TakeChunks) -> None:
        self._lease = effect.lease
        if self._enrolling and self.machine.state is State.COMPUTING:
            self._ready = self.unsettled = True

    def _fail(self, effect: fx.Fail) -> None:
        self.failure = str(effect.reason)
        self._close()

    def _end(self, effect: fx.End) -> None:
        self._close()

    EFFECTS = {  # noqa: RUF012
        fx.Send: _send,
        fx.Dial: _dial_servers,
        fx.Rejoin: _rejoin,
        fx.Beat: _beat,
        fx.Arrange: _arrange,
        fx.SeedSlices: _seed,
        fx.PushSlices: _push_slices,
        fx.Expect: _expect,
        fx.Resume: _resume,
        fx.TakeChunks: _take_chunks,
        fx.Fail: _fail,
        fx.End: _end,
    }
