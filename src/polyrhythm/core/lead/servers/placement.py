"""Decides when slices get a new assignment to servers, because the measurements have changed.

*After a fold, the lead considers a new assignment if every slice has reached its server of the last
assignment, and something new was measured. It adopts the new assignment if the gain exceeds the
cost (`core/placement/reassignment.py`). Slices then move as when a server joins or leaves. The
journal has the reason and the expected gain.*

With `elastic`, the lead itself measures: for each server, the time from the release of a round
until all contributions have arrived.
"""

from collections.abc import Mapping

import msgspec

from polyrhythm.core.kinds import INT8, sums_only
from polyrhythm.core.lead.members.view import View
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.names import server_name, worker_name
from polyrhythm.core.placement.forecast import (
    Forecast,
    forecast_aware,
    forecast_elastic,
    is_rate,
)
from polyrhythm.core.placement.load import water_fill
from polyrhythm.core.placement.network import Network
from polyrhythm.core.placement.reassignment import (
    CONFIRMATIONS,
    Prospect,
    SteadyRate,
    horizon,
    moving_nbytes,
    moving_s,
)
from polyrhythm.core.placement.schemes import ELASTIC, MEASURING
from polyrhythm.core.placement.steps import Routes
from polyrhythm.core.sync.policy import Traits
from polyrhythm.wire.messages import JobSpec

_ROUNDS = 20
"""The number of last rounds to which `elastic` fits its lines. It makes one decision per this many
rounds."""


class PlacementState(msgspec.Struct):
    throughputs: dict[str, SteadyRate] = {}
    """Per host."""
    wanted: int = 0
    """How many consecutive measurements were in favour of a new assignment."""
    opened_ns: int = 0
    arrived_ns: dict[int, int] = {}
    """When the present round was released, and when the last contribution arrived at each server."""
    observed: dict[int, list[tuple[float, float]]] = {}
    """In the last rounds, per server: its bytes of slices, and the seconds until contributions had
    arrived."""
    rounds: int = 0
    """The rounds observed since the last decision."""


