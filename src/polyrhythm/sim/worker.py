"""A worker's process in virtual time, with a model of the user's loop above it.

The loop attaches a model, enrols its data set, and then takes points, computes for as long as its
steps take, contributes and waits, until the job stops. As in the runtime, its links are read while
it waits and not while it computes; heartbeats leave all the time. Under psp it does not wait: it
looks at its links after each step until the version has come. Under fsp it takes micro-batches,
looks after each, and contributes when its interval is over, when it is hurried, or when it has
passed over all of its points. A process that is stopped does nothing at all, and what comes queues
up.
"""

from collections import deque
from collections.abc import Callable
from math import ceil

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.placement.slices import ITEM_NBYTES, lay_out
from polyrhythm.core.sync.abandoning import abandons, parse_patience
from polyrhythm.core.sync.choose import is_timed, trains_through
from polyrhythm.core.worker import State, WorkerMachine
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.link import Way
from polyrhythm.sim.objective import Objective
from polyrhythm.sim.pace import Pace
from polyrhythm.sim.points import Points
from polyrhythm.sim.process import Process
from polyrhythm.sim.stretch import Stretch
from polyrhythm.wire import messages as m

_ME = "worker"
_LEADS = 0
"""The server that runs the lead."""
_PUSH_BUFFERS = 2
_TOLD = "it was told to leave"
_RATES = (0.1,)
_MICRO_NS = 4_000_000
"""A micro-batch takes about so long."""
_FORWARD = 1 / 3
"""Of what a point costs when it is trained on: looking at its loss."""


