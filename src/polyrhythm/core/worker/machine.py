"""The worker: which state it is in, and what an event means for what it sends and reads.

What an incarnation contributes is `contributing`'s to keep, what it reads is `reading`'s. *One who was
evicted joins again as somebody new: what it had not seen acknowledged is dropped.* So does one who has
lost a server that is still there for the others, or could not reach one. *One who is told to leave
waits for nobody, but leaves with nothing unacknowledged, if that comes in time.*
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.effects import (
    WITHOUT_PARAMETERS,
    Beat,
    ContributeNow,
    End,
    Fail,
    Note,
    Rejoin,
    StopWaiting,
    TakeChunks,
    server_name,
    server_number,
)
from polyrhythm.core.heartbeat import Heartbeat
from polyrhythm.core.lead_watch import LeadWatch
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.worker.assembly import Assembly
from polyrhythm.core.worker.joining import Joining, Parted
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.pulls import Pulls, ReadMode
from polyrhythm.core.worker.pushes import Pushes
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m

SETTLE_NS = 5 * 10**9
"""For what a leaving worker sent to be acknowledged. With rounds that is when others have contributed
too; what has arrived by then counts all the same."""


class Phase(Enum):
    JOINING = "joining"
    ADMITTED = "admitted"
    PLACING = "placing"
    WAITING = "waiting"
    RESTING = "resting"
    COMPUTING = "computing"
    PARTING = "parting"
    LEAVING = "leaving"
    ENDED = "ended"


# what events ask for: to look up a member of an Enum takes a call
_WAITING, _RESTING, _COMPUTING = Phase.WAITING, Phase.RESTING, Phase.COMPUTING
_LEAVING, _ENDED = Phase.LEAVING, Phase.ENDED
_AWAITING = (_WAITING, Phase.PLACING)


class WorkerMachine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.job: m.JobSpec | None = None
        self._post = WorkerOutbox()
        self._manner = ReadMode()
        self._spec: m.ModelSpec | None = None
        self._points: int | None = None
        self._batch = 0
        self._user_computes = False
        self._gone: str | None = None
        """Why this incarnation is over, while the user's code still computes."""
        self._left_because = ""
        """Why the last incarnation was over."""
        self._missed: set[tuple[int, int]] = set()
        """Servers, and which incarnations, that it joined again for and has not come in since."""
        self._asked = False
        """It was told to leave."""
        self._parts = False
        """It waits for no version any more."""
        self._begun = False
        """The user's code has had parameters: it is in its loop."""
        self._over = False
        """The job ended without this worker."""
        self._leaving: ev.Leaving | None = None
        self._settled_ns = 0
        """When it leaves at the latest, once it is leaving."""
        self._since_ns = 0
        self._lead = LeadWatch()
        self._begin(Phase.JOINING, 0)

    def _begin(self, state: Phase, now_ns: int, ticket: int = 0) -> None:
        """Nobody, as yet: what belongs to an incarnation."""
        self._post.nobody()
        self._enter(state, now_ns)
        self._joining = Joining(self._post)
        self._reading = Pulls(self._post, self._manner, ticket)
        self._contributing = Pushes(self._post)
        self._leased = False
        self._heartbeat = Heartbeat()
        self._part_if_asked()

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        effects = self._post.begin()
        if self.state is not _ENDED:
            handler = self._HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, now_ns)
        return effects

    def wake_at(self) -> int | None:
        if self.state is _ENDED:
            return None
        parted, wake_ns = self._joining.parted, self._heartbeat.next_ns
        if parted is not None and (wake_ns is None or parted.until_ns < wake_ns):
            wake_ns = parted.until_ns
        if self.state is _LEAVING and (wake_ns is None or self._settled_ns < wake_ns):
            wake_ns = self._settled_ns
        look_ns = self._lead.wake_ns
        if look_ns is not None and (wake_ns is None or look_ns < wake_ns):
            wake_ns = look_ns
        return wake_ns

    def why(self) -> Waiting:
        if self.state is not Phase.ENDED and (waiting := self._lead.waiting()) is not None:
            return waiting
        match self.state:
            case Phase.JOINING | Phase.ADMITTED if self._left_because:
                reason = Reason("rejoining", {"detail": self._left_because})
            case Phase.JOINING | Phase.ADMITTED:
                reason = Reason("joining")
            case Phase.PLACING:
                reason = Reason("placing")
            case Phase.WAITING if self._joining.parted is not None:
                server = server_name(self._joining.parted.server)
                reason = Reason("parted", {"server": server})
            case Phase.WAITING if (
                self._contributing.held is not None and not self._reading.reads_first
            ):
                servers = ", ".join(map(server_name, self._contributing.outstanding.servers()))
                reason = Reason("window", {"held": self.name, "servers": servers})
            case Phase.WAITING if not self._manner.rounds:
                reason = Reason("reading" if self._reading.allowed else "gate")
            case Phase.WAITING:
                reason = Reason("waits", {"round": self._reading.landing.version + 1})
            case Phase.RESTING:
                reason = Reason("resting")
            case Phase.COMPUTING:
                reason = Reason("computing", {"round": self._reading.landing.version})
            case Phase.PARTING:
                reason = Reason("parting")
            case Phase.LEAVING:
                settling = Reason("settling", {"unacknowledged": self.unacknowledged})
                return Waiting(settling, self._since_ns, self._settled_ns)
            case Phase.ENDED:
                reason = Reason("none")
        return Waiting(reason, self._since_ns)

    def check(self) -> None:
        self._contributing.check()
        if self.state is Phase.COMPUTING and not self._reading.landing.whole:
            raise InvariantBroken("computing on a mixture of versions")

    @property
    def worker(self) -> int:
        return self._post.worker

    @property
    def incarnation(self) -> int:
        return self._post.incarnation

    @property
    def linked(self) -> bool:
        """Every server of the job is linked."""
        return self._joining.linked

    @property
    def stopping(self) -> bool:
        """The job ends: the version that this worker reads next is the final one."""
        return self._reading.stop

    @property
    def unacknowledged(self) -> int:
        """How many contributions of this incarnation servers may still read."""
        return len(self._contributing.outstanding)

    @property
    def acknowledged(self) -> int:
        """The last contribution of this incarnation that every server has acknowledged."""
        return self._contributing.acknowledged

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        if self._heartbeat.due(now_ns):
            alive = m.Alive(**self._post.identity(), sequence=self._lead.beats)
            self._post.do(Beat(alive))
        if (parted := self._joining.overdue(now_ns)) is not None:
            self._miss(parted, now_ns)
        elif self.state is Phase.LEAVING and now_ns >= self._settled_ns:
            self._depart(now_ns)
        self._look_at_lead(now_ns)

    # -- the lead's signs of life --------------------------------------------------------------

    def _on_lead_linked(self, event: ev.LeadLinked, now_ns: int) -> None:
        self._note(self._lead.begin(event.heartbeat_s, event.timeout_s, now_ns))

    def _on_alive(self, message: m.Alive, now_ns: int) -> None:
        self._note(self._lead.hear(now_ns, beat=True))

    def _on_lead_heard(self, event: ev.LeadHeard, now_ns: int) -> None:
        self._note(self._lead.hear(now_ns))

    def _look_at_lead(self, now_ns: int) -> None:
        self._note(self._lead.look(now_ns))
        lost = self._lead.lost(now_ns)
        if lost is not None and self.state is not Phase.ENDED:
            self._enter(Phase.ENDED, now_ns)
            self._post.do(Fail(lost, stopped=True))

    def _note(self, note: Note | None) -> None:
        if note is not None:
            self._post.do(note)

    # -- joining -------------------------------------------------------------------------------

    def _on_admitted(self, message: m.Admitted, now_ns: int) -> None:
        self.job = message.job
        self._manner.follow(message.job)
        self._part_if_asked()
        self._joining.admitted(message)
        self._heartbeat.begin(message.job.heartbeat_s, now_ns)
        self._enter(Phase.ADMITTED, now_ns)
        self._joining.dial(message.servers)

    def _on_linked(self, event: ev.Linked, now_ns: int) -> None:
        self._joining.link(event.server, event.incarnation)
        if self._spec is not None:
            self._joining.attach(self._spec)
        self._reroute_if_linked(now_ns)

    def _on_attaching(self, event: ev.Attaching, now_ns: int) -> None:
        self._spec = event.spec
        self._manner.attach(event.spec)
        self._joining.attach(event.spec)

    def _on_routing(self, message: m.Routing, now_ns: int) -> None:
        if message.incarnation != self.incarnation or message.routing < self._post.routing:
            return
        self._post.heed(message)
        if self._joining.routed and message.routing == self._post.routing:
            self._joining.seed(message)
            return
        self._joining.reroute(message)
        missing = self._joining.dial(message.servers)
        if self._joining.routed:
            self._contributing.relinking.update(missing)
        self._reroute_if_linked(now_ns)

    def _route(self, message: m.Routing, now_ns: int) -> None:
        """The first routes. The lead may have released it while a link was on its way."""
        self._joining.routed = True
        self._contributing.relinking.clear()
        self._reading.landing = Assembly(message.routes)
        self._reading.expect(0 if self._manner.rounds else None)
        self._enter(Phase.PLACING, now_ns)
        if self._points is not None:
            self._enrol(self._points)
        self._joining.seed(message)
        if self._manner.rounds:
            self._resume_if_whole(now_ns)
        elif self._reading.allowed:
            self._reading.pull_after(self._contributing.sequence)

    def _reroute_if_linked(self, now_ns: int) -> None:
        """Other primaries: what was not acknowledged goes to them, and what is read comes from them."""
        message = self._joining.follow()
        if message is None:
            return
        if not self._joining.routed:
            self._route(message, now_ns)
            return
        self._reading.landing.reroute(message.routes)
        self._joining.seed(message)
        self._contributing.reroute(message.routes)
        for server, sequence, routing in self._contributing.take_early():
            self._acknowledge(server, sequence, routing, now_ns)
        self._read_again(now_ns)

    def _read_again(self, now_ns: int) -> None:
        """Who answers now may not be the one who was asked."""
        reading, sequence = self._reading, self._contributing.sequence
        reading.ask_anew()
        if self._manner.rounds:
            self._resume_if_whole(now_ns)
        elif reading.ticket == 0 or (
            self._parts and (self._user_computes or reading.landing.whole)
        ):
            return  # what it has is enough to leave with
        elif self.state in _AWAITING or (self.state is Phase.RESTING and reading.reads_first):
            reading.pull_after(sequence)
        elif self.state is Phase.COMPUTING and reading.reads_first:
            reading.pull_after(sequence, awaited=False)
            reading.expect(None, keep=reading.ticket)

    def _on_enrolling(self, event: ev.Enrolling, now_ns: int) -> None:
        self._points, self._batch = event.points, event.batch
        self._user_computes = False  # it waits for its chunks, so the parameters may change
        if self._gone is not None:
            self._rejoin(self._gone, now_ns)
        elif self._joining.routed:  # otherwise it is rejoining, and enrols when it is routed
            self._enrol(event.points)

    def _enrol(self, points: int) -> None:
        self._post.tell_lead(m.Enrol(**self._post.identity(), points=points, batch=self._batch))

    def _on_leased(self, message: m.Leased, now_ns: int) -> None:
        if message.incarnation != self.incarnation:
            return
        self._leased = True
        self._user_computes = self._user_computes or self.state is Phase.COMPUTING
        self._post.do(TakeChunks(message))
        self._resume_if_whole(now_ns)

    # -- contributing --------------------------------------------------------------------------

    def _on_computed(self, event: ev.Computed, now_ns: int) -> None:
        self._user_computes = False
        if self._gone is not None:
            self._come_back(self._gone, now_ns)
            return
        self._enter(_WAITING, now_ns)
        reading, contributing = self._reading, self._contributing
        if reading.stop:
            self._read_final(now_ns)
        elif reading.reads_first and not self._parts:
            contributing.held = event
            reading.expect(reading.ticket)
        elif contributing.full:
            contributing.held = event
        else:
            self._contribute(event, now_ns)
        if self._parts:
            self._let_go(now_ns)

    def _contribute_held(self, held: ev.Computed, now_ns: int) -> None:
        """Once the window and what it asked for allow it; who leaves reads nothing more."""
        contributing = self._contributing
        if not contributing.full and (self._parts or not self._reading.reads_first):
            contributing.held = None
            self._contribute(held, now_ns)

    def _contribute(self, event: ev.Computed, now_ns: int) -> None:
        manner, reading, contributing = self._manner, self._reading, self._contributing
        contributing.sequence += 1
        goes_on = manner.ahead and not self._parts
        if manner.rounds:
            self._expect_next(now_ns)
            contributing.send(event, reading.landing)
        elif self._parts:
            contributing.send(event, reading.landing)
        else:
            reading.allowed = not manner.asks
            # servers answer when the slices are folded, and acknowledge them with the answer
            asked = reading.take_ticket(awaited=not goes_on)
            contributing.send(event, reading.landing, *asked)
        if goes_on:
            self._resume(now_ns)

    def _on_exhausted(self, event: ev.Exhausted, now_ns: int) -> None:
        self._user_computes = False
        if self._gone is not None:
            self._come_back(self._gone, now_ns)
            return
        if self._reading.stop:
            self._enter(Phase.WAITING, now_ns)
            self._read_final(now_ns)
            return
        reading = self._reading
        if self._manner.rounds:
            self._enter(Phase.WAITING, now_ns)
            self._expect_next(now_ns)
            reading.say_pulled()
        else:
            self._enter(Phase.RESTING, now_ns)
            reading.allowed = False
            if reading.reads_first:
                reading.expect(reading.ticket)
            elif self._manner.small:
                reading.say_pulled()
        round_ = reading.landing.version + 1
        abstained = m.Abstained(
            **self._post.identity(), round=round_, reason=event.reason, lease=event.lease
        )
        self._post.tell_lead(abstained)
        if self._parts:
            self._let_go(now_ns)

    def _on_acknowledged(self, message: m.Acknowledged, now_ns: int) -> None:
        if message.incarnation == self.incarnation:
            self._acknowledge(message.server, message.sequence, message.routing, now_ns)

    def _acknowledge(self, server: int, sequence: int, routing: int, now_ns: int) -> None:
        contributing = self._contributing
        if not contributing.acknowledge(server, sequence, routing):
            return
        if contributing.held is not None:
            self._contribute_held(contributing.held, now_ns)
        if self.state is _LEAVING and not self.unacknowledged:
            self._depart(now_ns)

    def _on_skipped(self, event: ev.Skipped, now_ns: int) -> None:
        if self._joining.routed and event.incarnation in (0, self.incarnation):
            self._acknowledge(event.server, event.sequence, event.routing, now_ns)

    # -- going on ------------------------------------------------------------------------------

    def _expect_next(self, now_ns: int) -> None:
        if self._parts:
            return
        self._reading.expect(max(self._reading.landing.version, 0))
        self._resume_if_whole(now_ns)

    def _read_final(self, now_ns: int) -> None:
        """The job has ended: nothing more is contributed, and the final parameters are read."""
        if self._manner.rounds:
            self._expect_next(now_ns)
        else:
            self._reading.pull_after(self._contributing.sequence)

    def _on_release(self, message: m.Release, now_ns: int) -> None:
        post = self._post
        if message.incarnation != post.incarnation:
            return
        post.heed(message)
        self._reading.release(message)
        if message.stop:
            self._contributing.held = None
            self._part_if_asked()
        if not self._manner.rounds:
            if self.state is Phase.RESTING:
                self._enter(Phase.WAITING, now_ns)
            idle = self.state in _AWAITING and self._contributing.held is None
            if idle and (message.stop or not message.pushed):
                self._reading.pull_after(self._contributing.sequence)
        self._resume_if_whole(now_ns)

    def _on_pause(self, message: m.Pause, now_ns: int) -> None:
        if self.state is Phase.COMPUTING and message.round == self._reading.resumed + 1:
            self._post.do(ContributeNow())

    def _on_passed_all(self, event: ev.PassedAll, now_ns: int) -> None:
        self._post.tell_lead(
            m.Asking(**self._post.identity(), round=self._reading.landing.version + 1)
        )

    def _on_landed(self, event: ev.Landed, now_ns: int) -> None:
        incarnation = event.incarnation
        if not self._joining.routed or (incarnation and incarnation != self._post.incarnation):
            return  # it was read for an incarnation that is over
        reading = self._reading
        reading.landing.land(event.server, event.slice, event.round, event.holds)
        self._acknowledge(event.server, event.sequence, event.routing, now_ns)
        if self.state is _RESTING and not reading.reads_first:
            reading.say_pulled()
        if reading.landing.whole or reading.must_pull:
            self._resume_if_whole(now_ns)

    def _resume_if_whole(self, now_ns: int) -> None:
        if self.state not in _AWAITING or self._contributing.held is not None:
            return
        if self._parts and self._let_go(now_ns):
            return
        if self._points is not None and not self._leased:
            return
        reading = self._reading
        if reading.may_go_on():
            self._resume(now_ns)
        elif reading.must_pull:
            reading.pull_missing()

    def _resume(self, now_ns: int) -> None:
        self._enter(_COMPUTING, now_ns)
        self._begun = self._user_computes = True
        self._missed.clear()
        self._reading.resume()

    # -- the end -------------------------------------------------------------------------------

    def _on_reporting(self, event: ev.Reporting, now_ns: int) -> None:
        self._post.tell_lead(m.Report(**self._post.identity(), metrics=event.metrics))

    def _on_leave_asked(self, event: ev.LeaveAsked, now_ns: int) -> None:
        self._asked = True
        self._part_if_asked()
        if self._parts:
            self._let_go(now_ns)

    def _part_if_asked(self) -> None:
        """Unless the job ends. One who reads in place waits: what it reads changes."""
        in_place = self.job is not None and self.job.in_place
        self._parts = self._asked and not self._reading.stop and not in_place

    def _let_go(self, now_ns: int) -> bool:
        """Not in the middle of a version: the user's code may look at its parameters once more."""
        if self._user_computes or not self._reading.landing.whole:
            return False
        self._user_computes = True
        self._enter(Phase.PARTING, now_ns)
        # should the job end first, then it pulls what it does not take from now on
        self._reading.must_pull = True
        self._reading.expect(None)
        self._post.do(StopWaiting())
        return True

    def _on_leaving(self, event: ev.Leaving, now_ns: int) -> None:
        self._leaving = event
        at_once = event.at_once or event.failed or self._reading.stop or self._gone is not None
        if at_once or not self.unacknowledged:
            self._depart(now_ns)
        elif self.state is not Phase.LEAVING:
            self._enter(Phase.LEAVING, now_ns)
            self._settled_ns = now_ns + SETTLE_NS
            self._reading.expect(None)

    def _depart(self, now_ns: int) -> None:
        assert self._leaving is not None
        reason, failed = self._leaving.reason, self._leaving.failed
        self._post.tell_lead(m.Leave(**self._post.identity(), reason=reason, failed=failed))
        self._enter(Phase.ENDED, now_ns)
        self._post.do(End(Reason("refused", {"detail": reason})))

    def _on_stop(self, message: m.Stop, now_ns: int) -> None:
        self._fail(message.reason, now_ns, stopped=True)

    def _on_refusal(self, message: m.Refusal, now_ns: int) -> None:
        if message.ending and self._begun:
            self._end_loop(message.reason, now_ns)
        else:
            self._fail(message.reason, now_ns)

    def _end_loop(self, reason: str, now_ns: int) -> None:
        """The job ended while this worker was out of it. It cannot read the final version; its loop
        ends in order all the same, with the parameters that it has."""
        self._over = True
        self._gone = reason
        self._user_computes = True
        self._enter(Phase.PARTING, now_ns)
        self._reading.expect(None)
        self._post.do(Note(WITHOUT_PARAMETERS, {"reason": reason}))
        self._post.do(StopWaiting(stop=True))

    def _on_evicted(self, message: m.Evicted, now_ns: int) -> None:
        if message.incarnation == self.incarnation:
            self._lose_place(message.reason, now_ns)

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        if self._over:
            return
        reason = f"{self.name} lost its link to {event.peer}: {event.reason}"
        server = server_number(event.peer)
        if server is not None:
            if not self._joining.part(server, event.incarnation):
                return
            self._contributing.relinking.add(server)
        if self.state is Phase.LEAVING and (server is None or not self._survives):
            self._depart(now_ns)  # nobody is left to acknowledge what that one has
            return
        begun = self._reading.resumed >= 0 and not self._reading.stop
        waits = server is not None and (begun or self._survives)
        if self.state is Phase.JOINING and self._left_because:
            self._fail(f"{self._left_because}; {event.reason}", now_ns)
        elif server is not None and waits:
            self._joining.wait_for_word(server, event.incarnation, reason, now_ns)
        elif not begun:
            self._fail(reason, now_ns)
        else:
            self._lose_place(reason, now_ns)

    def _miss(self, parted: Parted, now_ns: int) -> None:
        """The lead has said nothing of a server that is not linked. Who joins again hears which servers
        there are by then; who cannot reach that very one a second time does not come in."""
        missed = (parted.server, parted.incarnation)
        if missed in self._missed:
            self._fail(parted.reason, now_ns)
            return
        if self._reading.resumed < 0:
            self._missed.add(missed)
        self._lose_place(parted.reason, now_ns)

    @property
    def _survives(self) -> bool:
        """The job can go on without a server."""
        return self.job is not None and self.job.replicas > 0

    def _lose_place(self, reason: str, now_ns: int) -> None:
        """This incarnation is over. Not before the user's code has stopped using the parameters."""
        if self.state is Phase.LEAVING:
            self._depart(now_ns)
        elif self._user_computes:
            self._gone = reason
        else:
            self._come_back(reason, now_ns)

    def _come_back(self, reason: str, now_ns: int) -> None:
        """Unless it was told to leave and has a whole version: then it has nothing to come back for."""
        if self._parts and self._reading.landing.whole:
            self._gone = reason
            self._let_go(now_ns)
        else:
            self._rejoin(reason, now_ns)

    def _rejoin(self, reason: str, now_ns: int) -> None:
        self._gone = None
        self._left_because = reason
        before = self.incarnation
        self._begin(Phase.JOINING, now_ns, self._reading.ticket)
        self._reading.expect(None)
        self._post.do(Rejoin(reason, before))

    def _fail(self, detail: str, now_ns: int, *, stopped: bool = False) -> None:
        self._enter(Phase.ENDED, now_ns)
        self._post.do(Fail(Reason("refused", {"detail": detail}), stopped))

    # -- small words ---------------------------------------------------------------------------

    def _enter(self, state: Phase, now_ns: int) -> None:
        self.state = state
        self._since_ns = now_ns

    _HANDLERS: ClassVar[dict[type, Callable[["WorkerMachine", Any, int], None]]] = {
        ev.Tick: _on_tick,
        ev.LeadLinked: _on_lead_linked,
        ev.LeadHeard: _on_lead_heard,
        m.Alive: _on_alive,
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
        m.Pause: _on_pause,
        ev.PassedAll: _on_passed_all,
        ev.Landed: _on_landed,
        ev.Reporting: _on_reporting,
        ev.Skipped: _on_skipped,
        ev.LeaveAsked: _on_leave_asked,
        ev.Leaving: _on_leaving,
        m.Stop: _on_stop,
        m.Refusal: _on_refusal,
        m.Evicted: _on_evicted,
        ev.LinkClosed: _on_link_closed,
    }
