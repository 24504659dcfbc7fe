"""What a worker knows: the phase it is in, what belongs to its incarnation, and what outlives one."""

from collections.abc import Mapping

from polyrhythm.core.events import Leaving
from polyrhythm.core.heartbeat import Heartbeat
from polyrhythm.core.machine import Reason
from polyrhythm.core.worker.joining import Joining
from polyrhythm.core.worker.lifecycle import TABLE, Phase
from polyrhythm.core.worker.modes import Mode, choose_mode
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.pushes import Pushes
from polyrhythm.wire import messages as m


class WorkerState:
    phase: Phase
    handled: Mapping[type, object]
    """The events that are handled in this phase."""
    since_ns: int
    joining: Joining
    mode: Mode
    pushes: Pushes
    leased: bool
    heartbeat: Heartbeat

    def __init__(self, name: str) -> None:
        self.name = name
        self.outbox = WorkerOutbox()
        self.job: m.JobSpec | None = None
        self.spec: m.ModelSpec | None = None
        self.points: int | None = None
        """The size of the data set that the user's loop takes batches from."""
        self.batch = 0
        self.user_computes = False
        """The user's code uses the parameters: they must not change."""
        self.begun = False
        """The user's code has had parameters: it is in its loop."""
        self.over_because: Reason | None = None
        """Why this incarnation is over, while the user's code still computes."""
        self.rejoins_because: Reason | None = None
        """Why the last incarnation was over."""
        self.unreached: set[tuple[int, int]] = set()
        """Servers, with their incarnations, that made this worker join again and were not reached
        since."""
        self.asked = False
        """The worker was told to leave."""
        self.leaves = False
        """The worker waits for no version any more."""
        self.job_over = False
        """The job ended without this worker."""
        self.leaving: Leaving | None = None
        self.leaves_by_ns = 0
        """When a leaving worker leaves at the latest."""
        self.begin(0)

    def begin(self, now_ns: int, ticket: int = 0) -> None:
        """Begin an incarnation, which the lead has not admitted yet. `ticket`: the last one of the
        incarnation before it."""
        self.outbox.forget_identity()
        self.enter(Phase.JOINING, now_ns)
        self.joining = Joining(self.outbox)
        self.mode = choose_mode(self.job, self.outbox, ticket)
        if self.spec is not None:
            self.mode.attach(self.spec)
        self.pushes = Pushes(self.outbox)
        self.leased = False
        self.heartbeat = Heartbeat()
        self.leave_if_asked()

    def admit(self, job: m.JobSpec) -> None:
        """Follow what the job says."""
        if self.job is None:
            must_pull = self.mode.must_pull
            self.job = job
            self.mode = choose_mode(job, self.outbox, self.mode.ticket)
            self.mode.must_pull = must_pull
            if self.spec is not None:
                self.mode.attach(self.spec)
        self.job = job
        self.leave_if_asked()

    def enter(self, phase: Phase, now_ns: int) -> None:
        self.phase = phase
        self.handled = TABLE[phase]
        self.since_ns = now_ns

    def leave_if_asked(self) -> None:
        """A worker that was told to leave waits for no version, unless the job ends. A worker that
        reads parameters in place does wait, because what it reads changes."""
        in_place = self.job is not None and self.job.in_place
        self.leaves = self.asked and not self.mode.stop and not in_place

    @property
    def survives(self) -> bool:
        """The job can go on without a server."""
        return self.job is not None and self.job.replicas > 0
