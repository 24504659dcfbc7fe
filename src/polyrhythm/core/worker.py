"""The worker: which contribution goes where, what is still unacknowledged, when to go on.

*A worker keeps a contribution until every slice acknowledged it, with at most 2 unacknowledged. With
rounds it goes on when all its slices are of one version, the one that the lead released or a later
one; without, it asks for the parameters with each contribution and goes on when they are here: under
a bound with its own contribution in them and when the lead lets it, otherwise as they are. Without a
bound, where the model is small, it goes on at once: what one contribution asked for is taken with
the next.* With rounds a contribution says that the version it was computed on is no longer read;
otherwise a worker says so with `Pulled`, or with its next `Pull` where the model is small.

*One who was evicted joins again as somebody new: what it had not seen acknowledged is dropped.* So
does one who has lost a server that is still there for the others. *One who is told to leave waits for
nobody, but leaves with nothing unacknowledged, if that comes in time.*

*After a routing change it sends again only what was not acknowledged, and only to the servers that
are the primaries now of what others were before. An acknowledgement is of the slices that its server
was the primary of in the epoch that it was given in.*
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.effects import (
    LEAD,
    Arrange,
    Beat,
    Dial,
    End,
    Expect,
    Fail,
    Hurry,
    LetGo,
    PushSlices,
    Rejoin,
    Resume,
    SeedSlices,
    Send,
    TakeChunks,
    server_name,
    server_number,
)
from polyrhythm.core.landing import NOTHING, Landing
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.model import nbytes_of
from polyrhythm.core.outstanding import Outstanding, Sent
from polyrhythm.core.sync.choose import asks_before_steps, has_rounds
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m

_SMALL_NBYTES = 2 * 2**20
"""A model up to this size may lie unread at the servers while a worker computes: the spare that
this takes is cheaper than waiting."""
_LAST_WORD_NS = 5 * 10**9
"""For the lead to say why a server's link ended, before this worker gives up."""
SETTLE_NS = 5 * 10**9
"""For what a leaving worker sent to be acknowledged. With rounds that is when others have contributed
too; what has arrived by then counts all the same."""


class State(Enum):
    JOINING = "joining"
    ADMITTED = "admitted"
    PLACING = "placing"
    WAITING = "waiting"
    RESTING = "resting"
    COMPUTING = "computing"
    PARTING = "parting"
    LEAVING = "leaving"
    ENDED = "ended"


_AWAITING = (State.WAITING, State.PLACING)
_COMPUTING, _ENDED = State.COMPUTING, State.ENDED


