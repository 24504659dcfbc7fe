"""A model of the user's loop: it attaches a model, enrols its data set, takes points, computes for as
long as its steps take, contributes and waits, until the job stops.

Under psp it does not wait: it looks at its links after each step until the version has come. Under
fsp it takes micro-batches, looks after each, and contributes when its interval is over, when it is
hurried, or when it has passed over all of its points.
"""

from collections.abc import Callable, Sized
from math import ceil

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.batches import least_of, steps_of
from polyrhythm.core.machine import Event
from polyrhythm.core.pauses import stopped_ns
from polyrhythm.core.sync.barrier.abandoning import abandons, parse_patience
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.sim.model.computing import Computing
from polyrhythm.sim.model.objective import Objective
from polyrhythm.sim.model.pace import Pace
from polyrhythm.sim.model.stretch import Stretch
from polyrhythm.sim.model.timesheet import SimTimesheet
from polyrhythm.sim.process import Process
from polyrhythm.sim.worker.visits import SimVisits
from polyrhythm.wire import messages as m

TOLD = "it was told to leave"
_PUSH_BUFFERS = 2
_RATES = (0.1,)
_MICRO_NS = 4_000_000
"""A micro-batch takes about so long."""
_FORWARD = 1 / 3
"""Of what a point costs when it is trained on: looking at its loss."""


