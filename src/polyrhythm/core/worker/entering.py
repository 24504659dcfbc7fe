"""How a worker enters the job: admission, links, its model, the first routes and its chunks.

This module also handles later routes: the worker sends unacknowledged slices to the new primaries,
and reads from them.
"""

from polyrhythm.core import events as ev
from polyrhythm.core.effects import PrepareBuffers, TakeChunks
from polyrhythm.core.kinds import sums_only
from polyrhythm.core.machine import Reason
from polyrhythm.core.names import server_name
from polyrhythm.core.worker.leaving import Departure
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.core.worker.pulls import Assembly, Missing
from polyrhythm.core.worker.state import WorkerState
from polyrhythm.core.worker.training import Training
from polyrhythm.wire import messages as m


class Entry:
    __slots__ = ("_departure", "_state", "_training")

    def __init__(self, state: WorkerState, training: Training, departure: Departure) -> None:
        self._state = state
        self._training = training
        self._departure = departure

    def on_admitted(self, message: m.Admitted, now_ns: int) -> None:
        state = self._state
        state.admit(message.job)
        state.joining.on_admitted(message)
        state.heartbeat.begin(message.job.heartbeat_s, now_ns)
        state.enter(Phase.ADMITTED, now_ns)
        state.announce_state()
        self._ask_for_division()
        state.joining.dial(message.servers)

    def on_linked(self, event: ev.Linked, now_ns: int) -> None:
        state = self._state
        state.joining.link(event.server, event.incarnation)
        if state.spec is not None:
            state.joining.attach(state.spec)
        self._reroute_if_linked(now_ns)

    def on_sizing(self, event: ev.Sizing, now_ns: int) -> None:
        self._state.sized = event.nbytes
        self._ask_for_division()

    def _ask_for_division(self) -> None:
        """Ask the lead for the division of the model. Every incarnation asks again until it gets an
        answer."""
        state = self._state
        known = state.division is not None or not state.outbox.incarnation
        if state.sized is not None and not known:
            state.outbox.tell_lead(m.ModelSize(**state.outbox.identity(), nbytes=state.sized))

    def on_divided(self, message: m.Divided, now_ns: int) -> None:
        self._state.division = message.division

    def on_attaching(self, event: ev.Attaching, now_ns: int) -> None:
        state = self._state
        state.spec = event.spec
        state.mode.attach(event.spec)
        state.joining.attach(event.spec)

    def on_routing(self, message: m.Routing, now_ns: int) -> None:
        state = self._state
        joining, outbox = state.joining, state.outbox
        if message.incarnation != outbox.incarnation or message.routing < outbox.routing:
            return
        outbox.follow(message)
        if joining.routed and message.routing == outbox.routing:
            joining.seed(message)
            return
        joining.reroute(message)
        missing = joining.dial(message.servers)
        if joining.routed:
            state.pushes.relinking.update(missing)
        self._reroute_if_linked(now_ns)

    def _follow_first(self, message: m.Routing, now_ns: int) -> None:
        """Follow the first routes. The lead may already have released the worker, before all of its
        links were open."""
        state = self._state
        state.joining.routed = True
        state.pushes.relinking.clear()
        state.mode.landing = Assembly(message.routes)
        self._prepare_buffers()
        state.mode.follow_first_routes()
        state.enter(Phase.PLACING, now_ns)
        if state.points is not None:
            self._enrol(state.points)
        state.joining.seed(message)
        if state.mode.on_seeded(state.pushes.sequence):
            self._training.resume_if_whole(now_ns)

    def _reroute_if_linked(self, now_ns: int) -> None:
        """Follow the new routes once the worker is linked to all servers in them: send
        unacknowledged slices to the new primaries, and read from them."""
        state = self._state
        message = state.joining.follow()
        if message is None:
            return
        if not state.joining.routed:
            self._follow_first(message, now_ns)
            return
        if self._lacks_sums(now_ns):
            return
        mode, missing = state.mode, self._missing(message.routes)
        if missing is Missing.VERSIONS:
            mode.landing.drop_early(message.routes)
        mode.landing.reroute(message.routes)
        self._prepare_buffers()
        self._training.share_if_ready()
        state.joining.seed(message)
        state.pushes.reroute(message.routes, message.secured)
        self._training.on_secured(now_ns)
        for server, sequence, routing in state.pushes.take_early():
            self._training.acknowledge(server, sequence, routing, now_ns)
        if missing is Missing.NOTHING:
            return  # messages under way still come from the servers that were asked for them
        enough = state.leaves and (state.user_computes or mode.landing.whole)
        if mode.read_again(state.pushes.sequence, state.phase, missing, enough=enough):
            self._training.resume_if_whole(now_ns)

    def _lacks_sums(self, now_ns: int) -> bool:
        """Rejoin if sums were lost with a link to a server that is still there: it does not send again
        what it has sent before a fold. A worker that computes has all sums of its version. Returns
        whether the worker rejoins."""
        state, server = self._state, self._state.joining.relinked
        if server is None or state.phase is not Phase.WAITING:
            return False
        if state.job is None or not sums_only(state.job):
            return False
        fields = {
            "name": state.name,
            "peer": server_name(server),
            "detail": "sums were lost with it",
        }
        self._departure.come_back(Reason("link-lost", fields), now_ns)
        return True

    def _prepare_buffers(self) -> None:
        landing = self._state.mode.landing
        self._state.outbox.out.append(PrepareBuffers(landing.routes, landing.early_since))

    def _missing(self, routes: tuple[m.Route, ...]) -> Missing:
        """What may never arrive once the worker follows these routes."""
        joining, landing = self._state.joining, self._state.mode.landing
        # A drained server had no slice in the previous routes, so only an incomplete version can
        # miss something from it.
        lacks = joining.broken or (joining.lost and not landing.whole)
        if not lacks and not landing.leads_elsewhere(routes):
            return Missing.NOTHING
        return Missing.VERSIONS if joining.lost or joining.broken else Missing.ANSWERS

    def on_enrolling(self, event: ev.Enrolling, now_ns: int) -> None:
        state = self._state
        state.points, state.batch, state.listens = event.points, event.batch, event.listens
        state.groups, state.shares, state.data = event.groups, event.shares, event.data
        # the user's code waits for its chunks and does not use the parameters, so they may change
        state.user_computes = False
        if state.over_because is not None:
            self._departure.rejoin(state.over_because, now_ns)
        elif state.joining.routed:  # a worker without routes enrols when it gets them
            self._enrol(event.points)

    def _enrol(self, points: int) -> None:
        state, outbox = self._state, self._state.outbox
        outbox.tell_lead(
            m.Enrol(
                **outbox.identity(),
                points=points,
                batch=state.batch,
                listens=state.listens,
                groups=state.groups,
                shares=state.shares,
                data=state.data,
            )
        )

    def on_points_delivered(self, event: ev.PointsDelivered, now_ns: int) -> None:
        outbox = self._state.outbox
        outbox.tell_lead(
            m.Delivered(
                **outbox.identity(),
                chunk=event.chunk,
                number=event.number,
                nbytes=event.nbytes,
                fault=event.fault,
            )
        )

    def on_leased(self, message: m.Leased, now_ns: int) -> None:
        state = self._state
        if message.incarnation != state.outbox.incarnation:
            return
        state.leased = True
        state.user_computes = state.user_computes or state.phase is Phase.COMPUTING
        state.outbox.out.append(TakeChunks(message))
        self._training.resume_if_whole(now_ns)