class WorkerProcess(Process):
    def __init__(
        self,
        name: str,
        job: str,
        model: m.ModelSpec,
        points: int | None,
        batch: int,
        pace: Pace,
        objective: Objective | None,
        clock: Clock,
        dial: Callable[["WorkerProcess", int, m.Address | None], Way | None],
        *,
        check: bool,
    ) -> None:
        """`dial` gives the way to a server, if that one listens there."""
        self.machine = WorkerMachine(name)
        super().__init__(clock, {_ME: self.machine}, check=check)
        self.name = name
        self.pace = pace
        self.failure: str | None = None
        self.contributions = 0
        self._job_id = job
        self._model = model
        self._nbytes: list[int] = []
        self._points = points
        self._batch = batch
        self._objective = objective
        self._dial = dial
        self._ways: dict[int, Way] = {}
        self._incarnations: dict[int, int] = {}
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
        self._local_steps = 1
        self._through = False
        self._timed = False
        self._patience_ns: int | None = None
        self._abandoned_ns = 0
        self._terms = fx.Resume(-1, stop=False)
        self._hurried = False
        self._on_its_way = False
        """Training through: the last contribution has not come back as a version yet."""
        self._came = False
        """That version has landed."""
        self._awaiting_ns: int | None = None
        """Since when it has nothing to do until then."""
        self._looking = False
        # what it computes
        self._computing = False
        self._stretch = Stretch(0, 1, 1)
        self._size = batch
        """Points of a step."""
        self._returns_after = 0
        """The step of the stretch after which the user's code looks up."""
        self._call = 0
        self._frozen_ns = 0
        # what it visits
        self._cursor = Points()
        self._lease: m.Leased | None = None
        self._lease_number = 0
        self._steps = 0
        """Since the last contribution; so are the points and the progress."""
        self._visited = 0
        self._progress: dict[int, m.Progress] = {}
        self._ever = 0
        self._seen: float | None = None
        self._probed: tuple[float | None, int, int] = (None, 0, 0)
        # where the time goes
        self._busy_ns = 0
        """Until then it does not compute."""
        self._resumed_ns = 0
        self._left_ns = 0
        self._landed_ns = 0
        self._came_ns = 0
        self._waited_ns = 0
        self._transferred_ns = 0

    def knock(self) -> None:
        self._link(_LEADS)

    def _link(self, server: int, at: m.Address | None = None, before: int = 0) -> None:
        way = self._dial(self, server, at)
        if way is None:
            self.put(_ME, ev.LinkClosed(fx.server_name(server), "nobody answers"))
            return
        self._ways[server] = way
        way.send(
            m.WorkerBonjour(
                worker=self.machine.worker,
                incarnation=self.machine.incarnation or before,
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
        self._put_off(lambda: self._lose_link(way, reason))

    def _lose_link(self, way: Way, reason: str) -> None:
        server = fx.server_number(way.peer)
        if server is not None and self._ways.get(server) is not way.back:
            return  # another link to it, or to who is in its place, is up
        self.put(_ME, ev.LinkClosed(way.peer, reason))

    def _put_off(self, take: Callable[[], None]) -> None:
        """Until the worker reads its links."""
        self._backlog.append(take)
        if not self._computing:
            self.unsettled = True
            self.run()
        elif self._looks:
            self._look_up()

    def _take(self, way: Way, message: m.Message) -> None:
        if isinstance(message, m.Parameters):
            self._take_slice(way, message)
        elif isinstance(message, m.Greeting):
            incarnation = self._incarnations.get(message.server, 0)
            self.put(_ME, ev.Linked(message.server, incarnation))
        else:
            self._queue.append((_ME, message))

    def _take_slice(self, way: Way, message: m.Parameters) -> None:
        if self._expected is None or message.round < self._expected:
            skipped = ev.Skipped(
                message.server, message.sequence, message.routing, message.incarnation
            )
            self.put(_ME, skipped)
            return
        now_ns = self.clock.now_ns
        first_byte_ns = now_ns - int(self._nbytes[message.slice] * way.ns_per_byte)
        self._came_ns += now_ns - max(first_byte_ns, self._landed_ns, self._left_ns)
        self._landed_ns = now_ns
        landed = ev.Landed(
            message.server,
            message.slice,
            message.round,
            message.sequence,
            message.routing,
            incarnation=message.incarnation,
        )
        self._queue.append((_ME, landed))

    def settle(self) -> None:
        if self._ready:
            self._ready = False
            self._next()
        elif self._backlog and not self._computing:
            self._backlog.popleft()()
        elif self._looking:
            self._looking = False
            self._after_steps()
        self.unsettled = self.alive and (
            self._ready or self._looking or (bool(self._backlog) and not self._computing)
        )

    # -- the user's loop -----------------------------------------------------------------------

    def _attach(self) -> None:
        self._next = self._enrol if self._points is not None else self._go_on
        self.put(_ME, ev.Attaching(self._model))

    def _enrol(self) -> None:
        assert self._points is not None
        self._next = self._go_on
        self._enrolling = True
        self.put(_ME, ev.Enrolling(self._points, self._batch))

    def _go_on(self) -> None:
        """The parameters of a version are here, and so is a lease if there are points."""
        self._enrolling = False
        self._book()
        self._began = True
        self._resumed_ns = self.clock.now_ns
        if self.contributions:
            self._handle_version()
        if self._objective is not None:
            self._seen = self._objective.value
            self._probe(self._objective.value)
        self._begin_steps()

    def _book(self) -> None:
        """Between sending and going on, what was not the parameters' coming was waiting."""
        if self.contributions:
            early_ns = max(
                0, self._left_ns - self.clock.now_ns
            )  # it did not wait until all had left
            self._left_ns -= early_ns
            self._transferred_ns -= early_ns
            self._waited_ns = self.clock.now_ns - self._left_ns - self._came_ns
            self._transferred_ns += self._came_ns

    def _handle_version(self) -> None:
        """The worker itself is busy with an exchange, and computes after that."""
        self._transferred_ns += self.pace.handling_ns
        self._resumed_ns += self.pace.handling_ns
        self._busy_ns = self.clock.now_ns + self.pace.handling_ns

    def _probe(self, objective: float) -> None:
        """Evaluate this worker's share of the probe sample if that is asked for."""
        part, parts = self._terms.probe
        if parts:
            job = self.machine.job
            assert job is not None
            share = len(range(part, job.probe_points, parts))
            took_ns = round(share * self.pace.point_ns(self._batch) * _FORWARD)
            self._probed = (objective if share else None, share, took_ns)
            self._resumed_ns += took_ns

    def _begin_steps(self) -> None:
        """The top of the user's loop: take points and compute, if there are any."""
        if self._stopped or (self._asked and not self._steps):
            self.put(_ME, ev.Leaving(_TOLD if self._asked else ""))
            return
        if self._asked:
            self._contribute()
            return
        self._take_lease()
        if self._plan_stretch():
            self._compute()
        elif self._on_its_way:
            self._awaiting_ns = self.clock.now_ns
        elif self._steps:
            self._contribute()
        else:
            self._begin_exchange()
            self.put(_ME, ev.Exhausted("it has visited all of its points", self._lease_number))

    def _take_lease(self) -> None:
        if self._lease is None:
            return
        if self._cursor.take(self._lease):
            self._visited, self._progress = 0, {}  # it was evicted: nobody will count that
        if not self._visited:
            self._lease_number = self._lease.number

    def _plan_stretch(self) -> int:
        """How many points are computed on until something may have to be decided; 0: there are
        none. All that is known now goes into the stretch."""
        now_ns = self.clock.now_ns
        begins_ns = max(now_ns, self._resumed_ns, self._busy_ns)
        rest_ns = self._terms.interval_ns - (begins_ns - self._resumed_ns)
        if self._timed:
            point_ns = self.pace.point_ns(self._batch)
            self._size = max(1, min(self._batch, round(_MICRO_NS / point_ns)))
            steps = max(1, ceil(rest_ns / (self._size * point_ns)))
            if self._lease is not None:
                rest = self._cursor.everything - self._visited
                steps = min(steps, max(1, -(-rest // self._size)))
        elif self._through:
            steps = max(1, self._terms.steps - (0 if self._on_its_way else self._steps))
        else:
            steps = self._local_steps - self._steps
        points = steps * self._size
        if self._lease is not None:
            points = self._cursor.left(points)
            steps = -(-points // self._size)
        if points:
            batches = points / self._batch if self._timed else float(steps)
            took_ns = self.pace.stretch_ns(batches, points, self._ever, begins_ns)
            self._stretch = Stretch(begins_ns, steps, took_ns)
            self._returns_after = steps
            if self._timed:  # as long as the machine is now, not as it usually is
                self._returns_after = self._stretch.current(begins_ns + max(1, rest_ns))
        return points

    def _compute(self) -> None:
        self._computing = True
        self._schedule()
        if self._looks and self._backlog:
            self._look_up()

    def _schedule(self) -> None:
        self._call += 1
        self.clock.at(self._stretch.end_ns(self._returns_after), self._computed, self._call)

    @property
    def _looks(self) -> bool:
        """It looks at its links between steps."""
        return self._timed or self._on_its_way

    def _look_up(self) -> None:
        """Something has come, and will be looked at after the step that is being computed."""
        step = self._stretch.current(self.clock.now_ns)
        if not self.frozen and step < self._returns_after:
            self._returns_after = step
            self._schedule()

    def _computed(self, call: int) -> None:
        if call != self._call or not self.alive:
            return  # the process was stopped meanwhile and takes longer, or looks up earlier
        self._computing = False
        steps = self._returns_after
        if self._patience_ns is not None and self._abandons(steps - 1):
            steps -= 1
            self._abandoned_ns += self._stretch.took_ns // self._stretch.steps
        points = steps * self._size
        if self._lease is not None:
            points, progress = self._cursor.next(points)
            for step in progress:
                self._progress[step.chunk] = step
        self._steps += steps
        self._visited += points
        self._ever += points
        self.unsettled = bool(self._backlog)
        if self._timed or self._on_its_way:
            self._looking = self.unsettled = True  # after what has come
        else:
            self._after_steps()
        self.run()

    def _abandons(self, before: int) -> bool:
        """Whether nobody waits for the last step of the stretch; so many came before it."""
        late_ns = self.clock.now_ns - self._resumed_ns - self._terms.interval_ns
        return abandons(late_ns, self._patience_ns, self._steps + before)

    def _after_steps(self) -> None:
        if self._on_its_way and self._came:
            self._rebase()
        if not self._stopped and self._due():
            self._contribute()
        else:
            self._begin_steps()

    def _version_came(self) -> None:
        assert self._awaiting_ns is not None
        waited_ns = self.clock.now_ns - self._awaiting_ns
        self._awaiting_ns = None
        self._waited_ns += waited_ns
        self._resumed_ns += waited_ns
        self._rebase()
        self._begin_steps()

    def _rebase(self) -> None:
        self._on_its_way = self._came = False
        self._handle_version()
        if self._objective is not None:
            self._seen = self._objective.value

    def _due(self) -> bool:
        if self._asked:
            return True
        if self._timed:
            over = self.clock.now_ns - self._resumed_ns >= self._terms.interval_ns
            return over or self._hurried or self._passed_all()
        if self._through:
            return not self._on_its_way and self._steps >= self._terms.steps
        return self._steps >= self._local_steps

    def _passed_all(self) -> bool:
        """Every point of the lease was visited since the parameters came: ask for the barrier."""
        if self._lease is None or self._visited < self._cursor.everything:
            return False
        self.put(_ME, ev.PassedAll())
        return True

    def _contribute(self) -> None:
        event = ev.Computed(
            self.contributions % _PUSH_BUFFERS,
            float(self._visited or 1),
            _RATES,
            self._seen,
            self.clock.now_ns - self._resumed_ns,
            self._waited_ns,
            self._transferred_ns,
            tuple(self._progress.values()),
            self._lease_number,
            max(1, self._steps),
            *self._probed,
            self._abandoned_ns,
        )
        self.contributions += 1
        self._steps = self._visited = 0
        self._progress = {}
        self._probed = (None, 0, 0)
        self._abandoned_ns = 0
        self._begin_exchange()
        if self._asked:
            self._on_its_way = self._came = False  # whatever comes next, it leaves with it
        self.put(_ME, event)
        if self._through and not self._asked:
            self._on_its_way = True
            self._resumed_ns = self.clock.now_ns
            self._begin_steps()

    def _begin_exchange(self) -> None:
        self._left_ns = self.clock.now_ns
        self._waited_ns = self._transferred_ns = self._came_ns = 0

    # -- what befalls it -----------------------------------------------------------------------

    def freeze(self) -> None:
        if self.alive and not self.frozen:
            self.frozen = True
            self._call += 1
            self._frozen_ns = self.clock.now_ns

    def thaw(self) -> None:
        if self.alive and self.frozen:
            self.frozen = False
            if self._computing:
                self._stretch.begins_ns += self.clock.now_ns - self._frozen_ns
                self._schedule()
                if self._looks:
                    self._look_up()
            if self._asked:
                self._part()
            self.run()
            self.rearm()

    def leave(self) -> None:
        """As on SIGTERM: it contributes what it has and says good-bye; not while it is stopped."""
        self._asked = True
        if not self.frozen:
            self._part()

    def _part(self) -> None:
        self.post(_ME, ev.LeaveAsked() if self._began else ev.Leaving(_TOLD))

    def cut(self, server: int) -> None:
        """The link to this server breaks."""
        way = self._ways.get(server)
        if way is not None and self.alive:
            way.cut("the link was cut")

    def crash(self) -> None:
        if self.alive:
            self.alive = False
            for way in self._ways.values():
                way.break_off(f"the link to {self.name} broke")

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
        for spec in effect.servers:
            if spec.server == _LEADS:
                self.put(_ME, ev.Linked(_LEADS, spec.incarnation))
            else:
                self._incarnations[spec.server] = spec.incarnation
                self._link(spec.server, spec.address)
        self._local_steps = job.local_steps
        self._through, self._timed = trains_through(job.sync), is_timed(job.sync)
        self._patience_ns = parse_patience(job.abandon)
        if not self._attached:
            self._attached = True
            self._ready = self.unsettled = True

    def _rejoin(self, effect: fx.Rejoin) -> None:
        for way in self._ways.values():
            way.hang_up(effect.reason)
        self._ways.clear()
        self._backlog.clear()
        self._link(_LEADS, before=effect.incarnation)

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
            if (way := self._ways.get(effect.server)) is not None:
                way.send(seed, self._nbytes[number])

    def _push_slices(self, effect: fx.PushSlices) -> None:
        way = self._ways.get(effect.server)
        if way is None:
            return  # its link is over, and what becomes of it is the lead's to say
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
        if left_ns > self._left_ns and not self._through:
            self._left_ns = left_ns
            self._transferred_ns = left_ns - began_ns

    def _expect(self, effect: fx.Expect) -> None:
        self._expected = effect.round

    def _resume(self, effect: fx.Resume) -> None:
        self._terms = effect
        self._hurried = False
        self._stopped = self._stopped or effect.stop
        if self._on_its_way:
            self._came = True
            if self._computing:
                self._look_up()
            elif self._awaiting_ns is not None:
                self._version_came()
        elif not self._enrolling or self._lease is not None:
            self._ready = self.unsettled = True

    def _let_go(self, effect: fx.LetGo) -> None:
        if not self._computing:
            self._ready = self.unsettled = True
            self._next = self._begin_steps

    def _hurry(self, effect: fx.Hurry) -> None:
        self._hurried = True

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
        fx.LetGo: _let_go,
        fx.Hurry: _hurry,
        fx.TakeChunks: _take_chunks,
        fx.Fail: _fail,
        fx.End: _end,
    }