class Loop:
    def __init__(
        self,
        process: Process,
        put: Callable[[Event], None],
        unread: Sized,
        model: m.ModelSpec,
        points: int | None,
        batch: int,
        pace: Pace,
        objective: Objective | None,
    ) -> None:
        """It runs in `process`, and tells its machine by `put`. `unread`: what has come and was not
        looked at."""
        self.pace = pace
        self.contributions = 0
        self.time = SimTimesheet()
        self.computing = Computing(process, self._computed)
        self.ready = False
        """The user's code is handed back control."""
        self.looking = False
        """It decides what to do after it has looked at all that has come."""
        self.began = False
        self.asked = False
        self.through = False
        self._process = process
        self._clock = process.clock
        self._put = put
        self._unread = unread
        self._model = model
        self._points = points
        self._batch = batch
        self._objective = objective
        self._next: Callable[[], None] = self._attach
        """What the user's code does when it is handed back control."""
        self._job: m.JobSpec | None = None
        self._local_steps = 1
        self._enrolling = False
        self._stopped = False
        self._timed = self._local = False
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
        self._visits = SimVisits()
        self._least = 1
        self._size = batch
        """Points of a step."""
        self._seen: float | None = None
        self._probed: tuple[float | None, int, int] = (None, 0, 0)

    # -- what it is told -----------------------------------------------------------------------

    def admit(self, job: m.JobSpec) -> None:
        """It is in the job, for the first time or again."""
        traits = traits_of(job.sync)
        self.through, self._timed = traits.trains_through, traits.timed
        self._local = job.kind == "local"
        self._patience_ns = parse_patience(job.abandon)
        self._least = least_of(job.min_batch, self._batch)
        self._visits.cut_at(self._least)
        if self._job is None:
            self._get_ready()
        self._job, self._local_steps = job, job.local_steps

    def take_lease(self, lease: m.Leased, *, computing: bool) -> None:
        """`computing`: the machine waits for nothing else."""
        self._visits.lease = lease
        if self._enrolling and computing:
            self._get_ready()

    def resume(self, effect: fx.Resume) -> None:
        self._terms = effect
        self._hurried = False
        self._stopped = self._stopped or effect.stop
        if self._on_its_way:
            self._came = True
            if self.computing.on:
                self.computing.look_up()
            elif self._awaiting_ns is not None:
                self._version_came()
        elif not self._enrolling or self._visits.lease is not None:
            self._get_ready()

    def let_go(self) -> None:
        if not self.computing.on:
            self._get_ready()
            self._next = self._begin_steps

    def hurry(self) -> None:
        self._hurried = True

    def _get_ready(self) -> None:
        self.ready = self._process.unsettled = True

    # -- its way -------------------------------------------------------------------------------

    def go_on(self) -> None:
        self.ready = False
        self._next()

    def _attach(self) -> None:
        self._next = self._enrol if self._points is not None else self._begin_version
        self._put(ev.Attaching(self._model))

    def _enrol(self) -> None:
        assert self._points is not None
        self._next = self._begin_version
        self._enrolling = True
        self._put(ev.Enrolling(self._points, self._batch))

    def _begin_version(self) -> None:
        """The parameters of a version are here, and so is a lease if there are points."""
        now_ns = self._clock.now_ns
        self._enrolling = False
        self.began = True
        if self.contributions:
            self.time.resume(now_ns, self.pace.handling_ns)
        else:
            self.time.resumed_ns = now_ns
        if self._objective is not None:
            self._seen = self._objective.value
            self._probe(self._objective.value)
        self._begin_steps()

    def _probe(self, objective: float) -> None:
        """Evaluate this worker's share of the probe sample if that is asked for."""
        part, parts = self._terms.probe
        if parts:
            assert self._job is not None
            share = len(range(part, self._job.probe_points, parts))
            took_ns = round(share * self.pace.point_ns(self._batch) * _FORWARD)
            self._probed = (objective if share else None, share, took_ns)
            self.time.resumed_ns += took_ns

    def _begin_steps(self) -> None:
        """The top of the user's loop: take points and compute, if there are any."""
        if self._stopped or (self.asked and not self._visits.steps):
            self._put(ev.Leaving(TOLD if self.asked else ""))
            return
        if self.asked:
            self._contribute()
            return
        self._visits.take_lease()
        if self._compute():
            return
        if self._on_its_way:
            self._awaiting_ns = self._clock.now_ns
        elif self._visits.steps:
            self._contribute()
        else:
            self.time.begin_exchange(self._clock.now_ns)
            lease = self._visits.lease_number
            self._put(ev.Exhausted("it has visited all of its points", lease))

    def after_steps(self) -> None:
        self.looking = False
        if self._on_its_way and self._came:
            self._rebase()
        if not self._stopped and self._due():
            self._contribute()
        else:
            self._begin_steps()

    def _version_came(self) -> None:
        assert self._awaiting_ns is not None
        self.time.wait(self._clock.now_ns - self._awaiting_ns)
        self._awaiting_ns = None
        self._rebase()
        self._begin_steps()

    def _rebase(self) -> None:
        self._on_its_way = self._came = False
        self.time.handle(self.pace.handling_ns, self._clock.now_ns)
        if self._objective is not None:
            self._seen = self._objective.value

    def _due(self) -> bool:
        if self.asked:
            return True
        if self._timed:
            left_ns = self._terms.interval_ns - (self._clock.now_ns - self.time.resumed_ns)
            over = 2 * left_ns <= self._size * self.pace.point_ns(self._batch)
            return over or self._hurried or self._passed_all()
        if self.through:
            return not self._on_its_way and self._visits.steps >= self._terms.steps
        return self._visits.steps >= self._local_steps

    def _passed_all(self) -> bool:
        """Every point of the lease was visited since the parameters came: ask for the barrier."""
        rest = self._visits.rest
        if rest is None or rest > 0:
            return False
        self._put(ev.PassedAll())
        return True

    def _contribute(self) -> None:
        now_ns = self._clock.now_ns
        points, steps, progress = self._visits.collect()
        event = ev.Computed(
            self.contributions % _PUSH_BUFFERS,
            float(points or 1),
            _RATES,
            self._seen,
            now_ns - self.time.resumed_ns - self.time.stopped_ns,
            self.time.waited_ns,
            self.time.transferred_ns,
            progress,
            self._visits.lease_number,
            max(1, steps),
            *self._probed,
            self._abandoned_ns,
            *self._micro(),
        )
        self.contributions += 1
        self._probed = (None, 0, 0)
        self._abandoned_ns = 0
        self.time.begin_exchange(now_ns)
        if self.asked:
            self._on_its_way = self._came = False  # whatever comes next, it leaves with it
        self._put(event)
        if self.through and not self.asked:
            self._on_its_way = True
            self.time.resumed_ns = now_ns
            self._begin_steps()

    def _micro(self) -> tuple[int, int]:
        """The user's batch, and what the shortest micro-batch takes: half of it, or 4 ms."""
        if not self._timed:
            return 0, 0
        half_ns = round(self.pace.point_ns(self._batch) * self._batch / 2)
        return self._batch, max(1, min(_MICRO_NS, half_ns))

    # -- what it computes ----------------------------------------------------------------------

    def _compute(self) -> bool:
        """Begin with the points that are computed on until something may have to be decided, if
        there are any. All that is known now goes into the stretch."""
        begins_ns = max(self._clock.now_ns, self.time.resumed_ns, self.time.busy_ns)
        rest_ns = self._terms.interval_ns - (begins_ns - self.time.resumed_ns)
        wanted = self._steps_wanted(rest_ns)
        points = self._visits.left(wanted * self._size)
        if not points:
            return False
        steps = min(wanted, steps_of(points, self._size, self._least))
        batches = points / self._batch if self._timed else float(steps)
        took_ns = self.pace.stretch_ns(batches, points, self._visits.ever, begins_ns)
        stretch = Stretch(begins_ns, steps, took_ns)
        if self._timed:  # as long as the machine is now, not as it usually is
            steps = stretch.current(begins_ns + max(1, rest_ns))
        self.computing.begin(stretch, steps)
        if self._unread and self.looks:
            self.computing.look_up()
        return True

    def _steps_wanted(self, rest_ns: int) -> int:
        """`rest_ns`: what is left of the interval, where there is one."""
        if self._timed:
            point_ns = self.pace.point_ns(self._batch)
            self._size = self._micro_points(rest_ns, point_ns)
            steps = max(1, self._rounded(rest_ns / (self._size * point_ns)))
            rest = self._visits.rest
            return steps if rest is None else min(steps, max(1, -(-rest // self._size)))
        if self.through:
            return max(1, self._terms.steps - (0 if self._on_its_way else self._visits.steps))
        return self._local_steps - self._visits.steps

    @property
    def _rounded(self) -> Callable[[float], int]:
        """Kind local: the interval is divided into whole steps. Otherwise the last step is the one
        in which it ends."""
        return round if self._local else ceil

    def _micro_points(self, rest_ns: int, point_ns: float) -> int:
        """Kind local: the user's batch, or equal parts of what is left of the interval."""
        points = _MICRO_NS / point_ns
        if self._local:
            rest = max(1.0, rest_ns / point_ns)
            points = rest / ceil(rest / self._batch)
        return max(self._least, min(self._batch, round(points)))

    @property
    def looks(self) -> bool:
        """It looks at its links between steps."""
        return self._timed or self._on_its_way

    def _computed(self, steps: int, step_ns: int) -> None:
        process = self._process
        if self._patience_ns is not None and self._abandons(steps - 1):
            steps -= 1
            self._abandoned_ns += step_ns
        self._visits.visit(steps * self._size, steps)
        process.unsettled = bool(self._unread)
        if self.looks:
            self.looking = process.unsettled = True  # after what has come
        else:
            self.after_steps()
        process.run()

    def _abandons(self, before: int) -> bool:
        """Whether nobody waits for the last step of the stretch; so many came before it."""
        late_ns = self._clock.now_ns - self.time.resumed_ns - self._terms.interval_ns
        return abandons(late_ns, self._patience_ns, self._visits.steps + before)

    def thaw(self) -> None:
        """Its process was stopped, and goes on."""
        gap_ns = self.computing.thaw()
        if gap_ns and self._job is not None:
            every_ns = round(self._job.heartbeat_s * 1e9)
            self.time.stopped_ns += stopped_ns(gap_ns, every_ns, 0)
        if self.computing.on and self.looks:
            self.computing.look_up()
