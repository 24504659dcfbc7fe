"""The state of a simulated training loop. `loop.py` has its actions."""

from collections.abc import Callable, Sized

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Event
from polyrhythm.core.sync.barrier.bsp import BSP
from polyrhythm.core.sync.policy import Traits
from polyrhythm.core.worker.cadence import ByCount, Cadence
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.core.worker.pushes import BufferTurns
from polyrhythm.sim.model.computing import Computing
from polyrhythm.sim.model.objective import Objective
from polyrhythm.sim.model.pace import SimulatedPace
from polyrhythm.sim.model.statistics import Difference
from polyrhythm.sim.model.timesheet import SimTimesheet
from polyrhythm.sim.process import Process
from polyrhythm.sim.worker.visits import SimVisits
from polyrhythm.wire import messages as m

NOT_PROBED = (None, 0, 0)


class LoopState:
    __slots__ = (  # without slots, access to more than 30 attributes would be slower
        "_abandoned_ns",
        "_ahead",
        "_awaiting_ns",
        "_batch",
        "_came",
        "_clock",
        "_data",
        "_enrolling",
        "_hurried",
        "_job",
        "_least",
        "_looks",
        "_machine",
        "_model",
        "_next",
        "_objective",
        "_on_its_way",
        "_points",
        "_probed",
        "_process",
        "_put",
        "_received",
        "_seen",
        "_shares",
        "_size",
        "_stopped",
        "_terms",
        "_turns",
        "_unread",
        "_visits",
        "asked",
        "began",
        "cadence",
        "computing",
        "contributions",
        "differences",
        "end_iteration",
        "looking",
        "pace",
        "push_nbytes",
        "ready",
        "take_sends",
        "time",
        "traits",
    )

    def __init__(
        self,
        attach: Callable[[], None],
        computed: Callable[[int, int], None],
        process: Process,
        machine: WorkerMachine,
        put: Callable[[Event], None],
        unread: Sized,
        model: m.ModelSpec,
        points: int | None,
        batch: int,
        pace: SimulatedPace,
        objective: Objective | None,
        *,
        shares: bool = False,
        data: str = "",
    ) -> None:
        """`attach` begins the user's code. `computed` is called with the number of steps taken and
        the time of one step. The loop runs in `process` and hands events to its machine with `put`.
        `unread`: messages that have arrived but were not read yet."""
        self.pace = pace
        self.contributions = 0
        self.push_nbytes = -1
        """The size of a contribution, if slices of it are quantised; otherwise -1."""
        self.differences: dict[int, Difference] = {}
        """Kind statistics: the difference of statistics that each push buffer holds."""
        self.time = SimTimesheet()
        self.computing = Computing(process, computed)
        self.ready = False
        """Whether the user's code may run."""
        self.looking = False
        """Whether the loop will decide what to do next, as soon as all messages that have arrived
        are read."""
        self.began = False
        self.end_iteration: Callable[[], None] | None = None
        """Called when an iteration of the loop has ended."""
        self.take_sends: Callable[[m.Leased], None] = lambda lease: None
        """Called with a lease as soon as the loop visits no more points of earlier leases."""
        self.asked = False
        self.cadence: Cadence = ByCount()
        self._looks = (False, False)
        """Whether the loop reads its links between steps. The first value applies while no
        contribution is in flight, the second while one is in flight."""
        self._received: Sized = ()
        """The points that came from other workers."""
        self.traits: Traits = BSP.traits
        self._process = process
        self._clock = process.clock
        self._machine = machine
        self._put = put
        self._turns = BufferTurns()
        self._unread = unread
        self._model = model
        self._points = points
        self._batch = batch
        self._objective = objective
        self._shares, self._data = shares, data
        self._next = attach
        """The part of the user's code that runs next."""
        self._job: m.JobSpec | None = None
        self._enrolling = False
        self._stopped = False
        self._abandoned_ns = 0
        self._terms = fx.Resume(-1, stop=False)
        self._hurried = False
        self._on_its_way = False
        """Under a policy whose workers train while their contribution is in flight
        (`trains_through`): whether the version that includes the last contribution has not been
        taken over yet."""
        self._came = False
        """Whether the version that `_on_its_way` refers to has arrived."""
        self._awaiting_ns: int | None = None
        """When the loop began to wait for that version because it has nothing to compute. None: it
        does not wait."""
        self._visits = SimVisits()
        self._least = 1
        self._size = batch
        """The number of points of a step."""
        self._ahead = (0, 0)
        """The number of steps that are being computed, and the number of their points."""
        self._seen: float | None = None
        self._probed: tuple[float | None, int, int] = NOT_PROBED
