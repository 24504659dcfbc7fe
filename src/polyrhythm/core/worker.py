"""The worker: which contribution goes where, what is still unacknowledged, when to go on.

*A worker keeps a contribution until every slice acknowledged it, with at most 2 unacknowledged; it
goes on when all its slices are of one version, the one that the lead released or a later one.* A
contribution says that the version it was computed on is no longer read; a worker that contributes
nothing says so with `Pulled`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.effects import (
    LEAD,
    Arrange,
    Dial,
    End,
    Expect,
    Fail,
    PushSlices,
    Resume,
    SeedSlices,
    Send,
    TakeChunks,
    server_name,
)
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m

WINDOW = 2


class State(Enum):
    JOINING = "joining"
    ADMITTED = "admitted"
    PLACING = "placing"
    WAITING = "waiting"
    COMPUTING = "computing"
    ENDED = "ended"


class WorkerMachine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.worker = -1
        self.incarnation = 0
        self.state = State.JOINING
        self.job: m.JobSpec | None = None
        self._view = 0
        self._routing = 0
        self._term = 0
        self._servers = 0
        self._linked: set[int] = set()
        self._routes: tuple[m.Route, ...] = ()
        self._slices: dict[int, tuple[int, ...]] = {}
        self._versions: list[int] = []
        self._counts: Counter[int] = Counter()
        self._released = -1
        self._resumed = -1
        self._pulling: dict[int, int] = {}
        self._must_pull = False
        self._stop = False
        self._sequence = 0
        self._unacknowledged: dict[int, set[int]] = {}
        self._held: ev.Computed | None = None
        self._wants: m.Attach | None = None
        self._since_ns = 0
        self._out: list[Effect] = []

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        self._out = []
        if self.state is not State.ENDED:
            handler = self._HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, now_ns)
        return self._out

    def wake_at(self) -> int | None:
        return None

    def why(self) -> Waiting:
        match self.state:
            case State.JOINING | State.ADMITTED:
                reason = Reason("joining")
            case State.PLACING:
                reason = Reason("placing")
            case State.WAITING if self._held is not None:
                reason = Reason("window")
            case State.WAITING:
                reason = Reason("waits", {"round": self._version() + 1})
            case State.COMPUTING:
                reason = Reason("computing", {"round": self._version()})
            case State.ENDED:
                reason = Reason("none")
        return Waiting(reason, self._since_ns)

    def check(self) -> None:
        if len(self._unacknowledged) > WINDOW:
            raise InvariantBroken(f"{len(self._unacknowledged)} contributions unacknowledged")
        if self.state is State.COMPUTING and len(set(self._versions)) > 1:
            raise InvariantBroken(f"computing on a mixture of versions {set(self._versions)}")

    @property
    def linked(self) -> bool:
        """Every server of the job is linked."""
        return len(self._linked) == self._servers > 0

    # -- joining -------------------------------------------------------------------------------

    def _on_admitted(self, message: m.Admitted, now_ns: int) -> None:
        self.worker, self.incarnation = message.worker, message.incarnation
        self.job = message.job
        self._term, self._view = message.term, message.view
        self._servers = len(message.servers)
        self._enter(State.ADMITTED, now_ns)
        self._out.append(Dial(message.servers))

    def _on_linked(self, event: ev.Linked, now_ns: int) -> None:
        self._linked.add(event.server)
        self._attach_if_linked()

    def _on_attaching(self, event: ev.Attaching, now_ns: int) -> None:
        self._wants = m.Attach(**self._identity(), spec=event.spec)
        self._attach_if_linked()

    def _attach_if_linked(self) -> None:
        if self._wants is not None and self.linked:
            self._tell_lead(self._wants)
            self._wants = None

    def _on_routing(self, message: m.Routing, now_ns: int) -> None:
        self._term, self._view, self._routing = message.term, message.view, message.routing
        if not self._routes:
            self._routes = message.routes
            slices: dict[int, list[int]] = {}
            for slice_, route in enumerate(message.routes):
                slices.setdefault(route.primary, []).append(slice_)
            self._slices = {server: tuple(ids) for server, ids in sorted(slices.items())}
            self._versions = [-1] * len(message.routes)
            self._counts = Counter({-1: len(message.routes)})
            self._out.append(Arrange(message.routes))
            self._out.append(Expect(0))
            self._enter(State.PLACING, now_ns)
        if message.seed:
            for server, ids in self._slices.items():
                self._out.append(SeedSlices(server, ids, message.routing))

    def _on_enrolling(self, event: ev.Enrolling, now_ns: int) -> None:
        self._tell_lead(m.Enrol(**self._identity(), points=event.points))

    def _on_leased(self, message: m.Leased, now_ns: int) -> None:
        self._out.append(TakeChunks(message))

    # -- contributing --------------------------------------------------------------------------

    def _on_computed(self, event: ev.Computed, now_ns: int) -> None:
        self._enter(State.WAITING, now_ns)
        if self._stop:
            self._expect_next()
            return
        if len(self._unacknowledged) >= WINDOW:
            self._held = event
            return
        self._contribute(event)

    def _contribute(self, event: ev.Computed) -> None:
        self._sequence += 1
        self._unacknowledged[self._sequence] = set(self._slices)
        self._expect_next()
        round_ = self._version() + 1
        for server, slices in self._slices.items():
            self._out.append(
                PushSlices(
                    server,
                    slices,
                    self._sequence,
                    round_,
                    self._view,
                    self._routing,
                    event.buffer,
                    event.weight,
                    event.rates,
                )
            )
        self._tell_lead(
            m.Trailer(
                **self._identity(),
                sequence=self._sequence,
                round=round_,
                weight=event.weight,
                objective=event.objective,
                compute_ns=event.compute_ns,
                wait_ns=event.wait_ns,
                transfer_ns=event.transfer_ns,
                progress=event.progress,
            )
        )

    def _on_exhausted(self, event: ev.Exhausted, now_ns: int) -> None:
        self._enter(State.WAITING, now_ns)
        self._expect_next()
        if self._stop:
            return
        for server in self._slices:
            pulled = m.Pulled(**self._identity(), round=self._version())
            self._out.append(Send(server_name(server), pulled))
        self._tell_lead(
            m.Abstained(**self._identity(), round=self._version() + 1, reason=event.reason)
        )

    def _on_acknowledged(self, message: m.Acknowledged, now_ns: int) -> None:
        self._acknowledge(message.server, message.sequence)

    def _acknowledge(self, server: int, sequence: int) -> None:
        for mine in [mine for mine in self._unacknowledged if mine <= sequence]:
            waiting = self._unacknowledged[mine]
            waiting.discard(server)
            if not waiting:
                del self._unacknowledged[mine]
        if self._held is not None and len(self._unacknowledged) < WINDOW:
            held, self._held = self._held, None
            self._contribute(held)

    # -- going on ------------------------------------------------------------------------------

    def _expect_next(self) -> None:
        self._out.append(Expect(max(self._version(), 0)))
        self._resume_if_whole()

    def _on_release(self, message: m.Release, now_ns: int) -> None:
        self._term, self._view = message.term, message.view
        self._released = max(self._released, message.round)
        self._stop = self._stop or message.stop
        self._must_pull = self._must_pull or not message.pushed
        self._resume_if_whole()

    def _on_landed(self, event: ev.Landed, now_ns: int) -> None:
        every = event.slice == m.EVERY_SLICE
        for slice_ in self._slices[event.server] if every else (event.slice,):
            before = self._versions[slice_]
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
            self._versions[slice_] = event.round
            self._counts[event.round] += 1
        self._acknowledge(event.server, event.sequence)
        self._resume_if_whole()

    def _pull_missing(self) -> None:
        """Ask every server that is behind for its slices; a server that has folded on meanwhile
        answers with a later version, and then the others are asked for that one. A server is asked
        again only when its answer has landed: a second one could land in what the first completed."""
        round_ = max(self._released, *self._counts)
        for server, slices in self._slices.items():
            version = min(self._versions[slice_] for slice_ in slices)
            if version < round_ and self._pulling.get(server, -1) <= version:
                self._pulling[server] = round_
                pull = m.Pull(**self._identity(), round=round_)
                self._out.append(Send(server_name(server), pull))

    def _resume_if_whole(self) -> None:
        if self.state not in (State.WAITING, State.PLACING) or self._held is not None:
            return
        version = self._version()
        go = self._released > self._resumed or self._stop
        if not go or len(self._counts) > 1 or version < self._released:
            if self._must_pull:
                self._pull_missing()
            return
        self._must_pull = False
        self._pulling.clear()
        self._resumed = version
        self.state = State.COMPUTING
        self._out.append(Expect(None))
        self._out.append(Resume(version, self._stop))

    # -- the end -------------------------------------------------------------------------------

    def _on_reporting(self, event: ev.Reporting, now_ns: int) -> None:
        self._tell_lead(m.Report(**self._identity(), metrics=event.metrics))

    def _on_leaving(self, event: ev.Leaving, now_ns: int) -> None:
        self._tell_lead(m.Leave(**self._identity(), reason=event.reason))
        self._enter(State.ENDED, now_ns)
        self._out.append(End(Reason("refused", {"detail": event.reason})))

    def _on_stop(self, message: m.Stop, now_ns: int) -> None:
        self._fail(message.reason, now_ns, stopped=True)

    def _on_refusal(self, message: m.Refusal, now_ns: int) -> None:
        self._fail(message.reason, now_ns)

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        self._fail(f"{self.name} lost its link to {event.peer}: {event.reason}", now_ns)

    def _fail(self, detail: str, now_ns: int, *, stopped: bool = False) -> None:
        self._enter(State.ENDED, now_ns)
        self._out.append(Fail(Reason("refused", {"detail": detail}), stopped))

    # -- small words ---------------------------------------------------------------------------

    def _version(self) -> int:
        return min(self._counts) if self._counts else -1

    def _enter(self, state: State, now_ns: int) -> None:
        self.state = state
        self._since_ns = now_ns

    def _identity(self) -> dict[str, Any]:
        return {
            "term": self._term,
            "view": self._view,
            "routing": self._routing,
            "worker": self.worker,
            "incarnation": self.incarnation,
        }

    def _tell_lead(self, message: m.Message) -> None:
        self._out.append(Send(LEAD, message))

    _HANDLERS: ClassVar[dict[type, Callable[["WorkerMachine", Any, int], None]]] = {
        m.Admitted: _on_admitted,
        ev.Linked: _on_linked,
        ev.Attaching: _on_attaching,
        m.Routing: _on_routing,
        ev.Enrolling: _on_enrolling,
        m.Leased: _on_leased,
        ev.Computed: _on_computed,
        ev.Exhausted: _on_exhausted,
        m.Acknowledged: _on_acknowledged,
        m.Release: _on_release,
        ev.Landed: _on_landed,
        ev.Reporting: _on_reporting,
        ev.Leaving: _on_leaving,
        m.Stop: _on_stop,
        m.Refusal: _on_refusal,
        ev.LinkClosed: _on_link_closed,
    }