class WorkerMachine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.job: m.JobSpec | None = None
        self._rounds = True
        self._asks = True
        self._small = False
        self._spec: m.ModelSpec | None = None
        self._points: int | None = None
        self._batch = 0
        self._user_computes = False
        self._gone: str | None = None
        """Why this incarnation is over, while the user's code still computes."""
        self._left_because = ""
        """Why the last incarnation was over."""
        self._asked = False
        """It was told to leave."""
        self._leaving: ev.Leaving | None = None
        self._settled_ns = 0
        """When it leaves at the latest, once it is leaving."""
        self._ticket = 0
        self._since_ns = 0
        self._out: list[Effect] = []
        self._begin(State.JOINING, 0)

    def _begin(self, state: State, now_ns: int) -> None:
        """Nobody, as yet: what belongs to an incarnation."""
        self.worker = -1
        self.incarnation = 0
        self._enter(state, now_ns)
        self._term = self._view = self._routing = 0
        self._servers: dict[int, int] = {}
        """Of every server of the job, its incarnation; and of those that are linked."""
        self._linked: dict[int, int] = {}
        self._dialed: dict[int, int] = {}
        self._relinking: set[int] = set()
        """Servers whose link has ended, and what was on its way to them with it; or whose place
        another has."""
        self._rerouting: m.Routing | None = None
        """Other primaries, not all of which are linked yet."""
        self._attached = False
        self._routed = False
        self._leased = False
        self._landing = Landing()
        self._released = -1
        self._resumed = -1
        self._first = True
        self._allowed = False
        self._pulling: dict[int, int] = {}
        self._must_pull = False
        self._stop = False
        self._sequence = 0
        self._unacknowledged = Outstanding()
        self._early: dict[int, tuple[int, int]] = {}
        """Per server, what it acknowledged as the primary of what this worker does not know yet."""
        self._held: ev.Computed | None = None
        self._terms = m.Release()
        self._next_beat_ns: int | None = None
        self._parted: tuple[int, str, int] | None = None
        """A server whose link ended, why, and until when the lead may say what becomes of it."""

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        self._out = []
        if self.state is not _ENDED:
            handler = self._HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, now_ns)
        return self._out

    def wake_at(self) -> int | None:
        if self.state is _ENDED:
            return None
        wakes_ns = [self._next_beat_ns]
        if self._parted is not None:
            wakes_ns.append(self._parted[2])
        if self.state is State.LEAVING:
            wakes_ns.append(self._settled_ns)
        return min((wake_ns for wake_ns in wakes_ns if wake_ns is not None), default=None)

    def why(self) -> Waiting:
        match self.state:
            case State.JOINING | State.ADMITTED:
                reason = Reason("joining" if self._ticket == 0 else "rejoining")
            case State.PLACING:
                reason = Reason("placing")
            case State.WAITING if self._parted is not None:
                server = server_name(self._parted[0])
                reason = Reason("parted", {"server": server})
            case State.WAITING if self._held is not None and not self._reads_first:
                servers = ", ".join(map(server_name, self._unacknowledged.servers()))
                reason = Reason("window", {"held": self.name, "servers": servers})
            case State.WAITING if not self._rounds:
                reason = Reason("reading" if self._allowed else "gate")
            case State.WAITING:
                reason = Reason("waits", {"round": self._landing.version + 1})
            case State.RESTING:
                reason = Reason("resting")
            case State.COMPUTING:
                reason = Reason("computing", {"round": self._landing.version})
            case State.PARTING:
                reason = Reason("parting")
            case State.LEAVING:
                settling = Reason("settling", {"unacknowledged": self.unacknowledged})
                return Waiting(settling, self._since_ns, self._settled_ns)
            case State.ENDED:
                reason = Reason("none")
        return Waiting(reason, self._since_ns)

    def check(self) -> None:
        if len(self._unacknowledged) > m.WINDOW:
            raise InvariantBroken(f"{len(self._unacknowledged)} contributions unacknowledged")
        if self.state is State.COMPUTING and not self._landing.whole:
            raise InvariantBroken("computing on a mixture of versions")

    @property
    def linked(self) -> bool:
        """Every server of the job is linked."""
        return bool(self._servers) and self._servers.items() <= self._linked.items()

    @property
    def unacknowledged(self) -> int:
        """How many contributions of this incarnation servers may still read."""
        return len(self._unacknowledged)

    @property
    def acknowledged(self) -> int:
        """The last contribution of this incarnation that every server has acknowledged."""
        return self._unacknowledged.first(self._sequence + 1) - 1

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        if self._next_beat_ns is not None and now_ns >= self._next_beat_ns:
            self._next_beat_ns = now_ns + self._beat_ns
            self._out.append(Beat(m.Alive(**self._identity())))
        if self._parted is not None and now_ns >= self._parted[2]:
            _, reason, _ = self._parted
            self._parted = None
            if self._resumed >= 0:
                self._lose_place(reason, now_ns)
            else:
                self._fail(reason, now_ns)
        elif self.state is State.LEAVING and now_ns >= self._settled_ns:
            self._depart(now_ns)

    @property
    def _beat_ns(self) -> int:
        assert self.job is not None
        return round(self.job.heartbeat_s * 1e9)

    # -- joining -------------------------------------------------------------------------------

    def _on_admitted(self, message: m.Admitted, now_ns: int) -> None:
        self.worker, self.incarnation = message.worker, message.incarnation
        self.job = message.job
        self._rounds = has_rounds(message.job.sync)
        self._asks = self._rounds or asks_before_steps(message.job.sync)
        self._term, self._view = message.term, message.view
        self._servers = _incarnations(message.servers)
        self._next_beat_ns = now_ns + self._beat_ns
        self._enter(State.ADMITTED, now_ns)
        self._dial(message.servers)

    def _dial(self, servers: tuple[m.ServerSpec, ...]) -> None:
        missing = tuple(s for s in servers if self._dialed.get(s.server) != s.incarnation)
        self._dialed.update((spec.server, spec.incarnation) for spec in missing)
        if missing:
            self._relinking.update(spec.server for spec in missing if self._routed)
            self._out.append(Dial(missing))

    def _on_linked(self, event: ev.Linked, now_ns: int) -> None:
        self._linked[event.server] = event.incarnation
        self._attach_if_linked()
        self._reroute_if_linked(now_ns)

    def _on_attaching(self, event: ev.Attaching, now_ns: int) -> None:
        self._spec = event.spec
        self._small = nbytes_of(event.spec) <= _SMALL_NBYTES
        self._attach_if_linked()

    def _attach_if_linked(self) -> None:
        if self._spec is not None and self.linked and not self._attached:
            self._attached = True
            self._tell_lead(m.Attach(**self._identity(), spec=self._spec))

    def _on_routing(self, message: m.Routing, now_ns: int) -> None:
        if message.incarnation != self.incarnation or message.routing < self._routing:
            return
        self._term, self._view = message.term, message.view
        if self._routed and message.routing == self._routing:
            self._seed_if_asked(message)
            return
        self._rerouting = message
        self._dial(message.servers)
        self._reroute_if_linked(now_ns)

    def _route(self, message: m.Routing, now_ns: int) -> None:
        """The first routes. The lead may have released it while a link was on its way."""
        self._routed = True
        self._relinking.clear()
        self._landing = Landing(message.routes)
        self._out.append(Arrange(message.routes))
        self._expect(0 if self._rounds else None)
        self._enter(State.PLACING, now_ns)
        if self._points is not None:
            self._enrol(self._points)
        self._seed_if_asked(message)
        if self._rounds:
            self._resume_if_whole(now_ns)
        elif self._allowed:
            self._pull_latest(after=self._sequence)

    def _seed_if_asked(self, message: m.Routing) -> None:
        if message.seed:
            keepers: dict[int, list[int]] = {}
            for slice_, route in enumerate(message.routes):
                for server in route.keepers:
                    keepers.setdefault(server, []).append(slice_)
            for server, ids in sorted(keepers.items()):
                self._out.append(SeedSlices(server, tuple(ids), message.routing))

    def _reroute_if_linked(self, now_ns: int) -> None:
        """Other primaries: what was not acknowledged goes to them, and what is read comes from them."""
        message = self._rerouting
        if message is None:
            return
        self._servers = _incarnations(message.servers) or self._servers
        if not self.linked:
            return
        self._rerouting = None
        self._routing = message.routing
        self._parted = None  # all who are in the job are linked
        if not self._routed:
            self._route(message, now_ns)
            return
        self._landing.reroute(message.routes)
        self._out.append(Arrange(message.routes))
        self._seed_if_asked(message)
        relinked, self._relinking = self._relinking, set()
        for sent, moved in self._unacknowledged.reroute(message.routes, relinked):
            for server, slices in moved.items():
                self._push(server, slices, sent)
        early, self._early = self._early, {}
        for server, (sequence, routing) in early.items():
            self._acknowledge(server, sequence, routing, now_ns)
        self._read_again(now_ns)

    def _read_again(self, now_ns: int) -> None:
        """Who answers now may not be the one who was asked."""
        self._pulling.clear()
        if self._rounds:
            self._must_pull = True
            self._resume_if_whole(now_ns)
        elif self._ticket == 0 or (self._parts and (self._user_computes or self._landing.whole)):
            return  # what it has is enough to leave with
        elif self.state in _AWAITING or (self.state is State.RESTING and self._reads_first):
            self._pull_latest(self._after)
        elif self.state is State.COMPUTING and self._reads_first:
            self._pull_latest(self._after, awaited=False)
            self._expect(None, keep=self._ticket)

    def _on_enrolling(self, event: ev.Enrolling, now_ns: int) -> None:
        self._points, self._batch = event.points, event.batch
        self._user_computes = False  # it waits for its chunks, so the parameters may change
        if self._gone is not None:
            self._rejoin(self._gone, now_ns)
        elif self._routed:  # otherwise it is rejoining, and enrols when it is routed
            self._enrol(event.points)

    def _enrol(self, points: int) -> None:
        self._tell_lead(m.Enrol(**self._identity(), points=points, batch=self._batch))

    def _on_leased(self, message: m.Leased, now_ns: int) -> None:
        if message.incarnation != self.incarnation:
            return
        self._leased = True
        self._user_computes = self._user_computes or self.state is State.COMPUTING
        self._out.append(TakeChunks(message))
        self._resume_if_whole(now_ns)

    # -- contributing --------------------------------------------------------------------------

    def _on_computed(self, event: ev.Computed, now_ns: int) -> None:
        self._user_computes = False
        if self._gone is not None:
            self._come_back(self._gone, now_ns)
            return
        self._enter(State.WAITING, now_ns)
        if self._stop:
            self._read_final(now_ns)
        else:
            self._held = event
            if self._reads_first and not self._parts:
                self._expect(self._ticket)
            self._contribute_held(now_ns)
        self._let_go_if_asked(now_ns)

    @property
    def _ahead(self) -> bool:
        """It computes on while its parameters are on their way."""
        return self._small and not self._asks

    @property
    def _reads_first(self) -> bool:
        """What it asked for with its last contribution is taken before the next one leaves."""
        return self._ahead and self._landing.version != self._ticket

    def _contribute_held(self, now_ns: int) -> None:
        """Once the window and what it asked for allow it; who leaves reads nothing more."""
        if self._held is None or len(self._unacknowledged) >= m.WINDOW:
            return
        if self._parts or not self._reads_first:
            held, self._held = self._held, None
            self._contribute(held, now_ns)

    def _contribute(self, event: ev.Computed, now_ns: int) -> None:
        self._sequence += 1
        goes_on = self._ahead and not self._parts
        if self._rounds:
            self._expect_next(now_ns)
        elif not self._parts:
            self._allowed = not self._asks
            # it leaves ahead of the slices. A large model is read as it is before they are folded;
            # otherwise the answer has them in it, and acknowledges them
            self._pull_latest(self._after, awaited=not goes_on)
        round_ = self._landing.version + 1
        sent = self._unacknowledged.send(self._sequence, round_, event, self._landing.routes)
        for server, slices in self._landing.slices.items():
            if server not in self._relinking:  # otherwise after what must be sent to it again
                self._push(server, slices, sent)
        self._tell_lead(
            m.Trailer(
                term=self._term,
                view=self._view,
                routing=self._routing,
                worker=self.worker,
                incarnation=self.incarnation,
                sequence=self._sequence,
                round=round_,
                weight=event.weight,
                objective=event.objective,
                compute_ns=event.compute_ns,
                wait_ns=event.wait_ns,
                transfer_ns=event.transfer_ns,
                progress=event.progress,
                lease=event.lease,
                steps=event.steps,
                probe=event.probe,
                probe_points=event.probe_points,
                probe_ns=event.probe_ns,
                abandoned_ns=event.abandoned_ns,
            )
        )
        if goes_on:
            self._resume(now_ns)

    @property
    def _after(self) -> int:
        """Which of its contributions must be in what it reads."""
        return self._sequence if self._asks or self._small or self._stop else 0

    def _push(self, server: int, slices: tuple[int, ...], sent: Sent) -> None:
        computed = sent.computed
        self._out.append(
            PushSlices(
                server,
                slices,
                sent.sequence,
                sent.round,
                self._view,
                self._routing,
                computed.buffer,
                computed.weight,
                computed.rates,
            )
        )

    def _on_exhausted(self, event: ev.Exhausted, now_ns: int) -> None:
        self._user_computes = False
        if self._gone is not None:
            self._come_back(self._gone, now_ns)
            return
        if self._stop:
            self._enter(State.WAITING, now_ns)
            self._read_final(now_ns)
            return
        if self._rounds:
            self._enter(State.WAITING, now_ns)
            self._expect_next(now_ns)
            self._say_pulled()
        else:
            self._enter(State.RESTING, now_ns)
            self._allowed = False
            if self._reads_first:
                self._expect(self._ticket)
            elif self._small:
                self._say_pulled()
        round_ = self._landing.version + 1
        abstained = m.Abstained(
            **self._identity(), round=round_, reason=event.reason, lease=event.lease
        )
        self._tell_lead(abstained)
        self._let_go_if_asked(now_ns)

    def _say_pulled(self) -> None:
        pulled = m.Pulled(**self._identity(), round=self._landing.version)
        for server in self._landing.slices:
            self._out.append(Send(server_name(server), pulled))

    def _on_acknowledged(self, message: m.Acknowledged, now_ns: int) -> None:
        if message.incarnation == self.incarnation:
            self._acknowledge(message.server, message.sequence, message.routing, now_ns)

    def _acknowledge(self, server: int, sequence: int, routing: int, now_ns: int) -> None:
        if routing > self._routing:
            early = self._early.get(server, (0, 0))
            self._early[server] = max(early, (sequence, routing))
            return  # of which slices that is said, the lead will say
        self._unacknowledged.acknowledge(server, sequence, routing)
        self._contribute_held(now_ns)
        if self.state is State.LEAVING and not self._unacknowledged:
            self._depart(now_ns)

    def _on_skipped(self, event: ev.Skipped, now_ns: int) -> None:
        if self._routed and event.incarnation in (0, self.incarnation):
            self._acknowledge(event.server, event.sequence, event.routing, now_ns)

    # -- going on ------------------------------------------------------------------------------

    def _expect(self, round_: int | None, *, keep: int | None = None) -> None:
        self._out.append(Expect(round_, keep))

    def _expect_next(self, now_ns: int) -> None:
        if self._parts:
            return
        self._expect(max(self._landing.version, 0))
        self._resume_if_whole(now_ns)

    def _read_final(self, now_ns: int) -> None:
        """The job has ended: nothing more is contributed, and the final parameters are read."""
        if self._rounds:
            self._expect_next(now_ns)
        else:
            self._pull_latest(after=self._sequence)

    def _on_release(self, message: m.Release, now_ns: int) -> None:
        if message.incarnation != self.incarnation:
            return
        self._term, self._view = message.term, message.view
        self._terms = message
        if message.stop:
            self._stop = True
            self._held = None
        if self._rounds:
            self._released = max(self._released, message.round)
            self._must_pull = self._must_pull or not message.pushed
        else:
            self._allowed = True
            if self.state is State.RESTING:
                self._enter(State.WAITING, now_ns)
            idle = self.state in (State.WAITING, State.PLACING) and self._held is None
            if idle and (message.stop or not message.pushed):
                self._pull_latest(after=self._sequence)
        self._resume_if_whole(now_ns)

    def _on_pause(self, message: m.Pause, now_ns: int) -> None:
        if self.state is State.COMPUTING and message.round == self._resumed + 1:
            self._out.append(Hurry())

    def _on_passed_all(self, event: ev.PassedAll, now_ns: int) -> None:
        self._tell_lead(m.Asking(**self._identity(), round=self._landing.version + 1))

    def _on_landed(self, event: ev.Landed, now_ns: int) -> None:
        if not self._routed or event.incarnation not in (0, self.incarnation):
            return  # it was read for an incarnation that is over
        self._landing.land(event.server, event.slice, event.round, event.holds)
        self._acknowledge(event.server, event.sequence, event.routing, now_ns)
        if self.state is State.RESTING and not self._reads_first:
            self._say_pulled()
        self._resume_if_whole(now_ns)

    def _pull_latest(self, after: int, *, awaited: bool = True) -> None:
        """Ask every server for its slices as they are once contribution `after` is in them; the
        answers carry the ticket."""
        self._ticket += 1
        if awaited:
            self._expect(self._ticket)
        pulled = self._landing.version if self._small else NOTHING
        pull = m.Pull(**self._identity(), round=self._ticket, sequence=after, pulled=pulled)
        for server in self._landing.slices:
            self._out.append(Send(server_name(server), pull))

    def _pull_missing(self) -> None:
        """Ask every server that is behind for its slices; a server that has folded on meanwhile
        answers with a later version, and then the others are asked for that one. A server is asked
        again only when its answer has landed: a second one could land in what the first completed."""
        round_ = max(self._released, self._landing.newest)
        for server in self._landing.slices:
            version = self._landing.of(server)
            if version < round_ and self._pulling.get(server, -1) <= version:
                self._pulling[server] = round_
                pull = m.Pull(**self._identity(), round=round_)
                self._out.append(Send(server_name(server), pull))

    def _resume_if_whole(self, now_ns: int) -> None:
        if self.state not in _AWAITING or self._held is not None:
            return
        if self._let_go_if_asked(now_ns):
            return
        if self._points is not None and not self._leased:
            return
        if self._may_go_on():
            self._resume(now_ns)
        elif self._must_pull and self._released >= 0:  # by then every server knows this worker
            self._pull_missing()

    def _may_go_on(self) -> bool:
        landing = self._landing
        if not landing.whole:
            return False
        if self._rounds:
            released = self._released > self._resumed or self._stop
            return released and landing.version >= self._released
        return (self._allowed or self._stop) and landing.version == self._ticket > 0

    def _resume(self, now_ns: int) -> None:
        self._must_pull = False
        self._pulling.clear()
        self._resumed = self._landing.version
        self._enter(State.COMPUTING, now_ns)
        self._user_computes = True
        self._expect(None, keep=self._ticket if self._ahead else None)
        terms, first = self._terms, self._first
        self._first = False
        self._out.append(
            Resume(
                self._resumed,
                self._stop,
                terms.steps,
                terms.interval_ns,
                terms.probe,
                terms.points,
                anew=first,
            )
        )
        if not self._rounds and not self._small:
            self._say_pulled()

    # -- the end -------------------------------------------------------------------------------

    def _on_reporting(self, event: ev.Reporting, now_ns: int) -> None:
        self._tell_lead(m.Report(**self._identity(), metrics=event.metrics))

    @property
    def _parts(self) -> bool:
        """It waits for no version any more. One who reads in place must: what it reads changes."""
        in_place = self.job is not None and self.job.in_place
        return self._asked and not self._stop and not in_place

    def _on_leave_asked(self, event: ev.LeaveAsked, now_ns: int) -> None:
        self._asked = True
        self._let_go_if_asked(now_ns)

    def _let_go_if_asked(self, now_ns: int) -> bool:
        """Not in the middle of a version: the user's code may look at its parameters once more."""
        if not self._parts or self._user_computes or not self._landing.whole:
            return False
        self._user_computes = True
        self._enter(State.PARTING, now_ns)
        self._must_pull = True  # should the job end first, then what it does not take from now on
        self._expect(None)
        self._out.append(LetGo())
        return True

    def _on_leaving(self, event: ev.Leaving, now_ns: int) -> None:
        self._leaving = event
        at_once = event.at_once or event.failed or self._stop or self._gone is not None
        if at_once or not self._unacknowledged:
            self._depart(now_ns)
        elif self.state is not State.LEAVING:
            self._enter(State.LEAVING, now_ns)
            self._settled_ns = now_ns + SETTLE_NS
            self._expect(None)

    def _depart(self, now_ns: int) -> None:
        assert self._leaving is not None
        reason, failed = self._leaving.reason, self._leaving.failed
        self._tell_lead(m.Leave(**self._identity(), reason=reason, failed=failed))
        self._enter(State.ENDED, now_ns)
        self._out.append(End(Reason("refused", {"detail": reason})))

    def _on_stop(self, message: m.Stop, now_ns: int) -> None:
        self._fail(message.reason, now_ns, stopped=True)

    def _on_refusal(self, message: m.Refusal, now_ns: int) -> None:
        self._fail(message.reason, now_ns)

    def _on_evicted(self, message: m.Evicted, now_ns: int) -> None:
        if message.incarnation == self.incarnation:
            self._lose_place(message.reason, now_ns)

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        reason = f"{self.name} lost its link to {event.peer}: {event.reason}"
        server = server_number(event.peer)
        if server is not None:
            if 0 < event.incarnation < self._linked.get(server, 0):
                return  # another is in its place, and linked
            self._linked.pop(server, None)
            self._dialed.pop(server, None)
            if self._routed and server not in self._servers:
                return  # the lead has said already that it is gone
            self._relinking.add(server)
        if self.state is State.LEAVING and (server is None or not self._survives):
            self._depart(now_ns)  # nobody is left to acknowledge what that one has
            return
        begun = self._resumed >= 0 and not self._stop
        waits = server is not None and (begun or self._survives)
        if self.state is State.JOINING and self._left_because:
            self._fail(f"{self._left_because}; {event.reason}", now_ns)
        elif server is not None and waits:
            if self._parted is None:
                self._parted = (server, reason, now_ns + _LAST_WORD_NS)
        elif not begun:
            self._fail(reason, now_ns)
        else:
            self._lose_place(reason, now_ns)

    @property
    def _survives(self) -> bool:
        """The job can go on without a server."""
        return self.job is not None and self.job.replicas > 0

    def _lose_place(self, reason: str, now_ns: int) -> None:
        """This incarnation is over. Not before the user's code has stopped using the parameters."""
        if self.state is State.LEAVING:
            self._depart(now_ns)
        elif self._user_computes:
            self._gone = reason
        else:
            self._come_back(reason, now_ns)

    def _come_back(self, reason: str, now_ns: int) -> None:
        """Unless it was told to leave and has a whole version: then it has nothing to come back for."""
        if self._parts and self._landing.whole:
            self._gone = reason
            self._let_go_if_asked(now_ns)
        else:
            self._rejoin(reason, now_ns)

    def _rejoin(self, reason: str, now_ns: int) -> None:
        self._gone = None
        self._left_because = reason
        before = self.incarnation
        self._begin(State.JOINING, now_ns)
        self._expect(None)
        self._out.append(Rejoin(reason, before))

    def _fail(self, detail: str, now_ns: int, *, stopped: bool = False) -> None:
        self._enter(State.ENDED, now_ns)
        self._out.append(Fail(Reason("refused", {"detail": detail}), stopped))

    # -- small words ---------------------------------------------------------------------------

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
        ev.Tick: _on_tick,
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


def _incarnations(servers: tuple[m.ServerSpec, ...]) -> dict[int, int]:
    return {spec.server: spec.incarnation for spec in servers}
