"""A model of the user's training loop: it attaches a model, enrols its data set, takes points,
computes for as long as its steps take, contributes and waits, until the job stops.

As in the real loop, `core/worker/cadence` decides when the worker contributes and how many points a
step has. All steps up to the next decision are one event. A message that arrives during a step can
interrupt a worker at the end of that step, if the worker reads its links between steps.
"""

from collections.abc import Callable, Sized
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.batches import least_of, steps_of
from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.liveness import stopped_ns
from polyrhythm.core.machine import Event
from polyrhythm.core.migration import DELIVERING, migration_of
from polyrhythm.core.sync.barrier.bsp import BSP
from polyrhythm.core.sync.policy import Traits
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.cadence import (
    ByCount,
    Cadence,
    Due,
    Standing,
    choose_cadence,
    decide,
)
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.core.worker.pushes import BufferTurns
from polyrhythm.core.worker.window import Window
from polyrhythm.sim.model.computing import Computing, Stretch
from polyrhythm.sim.model.objective import Objective
from polyrhythm.sim.model.pace import SimulatedPace
from polyrhythm.sim.model.statistics import Difference, SimMemory
from polyrhythm.sim.model.timesheet import SimTimesheet
from polyrhythm.sim.process import Process
from polyrhythm.sim.worker.deliveries import SimDeliveries
from polyrhythm.sim.worker.visits import SimVisits
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE, TOLD_TO_LEAVE

NOT_PROBED = (None, 0, 0)
_RATES = (0.1,)
_ADDRESS = m.Address("", 0, "", "")
"""The address at which a simulated worker receives points. It is empty, because workers are found by
their names."""
_FORWARD = 1 / 3
"""The cost of a forward pass over a point, as a share of the cost of training on it."""


class UserCode(msgspec.Struct, frozen=True):
    """The model that the user's code of a simulated worker attaches, and the data set that it
    enrols."""

    model: m.ModelSpec
    points: int | None
    """None: the user's code enrols no data set."""
    batch: int
    shares: bool = False
    """Whether the worker sends its private points to others."""
    data: str = ""
    """The fingerprint of the data set."""


class _Ahead(msgspec.Struct, frozen=True, gc=False):
    """The steps that are being computed, and the number of their points. `size`: the points of a
    step."""

    steps: int
    points: int
    size: int


@dataclass(slots=True)
class _InFlight:
    """Under a policy whose workers train while their contribution is in flight (`trains_through`):
    the version that contains the last contribution."""

    came: bool = False
    """Whether the version has arrived. The worker begins to use it at the end of a step."""
    awaited_ns: int | None = None
    """When the loop ran out of work and began to wait for the version. None: it does not wait."""


@dataclass(slots=True)
class _Orders:
    """The orders to the loop."""

    terms: fx.Resume
    """When the next contribution is due."""
    hurried: bool = False
    """Whether to contribute at once."""
    stopped: bool = False
    """Whether the job ends."""
    asked: bool = False
    """Whether the worker was told to leave."""


class _Evaluation:
    """The objective as the user's code evaluates it, for the next contribution."""

    def __init__(self, objective: Objective | None) -> None:
        self._objective = objective
        self.seen: float | None = None
        """The objective of the present version."""
        self.probed: tuple[float | None, int, int] = NOT_PROBED
        """The objective on this worker's share of the probe sample, the number of these points, and
        the time that they took."""

    def begin_version(self) -> None:
        if self._objective is not None:
            self.seen = self._objective.value

    def probe(self, points: int, took_ns: int) -> None:
        """Evaluate this many points of the probe sample."""
        self.probed = (self.seen if points else None, points, took_ns)

    def take_probed(self) -> tuple[float | None, int, int]:
        probed, self.probed = self.probed, NOT_PROBED
        return probed


