"""The worker's machine: it takes events and returns effects.

`lifecycle` has the table of its phases and transitions. The handlers are in `entering`, `training`
and `leaving`, which share one `state`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from polyrhythm.core import events as ev
from polyrhythm.core.effects import Beat, Note
from polyrhythm.core.liveness import LeadWatch
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.seat import Seat
from polyrhythm.core.senders import LEAD_TO_WORKER
from polyrhythm.core.worker.entering import Entry
from polyrhythm.core.worker.leaving import Departure
from polyrhythm.core.worker.lifecycle import TABLE, Phase
from polyrhythm.core.worker.state import WorkerState
from polyrhythm.core.worker.training import Training
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m


class WorkerMachine:
    __slots__ = (
        "_before",
        "_departure",
        "_event",
        "_lead",
        "_parts",
        "_state",
        "_training",
        "name",
        "outbox",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self._state = state = WorkerState(name)
        self.outbox = state.outbox
        """The effects of an event, and the number and the incarnation of this worker."""
        self._lead = LeadWatch()
        self._departure = departure = Departure(state)
        self._training = training = Training(state, departure)
        entry = Entry(state, training, departure)
        self._parts = (self, entry, training, departure)
        self._before, self._event = state.phase, type(None)

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        state, kind = self._state, type(event)
        effects: list[Effect] = []
        state.outbox.out = effects
        self._before, self._event = state.phase, kind
        if kind in state.handled:
            part, handler = _HANDLERS[kind]
            if kind not in _ORDERS or not state.outbox.seat.outranks(event):
                handler(self._parts[part], event, now_ns)
        return effects

    def wake_at(self) -> int | None:
        state = self._state
        if not state.handled:
            return None  # the worker has ended
        parted, wake_ns = state.joining.parted, state.heartbeat.next_ns
        if parted is not None and (wake_ns is None or parted.until_ns < wake_ns):
            wake_ns = parted.until_ns
        again_ns = state.joining.again_ns
        if again_ns is not None and (wake_ns is None or again_ns < wake_ns):
            wake_ns = again_ns
        leaves_by_ns = state.leaves_by_ns
        if leaves_by_ns is not None and (wake_ns is None or leaves_by_ns < wake_ns):
            wake_ns = leaves_by_ns
        look_ns = self._lead.wake_ns
        if look_ns is not None and (wake_ns is None or look_ns < wake_ns):
            wake_ns = look_ns
        return wake_ns

    def why(self) -> Waiting:
        state = self._state
        if state.phase is not Phase.ENDED and (waiting := self._lead.waiting()) is not None:
            return waiting
        return Waiting(self._reason(), state.since_ns, state.leaves_by_ns)

    def _reason(self) -> Reason:
        state = self._state
        match state.phase:
            case Phase.JOINING | Phase.ADMITTED if state.rejoins_because is not None:
                return Reason("rejoining").because(state.rejoins_because)
            case Phase.JOINING | Phase.ADMITTED:
                return Reason("joining")
            case Phase.PLACING:
                return Reason("placing")
            case Phase.WAITING if state.joining.parted is not None:
                return Reason("parted", {"server": state.joining.parted.server})
            case Phase.WAITING if state.pushes.held is not None and not state.mode.answer_first:
                if state.pushes.withheld:
                    return Reason("withheld")
                servers = list(state.pushes.outstanding.servers())
                return Reason("unacknowledged", {"servers": servers})
            case Phase.WAITING:
                return state.mode.why()
            case Phase.RESTING:
                return Reason("resting")
            case Phase.COMPUTING:
                return Reason("computing", {"round": state.mode.landing.version})
            case Phase.PARTING:
                return Reason("parting")
            case Phase.LEAVING:
                return Reason("settling", {"unacknowledged": self.unacknowledged})
            case Phase.ENDED:
                return Reason("none")

    def check(self) -> None:
        state = self._state
        state.pushes.check()
        phase = state.phase
        if phase is Phase.COMPUTING and not state.mode.landing.whole:
            raise InvariantBroken("the worker computes on a mixture of versions")
        before, event = self._before, self._event
        if phase is not before and phase not in TABLE[before].get(event, ()):
            change = f"changed the worker's phase from {before.value} to {phase.value}"
            raise InvariantBroken(f"the event {event.__name__} {change}: TABLE forbids that")

    # -- what its process asks -----------------------------------------------------------------

    @property
    def state(self) -> Phase:
        return self._state.phase

    @property
    def job(self) -> m.JobSpec | None:
        return self._state.job

    @property
    def division(self) -> m.Division | None:
        """The division of the job's model; None if this worker does not know it yet."""
        return self._state.division

    @property
    def worker(self) -> int:
        return self._state.outbox.worker

    @property
    def incarnation(self) -> int:
        return self._state.outbox.incarnation

    @property
    def seat(self) -> Seat:
        """Where the lead runs, as far as this worker knows."""
        return self._state.outbox.seat

    @property
    def linked(self) -> bool:
        """Whether every server of the job is linked."""
        return self._state.joining.linked

    @property
    def stopping(self) -> bool:
        """Whether the job ends: the next version that this worker reads is the final one."""
        return self._state.mode.stop

    @property
    def evaluates(self) -> bool:
        """Whether this worker evaluates the model for all workers."""
        return self._state.evaluates

    @property
    def unacknowledged(self) -> int:
        """The number of contributions of this incarnation that are not acknowledged. Servers may
        still read the buffers of these contributions."""
        return len(self._state.pushes.outstanding.sent)

    @property
    def acknowledged(self) -> int:
        """The sequence number of the last contribution of this incarnation that every server has
        acknowledged."""
        return self._state.pushes.acknowledged

    # -- signs of life -------------------------------------------------------------------------

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        state = self._state
        if state.heartbeat.due(now_ns):
            alive = m.Alive(
                **state.outbox.identity(), sequence=self._lead.beats, loop_over=state.loop_over
            )
            state.outbox.out.append(Beat(alive))
        state.joining.dial_again(now_ns)
        if (parted := state.joining.overdue(now_ns)) is not None:
            self._departure.miss(parted, now_ns)
        elif state.leaves_by_ns is not None and now_ns >= state.leaves_by_ns:
            self._departure.depart(now_ns)
        self._note(self._lead.look(now_ns))
        lost = self._lead.lost(now_ns)
        if lost is not None and state.phase is not Phase.ENDED:
            self._departure.fail(lost, now_ns, stopped=True)

    def _on_lead_linked(self, event: ev.LeadLinked, now_ns: int) -> None:
        self._note(self._lead.begin(event.heartbeat_s, event.timeout_s, now_ns))

    def _on_alive(self, message: m.Alive, now_ns: int) -> None:
        self._note(self._lead.hear(now_ns, beat=True))

    def _on_lead_heard(self, event: ev.LeadHeard, now_ns: int) -> None:
        if (note := self._lead.hear(now_ns)) is not None:
            self._state.outbox.out.append(note)

    def _note(self, note: Note | None) -> None:
        if note is not None:
            self._state.outbox.out.append(note)

    def _on_reporting(self, event: ev.Reporting, now_ns: int) -> None:
        outbox = self._state.outbox
        report = m.Report(
            **outbox.identity(),
            round=event.round,
            metrics=event.metrics,
            evaluated=event.evaluated,
        )
        outbox.tell_lead(report)

    def _on_appointed(self, message: m.Appointed, now_ns: int) -> None:
        state = self._state
        state.evaluates = state.evaluates or message.incarnation == state.outbox.incarnation

    def _on_state_kept(self, event: ev.StateKept, now_ns: int) -> None:
        self._state.keeps, self._state.restores = True, event.restore
        self._state.announce_state()

    def _on_state_restored(self, event: ev.StateRestored, now_ns: int) -> None:
        self._state.restores = False


