"""Writes the measurements of links to the journal.

*An entry contains all measured rates, the throughput of each host, and a forecast: the server on
which a round takes longest. The lead writes an entry when a link is measured for the first time, or
when a rate has changed by a tenth since the last entry, but at most every ten seconds.*
"""

import msgspec

from polyrhythm.core.lead.members.view import View
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.servers.placement import forecast_hosts
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.names import server_name
from polyrhythm.core.placement.forecast import is_rate
from polyrhythm.core.placement.network import Network
from polyrhythm.core.sync.policy import Traits
from polyrhythm.wire.messages import JobSpec

_EVERY_NS = 10 * 10**9
_CHANGED = 0.1

Rates = dict[str, dict[str, float]]


class LinkReportState(msgspec.Struct):
    noted: Rates = {}
    """The rates in the last entry of the journal, per source host and target host."""
    noted_ns: int = 0


class LinkReport:
    def __init__(
        self,
        state: LinkReportState,
        job: JobSpec,
        traits: Traits,
        view: View,
        routing: RoutingTable,
        network: Network,
        outbox: LeadOutbox,
    ) -> None:
        self._state = state
        self._job = job
        self._traits = traits
        self._view = view
        self._routing = routing
        self._network = network
        self._outbox = outbox

    def on_settled(self, now_ns: int) -> None:
        """Write an entry if one is due, after the averages of rates have changed."""
        state = self._state
        rates = {
            source: {target: rate for target, rate in to.items() if is_rate(rate)}
            for source, to in self._network.rates.items()
        }
        if state.noted and now_ns < state.noted_ns + _EVERY_NS:
            return
        if not _is_news(state.noted, rates):
            return
        state.noted, state.noted_ns = rates, now_ns
        known = {host: self._network.throughput(host) for host in self._network.hosts}
        throughputs = {host: rate for host, rate in known.items() if is_rate(rate)}
        self._outbox.note(
            "links",
            rates={
                source: {target: round(rate) for target, rate in to.items()}
                for source, to in rates.items()
            },
            throughputs={host: round(rate) for host, rate in throughputs.items()},
            hosts=self._network.residents,
            **self._slowest(throughputs),
        )

    def _slowest(self, throughputs: dict[str, float]) -> dict[str, object]:
        """The server on which the transfers of a round take longest, and how long."""
        routing = self._routing
        forecast = forecast_hosts(
            self._job, self._traits, self._view, routing, self._network, throughputs
        )
        if forecast is None or not routing.routes:
            return {}
        held = routing.held(routing.routes)
        return {"slowest": server_name(forecast.slowest(held)), "seconds": forecast.seconds(held)}


def _is_news(before: Rates, now: Rates) -> bool:
    if not any(now.values()):
        return False
    if {source: set(to) for source, to in now.items()} != {s: set(to) for s, to in before.items()}:
        return True
    return any(
        abs(rate - before[source][target]) > _CHANGED * before[source][target]
        for source, to in now.items()
        for target, rate in to.items()
    )