class Placement:
    def __init__(
        self,
        state: PlacementState,
        job: JobSpec,
        traits: Traits,
        view: View,
        routing: RoutingTable,
        network: Network,
        outbox: LeadOutbox,
    ) -> None:
        self._state = state
        self._job = job
        self._view = view
        self._routing = routing
        self._network = network
        self._outbox = outbox
        self._measures = job.placement in MEASURING and not routing.slices_stay
        self._traits = traits
        self._elastic = self._measures and job.placement == ELASTIC

    def on_arrived(self, server: int, now_ns: int) -> None:
        """Note that a server has a whole contribution."""
        if self._elastic:
            self._state.arrived_ns[server] = now_ns

    def on_folded(self, done: int, now_ns: int) -> bool:
        """Adopt a new assignment of slices if the gain exceeds the cost. `done`: how many rounds
        are folded. Returns True if there is a new assignment."""
        if not self._measures:
            return False
        news = self._observe(now_ns) if self._elastic else self._measure()
        if not news or not self._routing.at_goal:
            return False
        forecast = self._forecast()
        if forecast is None:
            return False
        self._routing.remember(forecast.lines)
        return self._consider(forecast, horizon(self._job, done))

    # -- measurements --------------------------------------------------------------------------

    def _measure(self) -> bool:
        """Read the measured throughput of hosts. Returns whether any value has changed."""
        state, changed = self._state, False
        hosts = self._network.hosts
        for gone in state.throughputs.keys() - set(hosts):
            del state.throughputs[gone]
        for host in hosts:
            rate = self._network.throughput(host)
            if not is_rate(rate):
                continue
            if (steady := state.throughputs.get(host)) is None:
                state.throughputs[host] = SteadyRate.begin(rate)
                changed = True
            else:
                changed = steady.add(rate) or changed
        return changed

    def _observe(self, now_ns: int) -> bool:
        """Record the arrival times of the last round's contributions. Returns whether enough rounds
        were recorded since the last decision."""
        state, routing = self._state, self._routing
        held = routing.held(routing.routes) if routing.at_goal and state.opened_ns else {}
        for server, arrived_ns in state.arrived_ns.items():
            if held.get(server) and arrived_ns > state.opened_ns:
                seconds = (arrived_ns - state.opened_ns) / 1e9
                points = state.observed.setdefault(server, [])
                points.append((float(held[server]), seconds))
                del points[:-_ROUNDS]
        for gone in state.observed.keys() - routing.roster.addresses.keys():
            del state.observed[gone]
        state.arrived_ns.clear()
        state.opened_ns = now_ns
        state.rounds += bool(held)
        if state.rounds < _ROUNDS:
            return False
        state.rounds = 0
        return True

    def _forecast(self) -> Forecast | None:
        servers, state = self._routing.roster.staying, self._state
        if self._elastic:
            return forecast_elastic(servers, state.observed)
        throughputs = {host: steady.value for host, steady in state.throughputs.items()}
        return forecast_hosts(
            self._job, self._traits, self._view, self._routing, self._network, throughputs
        )

    # -- the decision --------------------------------------------------------------------------

    def _consider(self, forecast: Forecast, rounds: int) -> bool:
        """Adopt a new assignment if this measurement and the previous one both show that it saves
        more time within this many rounds than it costs."""
        state, routing, lines = self._state, self._routing, forecast.lines
        held = routing.held(routing.routes)
        now_s = forecast.seconds(held)
        # no assignment of whole slices can be faster than this division of the bytes
        shares = water_fill([*lines.values()], sum(held.values()))
        divided = dict(zip(lines, shares, strict=True))
        goal = routing.routes
        if Prospect(now_s, forecast.seconds(divided)).pays(rounds, self._measured):
            goal = routing.propose(lines)
        prospect = self._prospect(forecast, now_s, goal)
        pays = prospect.pays(rounds, self._measured)
        state.wanted = state.wanted + 1 if pays else 0
        # a measurement of `elastic` is already a mean over many rounds
        if state.wanted < (1 if self._elastic else CONFIRMATIONS):
            return False
        state.wanted = 0
        self._note(forecast, prospect, goal, rounds)
        routing.adopt(goal)
        return True

    @property
    def _measured(self) -> int:
        """The number of measurements in the mean of each rate."""
        if self._elastic:
            return _ROUNDS
        return min(steady.count for steady in self._state.throughputs.values())

    def _prospect(self, forecast: Forecast, now_s: float, goal: Routes) -> Prospect:
        routing = self._routing
        assert routing.spec is not None
        fetched = {
            pair: moving_nbytes(self._job, routing.spec, nbytes)
            for pair, nbytes in routing.fetched(goal).items()
        }
        then_s = forecast.seconds(routing.held(goal))
        return Prospect(now_s, then_s, moving_s(fetched, forecast.rates), sum(fetched.values()))

    def _note(self, forecast: Forecast, prospect: Prospect, goal: Routes, rounds: int) -> None:
        routes = self._routing.routes
        changed = sum(now.primary != then.primary for now, then in zip(routes, goal, strict=True))
        self._outbox.note(
            "reassigned",
            scheme=self._job.placement,
            slowest=server_name(forecast.slowest(self._routing.held(routes))),
            now_s=prospect.now_s,
            then_s=prospect.then_s,
            gain=prospect.gain,
            slices=changed,
            nbytes=round(prospect.moving_nbytes),
            moving_s=prospect.moving_s,
            rounds=rounds,
        )


def forecast_hosts(
    job: JobSpec,
    traits: Traits,
    view: View,
    routing: RoutingTable,
    network: Network,
    throughputs: Mapping[str, float],
) -> Forecast | None:
    """The forecast that is made from the throughput of hosts, with the present servers and
    members."""
    workers: dict[str, int] = {}
    for member in view.members():
        host = network.host_of(worker_name(member.worker))
        workers[host] = workers.get(host, 0) + 1
    servers = routing.roster.staying
    return forecast_aware(
        routing.nbytes,
        {server: network.host_of(server_name(server)) for server in servers},
        workers,
        throughputs,
        network.rate,
        job.replicas,
        _sent_share(job),
        # pushes and pulls overlap without rounds, and if servers send sums while workers push
        overlaps=not traits.rounds or sums_only(job),
    )


_SENT = {"same": 1.0, "bf16": 0.5}


def _sent_share(job: JobSpec) -> float:
    """How many bytes are pushed and pulled per byte of a slice."""
    pulled = _SENT[job.wire_dtype]
    return (pulled + 0.25) / 2 if job.push == INT8 else pulled