_ORDERS = frozenset(LEAD_TO_WORKER)
_MACHINE, _ENTRY, _TRAINING, _DEPARTURE = range(4)
_HANDLERS: dict[type, tuple[int, Callable[[Any, Any, int], None]]] = {
    ev.Tick: (_MACHINE, WorkerMachine._on_tick),
    ev.LeadLinked: (_MACHINE, WorkerMachine._on_lead_linked),
    ev.LeadHeard: (_MACHINE, WorkerMachine._on_lead_heard),
    m.Alive: (_MACHINE, WorkerMachine._on_alive),
    ev.Reporting: (_MACHINE, WorkerMachine._on_reporting),
    m.Appointed: (_MACHINE, WorkerMachine._on_appointed),
    m.Admitted: (_ENTRY, Entry.on_admitted),
    ev.Linked: (_ENTRY, Entry.on_linked),
    ev.Sizing: (_ENTRY, Entry.on_sizing),
    m.Divided: (_ENTRY, Entry.on_divided),
    ev.Attaching: (_ENTRY, Entry.on_attaching),
    m.Routing: (_ENTRY, Entry.on_routing),
    ev.Enrolling: (_ENTRY, Entry.on_enrolling),
    m.Leased: (_ENTRY, Entry.on_leased),
    ev.PointsDelivered: (_ENTRY, Entry.on_points_delivered),
    ev.Computed: (_TRAINING, Training.on_computed),
    ev.Exhausted: (_TRAINING, Training.on_exhausted),
    ev.PassedAll: (_TRAINING, Training.on_passed_all),
    m.Acknowledged: (_TRAINING, Training.on_acknowledged),
    ev.Skipped: (_TRAINING, Training.on_skipped),
    m.Release: (_TRAINING, Training.on_release),
    m.Keep: (_TRAINING, Training.on_keep),
    m.Share: (_TRAINING, Training.on_share),
    ev.StateKept: (_MACHINE, WorkerMachine._on_state_kept),
    ev.StateRestored: (_MACHINE, WorkerMachine._on_state_restored),
    m.Withhold: (_TRAINING, Training.on_withhold),
    m.Proceed: (_TRAINING, Training.on_proceed),
    m.Progressed: (_TRAINING, Training.on_progressed),
    m.Pause: (_TRAINING, Training.on_pause),
    ev.Landed: (_TRAINING, Training.on_landed),
    ev.LeaveAsked: (_DEPARTURE, Departure.on_leave_asked),
    ev.Leaving: (_DEPARTURE, Departure.on_leaving),
    m.Stop: (_DEPARTURE, Departure.on_stop),
    m.Refusal: (_DEPARTURE, Departure.on_refusal),
    m.Evicted: (_DEPARTURE, Departure.on_evicted),
    ev.LinkClosed: (_DEPARTURE, Departure.on_link_closed),
}