class Sending:
    """The contributions of a worker, and the state from which the next one is made."""

    def __init__(self) -> None:
        self.contributions = 0
        self.nbytes = -1
        """The size of a contribution, if slices of it are quantised; otherwise -1."""
        self.differences: dict[int, Difference] = {}
        """Kind statistics: the difference of statistics that each push buffer holds."""
        self._turns = BufferTurns()

    def begin(self, unacknowledged: int) -> int:
        """Begin a contribution; this many contributions are not acknowledged. Returns the number of
        its push buffer."""
        if self.contributions:
            self._turns.turn(unacknowledged)
        self.contributions += 1
        return self._turns.lend()


class Loop:
    def __init__(
        self,
        process: Process,
        machine: WorkerMachine,
        put: Callable[[Event], None],
        unread: Sized,
        user: UserCode,
        pace: SimulatedPace,
        objective: Objective | None,
        deliveries: SimDeliveries,
    ) -> None:
        """The loop runs in `process` and hands events to its machine with `put`. `unread`: messages
        that have arrived but were not read yet. Points, and the memory of these points, are sent
        and received over `deliveries`."""
        self._process = process
        self._clock = process.clock
        self._machine = machine
        self._put = put
        self._unread = unread
        self._user = user
        self.pace = pace
        self._job: m.JobSpec | None = None
        self.cadence: Cadence = ByCount()
        self.traits: Traits = BSP.traits
        self._looks = (False, False)
        """Whether the loop reads its links between steps. The first value applies while no
        contribution is in flight, the second while one is in flight."""
        self._least = 1
        # the next action of the loop
        self._next = self._attach
        """The part of the user's code that runs next."""
        self.ready = False
        """Whether the user's code may run."""
        self.looking = False
        """Whether the loop will decide its next action once all arrived messages are read."""
        self.began = False
        self._enrolling = False
        self._orders = _Orders(fx.Resume(-1, stop=False))
        self._in_flight: _InFlight | None = None
        # what it computes
        self.computing = Computing(process, self._computed)
        self._ahead = _Ahead(0, 0, user.batch)
        self.time = SimTimesheet()
        self._window = Window()
        self._visits = SimVisits(self._window, deliveries.take_memory)
        self._evaluation = _Evaluation(objective)
        # what it sends
        self.sending = Sending()
        self._deliveries = deliveries
        deliveries.memory_of = self._visits.memory_of
        self.end_iteration: Callable[[], None] | None = None
        """Called when an iteration of the loop has ended."""

    # -- calls from the process ----------------------------------------------------------------

    def admit(self, job: m.JobSpec) -> None:
        """Begin with the options of this job, to which the lead has admitted the worker, for the
        first time or again."""
        if self._job is None:
            self.cadence, self.traits = choose_cadence(job), traits_of(job.sync)
            looks = self.cadence.looks
            self._looks = looks(in_flight=False), looks(in_flight=True)
            self._least = least_of(job.min_batch, self._user.batch)
            self.cadence.begin(self._user.batch, self._least)
            self._visits.cut_at(self._least)
            if keeps_rows(job.kind):
                self._visits.memory = SimMemory()
            self._get_ready()
        self._job = job

    def take_lease(self, lease: m.Leased, *, computing: bool) -> None:
        """Apply a new lease. `computing`: whether the machine has all parameters, so the loop
        waited only for this lease."""
        self._visits.lease = lease
        if self._enrolling and computing:
            self._get_ready()

    def resume(self, effect: fx.Resume) -> None:
        orders = self._orders
        orders.terms, orders.hurried = effect, False
        orders.stopped = orders.stopped or effect.stop
        if self._in_flight is not None:
            self._in_flight.came = True
            if self.computing.on:
                self.computing.look_up()
            elif self._in_flight.awaited_ns is not None:
                self.time.wait(self._clock.now_ns - self._in_flight.awaited_ns)
                self._rebase()
                self._begin_steps()
        elif not self._enrolling or self._visits.lease is not None:
            self._get_ready()

    def take_progress(self, effect: fx.TakeProgress) -> None:
        """Does nothing: no user's code reads the progress."""

    def let_go(self, effect: fx.StopWaiting) -> None:
        self._orders.stopped = self._orders.stopped or effect.stop
        if not self.computing.on:
            self._get_ready()
            self._next = self._begin_steps

    def leave(self) -> None:
        """Contribute the steps that the worker has made, and leave."""
        self._orders.asked = True

    def hurry(self, effect: fx.ContributeNow) -> None:
        self._orders.hurried = True

    def _get_ready(self) -> None:
        self.ready = self._process.unsettled = True

    # -- the steps of the loop -----------------------------------------------------------------

    def go_on(self) -> None:
        self.ready = False
        self._next()

    def _attach(self) -> None:
        self._next = self._enrol if self._user.points is not None else self._begin_version
        self._put(ev.Attaching(self._user.model))

    def _enrol(self) -> None:
        user = self._user
        assert user.points is not None
        self._next = self._begin_version
        self._enrolling = True
        assert self._job is not None
        delivers = migration_of(self._job, self.traits) in DELIVERING
        listens = _ADDRESS if delivers else None
        self._put(
            ev.Enrolling(user.points, user.batch, listens, shares=user.shares, data=user.data)
        )

    def _begin_version(self) -> None:
        """Begin to compute with a version whose parameters have arrived. If there is a data set, a
        lease must have arrived too."""
        now_ns = self._clock.now_ns
        self._enrolling = False
        self.began = True
        if self.sending.contributions:
            self.time.resume(now_ns, self.pace.handling_ns)
        else:
            self.time.resumed_ns = now_ns
        self._evaluation.begin_version()
        if self._evaluation.seen is not None:
            self._probe()
        self._begin_steps()

    def _probe(self) -> None:
        """Evaluate this worker's share of the probe sample, if the lead has asked for it."""
        part, parts = self._orders.terms.probe
        if parts:
            assert self._job is not None
            share = len(range(part, self._job.probe_points, parts))
            took_ns = round(share * self.pace.point_ns(self._user.batch) * _FORWARD)
            self._evaluation.probe(share, took_ns)
            self.time.resumed_ns += took_ns

    def _begin_steps(self) -> None:
        """Begin an iteration of the user's loop: visit points and compute, contribute the rest, or
        leave."""
        if self.end_iteration is not None:
            self.end_iteration()
        visits, orders, deliveries = self._visits, self._orders, self._deliveries
        if orders.stopped or (orders.asked and not visits.pending):
            self._put(ev.Leaving(TOLD_TO_LEAVE if orders.asked else DONE))
            return
        if orders.asked:
            self._contribute()
            return
        lease = visits.lease
        if lease is not None and (visits.take_lease(lease) or deliveries.received):
            deliveries.take(lease)
        if self._compute():
            return
        if self._in_flight is not None:
            self._in_flight.awaited_ns = self._clock.now_ns
        elif visits.pending:
            self._contribute()
        else:
            self.time.begin_exchange(self._clock.now_ns)
            number, _ = self._window.abstain()
            self._put(ev.Exhausted(number))

    def after_steps(self) -> None:
        self.looking = False
        if self._in_flight is not None and self._in_flight.came:
            self._rebase()
        if not self._orders.stopped and self._due():
            self._contribute()
        else:
            self._begin_steps()

    def _rebase(self) -> None:
        self._in_flight = None
        self.time.handle(self.pace.handling_ns, self._clock.now_ns)
        self._evaluation.begin_version()

    def _standing(self, now_ns: int) -> Standing:
        left_ns = self._orders.terms.interval_ns - (now_ns - self.time.resumed_ns)
        return self._window.standing(in_flight=self._in_flight is not None, left_ns=left_ns)

    def _due(self) -> bool:
        standing, orders = self._standing(self._clock.now_ns), self._orders
        called = orders.hurried or self._machine.stopping
        due = decide(self.cadence, standing, orders.terms, orders.asked, called)
        if due is Due.PASSED_ALL:
            self._put(ev.PassedAll())
        return due is not Due.NO

    def _contribute(self) -> None:
        now_ns, traits, time = self._clock.now_ns, self.traits, self.time
        sending, asked = self.sending, self._orders.asked
        buffer = sending.begin(self._machine.unacknowledged)
        memory, progress = self._visits.memory, self._visits.collect()
        if memory is not None:
            sending.differences[buffer] = memory.collect()
        probe, probe_points, probe_ns = self._evaluation.take_probed()
        batch, micro_ns = self.cadence.micro_batch() if traits.gathers else (0, 0)
        report = replace(
            self._window.contribute(varies=traits.gathers),
            objective=self._evaluation.seen,
            compute_ns=now_ns - time.resumed_ns - time.stopped_ns,
            wait_ns=time.waited_ns,
            transfer_ns=time.transferred_ns,
            progress=progress,
            probe=probe,
            probe_points=probe_points,
            probe_ns=probe_ns,
            batch=batch,
            micro_ns=micro_ns,
            nbytes=sending.nbytes,
        )
        time.begin_exchange(now_ns)
        if asked:
            # a worker that was told to leave does not wait for another version
            self._in_flight = None
        self._put(ev.Computed(buffer, _RATES, report))
        if traits.trains_through and not asked:
            self._in_flight = _InFlight()
            time.resumed_ns = now_ns
            self._begin_steps()

    # -- computing -----------------------------------------------------------------------------

    def _compute(self) -> bool:
        """Begin the steps up to the next decision. Returns False if no points are left. The steps
        are planned from what is known now; a message may interrupt them."""
        time, visits, cadence = self.time, self._visits, self.cadence
        begins_ns = self._clock.now_ns
        if begins_ns < time.resumed_ns or begins_ns < time.busy_ns:
            begins_ns = max(time.resumed_ns, time.busy_ns)
        standing = self._standing(begins_ns)
        ahead = cadence.next_steps(standing, self._orders.terms)
        size = ahead.size
        points = visits.left(ahead.points)
        if not points:
            return False
        if points == size:
            steps = 1
        else:
            steps = min(-(-ahead.points // size), steps_of(points, size, self._least))
        batches = points / self._user.batch if self.traits.gathers else float(steps)
        took_ns = self.pace.stretch_ns(batches, points, visits.ever, begins_ns)
        stretch = Stretch(begins_ns, steps, took_ns)
        self._ahead = _Ahead(steps, points, size)
        due_in_ns = cadence.due_in_ns(standing.left_ns)
        if due_in_ns is not None:
            steps = stretch.current(begins_ns + max(1, due_in_ns))
        self.computing.begin(stretch, steps)
        if self._unread and self.looks:
            self.computing.look_up()
        return True

    @property
    def asked(self) -> bool:
        """Whether the worker was told to leave."""
        return self._orders.asked

    @property
    def looks(self) -> bool:
        """Whether the loop reads its links between steps."""
        return self._looks[self._in_flight is not None]

    def _computed(self, steps: int, step_ns: int) -> None:
        process = self._process
        ahead = self._ahead
        if self.traits.gathers:
            if self._abandons(steps - 1):
                steps -= 1
                self._window.add_abandoned(step_ns)
            self.cadence.on_measured(ahead.points / ahead.steps, step_ns, steps)
        planned = ahead.points if steps == ahead.steps else steps * ahead.size
        points = self._visits.visit(planned)
        self._window.end_steps(steps, points / self._user.batch)
        self._window.end_batches()
        process.unsettled = bool(self._unread)
        if self.looks:
            self.looking = process.unsettled = True
        else:
            self.after_steps()
        process.run()

    def _abandons(self, before: int) -> bool:
        """Whether to abandon the last step because it ended too late. `before`: how many steps were
        computed before it since the last decision."""
        late_ns = self._clock.now_ns - self.time.resumed_ns - self._orders.terms.interval_ns
        return self.cadence.abandons(late_ns, self._window.steps + before)

    def thaw(self) -> None:
        """Continue after the process was stopped."""
        gap_ns = self.computing.thaw()
        if gap_ns and self._job is not None:
            every_ns = round(self._job.heartbeat_s * 1e9)
            self.time.stopped_ns += stopped_ns(gap_ns, every_ns, 0)
        if self.computing.on and self.looks:
            self.computing.look_up()
