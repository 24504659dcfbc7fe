"""What a worker knows: its phase, the state of its current incarnation, and the state that it keeps
when it rejoins."""

from collections.abc import Mapping

from polyrhythm.core.events import Leaving
from polyrhythm.core.liveness import Heartbeat
from polyrhythm.core.machine import Reason
from polyrhythm.core.placement.division import given_division
from polyrhythm.core.worker.joining import Joining
from polyrhythm.core.worker.lifecycle import TABLE, Phase
from polyrhythm.core.worker.modes import Mode, choose_mode
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.pushes import Pushes
from polyrhythm.wire import messages as m


class WorkerState:
    __slots__ = (
        "asked",
        "batch",
        "begun",
        "data",
        "division",
        "evaluates",
        "groups",
        "handled",
        "heartbeat",
        "job",
        "job_over",
        "joining",
        "keeps",
        "leased",
        "leaves",
        "leaves_by_ns",
        "leaving",
        "listens",
        "mode",
        "name",
        "outbox",
        "over_because",
        "phase",
        "points",
        "pushes",
        "rejoins_because",
        "restores",
        "share_order",
        "shares",
        "sharing",
        "since_ns",
        "sized",
        "spec",
        "unreached",
        "user_computes",
    )
    phase: Phase
    handled: Mapping[type, object]
    """The events that are handled in this phase."""
    since_ns: int
    joining: Joining
    mode: Mode
    pushes: Pushes
    leased: bool
    share_order: m.Share | None
    """The lead's order to share the state of a version; kept until the state is sent."""
    sharing: bool
    """Whether the state was sent, and some server may not have received it yet."""
    heartbeat: Heartbeat

    def __init__(self, name: str) -> None:
        self.name = name
        self.outbox = WorkerOutbox()
        self.job: m.JobSpec | None = None
        self.spec: m.ModelSpec | None = None
        self.division: m.Division | None = None
        """The division of the model; None if it is not known yet."""
        self.sized: int | None = None
        """The size of the model, if the lead was asked for its division."""
        self.points: int | None = None
        """The size of the data set from which the user's loop takes batches; None if there is
        none."""
        self.batch = 0
        self.listens: m.Address | None = None
        self.groups: tuple[int, ...] = ()
        self.shares = False
        self.data = ""
        self.keeps = False
        """Whether the user's code has a state to keep (`worker.keep`)."""
        self.restores = False
        """Whether the user's code waits for the state in the checkpoint."""
        self.user_computes = False
        """Whether the user's code uses the parameters. Meanwhile they must not change."""
        self.begun = False
        """Whether the user's code has received its first parameters, so its training loop has
        begun."""
        self.over_because: Reason | None = None
        """Why this incarnation ends once the user's code stops computing; None if it does not
        end."""
        self.rejoins_because: Reason | None = None
        """Why the last incarnation ended."""
        self.unreached: set[tuple[int, int]] = set()
        """Servers, with their incarnations, that this worker could not reach before it last
        rejoined."""
        self.evaluates = False
        """Whether this incarnation evaluates the model for all workers."""
        self.asked = False
        """Whether the worker was told to leave."""
        self.leaves = False
        """Whether the worker leaves without waiting for another version."""
        self.job_over = False
        """Whether the job ended while this worker was not a member."""
        self.leaving: Leaving | None = None
        self.leaves_by_ns: int | None = None
        """The time at which a leaving worker leaves even if some contributions are not
        acknowledged; None if it is not leaving, or has left."""
        self.begin(0)

    def begin(self, now_ns: int, ticket: int = 0) -> None:
        """Begin an incarnation, which the lead has not admitted yet. `ticket`: the last ticket of
        the incarnation before it."""
        self.outbox.forget_identity()
        self.enter(Phase.JOINING, now_ns)
        self.joining = Joining(self.outbox)
        self.mode = choose_mode(self.job, self.outbox, ticket)
        if self.spec is not None:
            self.mode.attach(self.spec)
        self.pushes = Pushes(self.outbox)
        self.leased = False
        self.evaluates = False
        self.share_order: m.Share | None = None
        self.sharing = False
        self.heartbeat = Heartbeat()
        self.leave_if_asked()

    def admit(self, job: m.JobSpec) -> None:
        """Set up the parts of the worker that depend on the job's options."""
        if self.job is None:
            must_pull = self.mode.must_pull
            self.job = job
            self.mode = choose_mode(job, self.outbox, self.mode.ticket)
            self.mode.must_pull = must_pull
            if self.spec is not None:
                self.mode.attach(self.spec)
        self.job = job
        self.division = self.division or given_division(job)
        self.pushes.weights = job.weights
        self.leave_if_asked()

    def announce_state(self) -> None:
        """Tell the lead that this worker has a state to keep. Every incarnation must do so."""
        if self.keeps and self.outbox.incarnation:
            keeping = m.Keeping(**self.outbox.identity(), restore=self.restores)
            self.outbox.tell_lead(keeping)

    def enter(self, phase: Phase, now_ns: int) -> None:
        self.phase = phase
        self.handled = TABLE[phase]
        self.since_ns = now_ns

    def leave_if_asked(self) -> None:
        """Let a worker that was told to leave do so without waiting for a version. It waits in two
        cases: the job is ending, or the worker reads the parameters directly in the servers'
        memory, where they would change."""
        in_place = self.job is not None and self.job.in_place
        self.leaves = self.asked and not self.mode.stop and not in_place

    @property
    def settled(self) -> bool:
        """Whether a worker whose code has ended may leave: no server needs it any more."""
        over = self.mode.stop or self.over_because is not None
        return not self.sharing and (over or not len(self.pushes.outstanding))

    @property
    def loop_over(self) -> bool:
        """Whether the user's code was told that its training loop is over."""
        return self.mode.ended or self.phase in (Phase.PARTING, Phase.LEAVING)

    def survives(self, server: int) -> bool:
        """Whether the job may continue without this server: its slices have copies, or it is the
        primary of none."""
        if self.job is None or self.job.replicas > 0:
            return self.job is not None
        routes = self.mode.landing.routes
        return bool(routes) and not any(r.primary == server and not r.replicas for r in routes)
