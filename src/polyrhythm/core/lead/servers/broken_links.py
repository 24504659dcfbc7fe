"""Handles a broken link between two processes that can both reach the lead: decides which of the
two must leave.

*A server reports a silent link, and a worker that rejoins reports a server that it cannot connect
to. The link is at fault, and not the process at its other end, if the lead has heard from that
process during the second half of the silence.*

*If one worker cannot reach one server, the lead excludes the worker and the others continue. The
worker stays in the job without taking part in rounds, tries to connect every few seconds, and takes
part again when all of its links work.*

*If most workers cannot reach a server, the server counts as lost, and its replicas take over.
Without replicas, the lead excludes these workers instead. If two servers cannot reach each other,
the one with more broken links counts as lost; if both have equally many, the one with the higher
number.*

*The lead's own server never counts as lost, nor does a server with the only copy of a slice. In
these cases the job waits for the link, and `polyrhythm why` names it.*
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from polyrhythm.core.lead.members.view import View
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.liveness import judged_link_s
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.names import server_name, server_number, worker_name, worker_number
from polyrhythm.core.seat import Seat
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import Field

_REPORTS_MISSED = 3
"""If a silence is not reported again for this many heartbeat intervals, it is over."""
_FORGOTTEN_NS = 60 * 10**9
"""An excluded worker that has not come back after this time is forgotten."""

Pair = tuple[str, str]
"""The names of two processes: a worker and a server, or two servers, the lower number first."""


def pair_of(one: str, other: str) -> Pair:
    return (one, other) if _rank(one) < _rank(other) else (other, one)


def _rank(name: str) -> tuple[bool, int]:
    server = server_number(name)
    return server is not None, int(name[1:]) if server is None else server


class Separation(msgspec.Struct, frozen=True):
    """The consequence of a broken link. `leaves`: the name of the process that must leave; None if
    the job waits for the link."""

    leaves: str | None
    reason: Reason


def judge(
    pair: Pair, broken: Collection[Pair], workers: int, may_lose: Callable[[int], bool]
) -> Separation:
    """Decide which process of a pair without a working link must leave. `broken`: all such pairs.
    `workers`: how many workers the job has. `may_lose`: whether the job can continue without this
    server."""
    worker, server = worker_number(pair[0]), server_number(pair[1])
    assert server is not None
    if worker is not None:
        cut = sorted(_workers_without(server, broken))
        fields: dict[str, Field] = {"server": server, "workers": cut}
        if 2 * len(cut) > workers and may_lose(server):
            return Separation(pair[1], Reason("server-cut-off", {**fields, "of": workers}))
        return Separation(pair[0], Reason("cut-off", {"worker": worker, "server": server}))
    numbers = [number for name in pair if (number := server_number(name)) is not None]
    links = {number: sum(server_name(number) in each for each in broken) for number in numbers}
    fields = {"servers": numbers}
    for number in sorted(numbers, key=lambda each: (links[each], each), reverse=True):
        if may_lose(number):
            (other,) = set(numbers) - {number}
            return Separation(server_name(number), Reason("servers-cut-off", {"by": other}))
    return Separation(None, Reason("servers-apart", fields))


def _workers_without(server: int, broken: Collection[Pair]) -> set[int]:
    """The workers that cannot reach this server."""
    near = (one for one, other in broken if other == server_name(server))
    return {worker for one in near if (worker := worker_number(one)) is not None}


@dataclass(slots=True)
class Broken:
    since_ns: int
    reported_ns: int
    lasts: bool = False
    """Whether the worker was excluded because of this link. The link then counts as broken until the
    worker is linked to all servers again."""


class BrokenLinksState(msgspec.Struct):
    links: dict[Pair, Broken] = {}


class BrokenLinks:
    def __init__(
        self,
        state: BrokenLinksState,
        job: m.JobSpec,
        view: View,
        routing: RoutingTable,
        seat: Seat,
    ) -> None:
        self._state = state
        self._seat = seat
        self._view = view
        self._routing = routing
        self._judged_s = judged_link_s(job.heartbeat_s)
        self._over_ns = round(_REPORTS_MISSED * job.heartbeat_s * 1e9)

    @property
    def any(self) -> bool:
        return bool(self._state.links)

    # -- reports -------------------------------------------------------------------------------

    def on_silent(self, message: m.Unreachable, heard_ns: int, now_ns: int) -> Separation | None:
        """Handle the report of a server that it has heard nothing from a peer for some time.
        `heard_ns`: when the lead last heard from that peer. Returns the consequence; None if it is
        not decided yet, or if the link is not at fault."""
        since_ns = now_ns - round(message.silent_s * 1e9)
        if heard_ns < (since_ns + now_ns) // 2:
            return None
        pair = pair_of(server_name(message.server), message.peer)
        link = self._state.links.setdefault(pair, Broken(since_ns, now_ns))
        link.reported_ns = now_ns
        return self._judge(pair, now_ns) if message.silent_s >= self._judged_s else None

    def on_unopened(self, worker: int, server: int, now_ns: int) -> Separation | None:
        """Handle the report of a rejoined worker that it cannot connect to a server; the worker
        tries again by itself. Returns the consequence for the server, if any."""
        pair = worker_name(worker), server_name(server)
        link = self._state.links.setdefault(pair, Broken(now_ns, now_ns))
        link.lasts, link.reported_ns = True, now_ns
        separation = self._judge(pair, now_ns)
        return separation if separation.leaves == pair[1] else None

    def _judge(self, pair: Pair, now_ns: int) -> Separation:
        self.expire(now_ns)
        present = {member.worker for member in self._view.members() if member.attached}
        present |= {
            worker for one, _ in self._state.links if (worker := worker_number(one)) is not None
        }
        return judge(pair, self._state.links, len(present), self._may_lose)

    def _may_lose(self, server: int) -> bool:
        return (
            server != self._seat.server
            and server in self._routing.roster.addresses
            and self._routing.spares(server)
        )

    # -- what has become of them ---------------------------------------------------------------

    def since_ns(self, worker: int, server: int) -> int:
        """The time since which the reported link of this pair has been silent."""
        return self._state.links[worker_name(worker), server_name(server)].since_ns

    def exclude(self, worker: int, server: int, since_ns: int, now_ns: int) -> None:
        """Remember that the worker is excluded until it is linked to this server again."""
        pair = worker_name(worker), server_name(server)
        self._state.links[pair] = Broken(since_ns, now_ns, lasts=True)

    def works(self, worker: int) -> list[tuple[int, int]]:
        """Note that this worker has a link to every server. Returns the servers that it could not
        reach before, each with the time since when."""
        name = worker_name(worker)
        before = [
            (server, link.since_ns)
            for (one, other), link in self._state.links.items()
            if one == name and link.lasts and (server := server_number(other)) is not None
        ]
        self.forget(worker)
        return before

    def forget(self, worker: int) -> None:
        """Forget a worker that has left the job."""
        name = worker_name(worker)
        if self._state.links:
            self._state.links = {
                pair: link for pair, link in self._state.links.items() if name not in pair
            }

    def expire(self, now_ns: int) -> None:
        """Forget links whose silence is no longer reported, and links of lost servers."""
        if self._state.links:
            self._state.links = {
                pair: link
                for pair, link in self._state.links.items()
                if self._counts(pair, link, now_ns)
            }

    def _counts(self, pair: Pair, link: Broken, now_ns: int) -> bool:
        servers = [server for name in pair if (server := server_number(name)) is not None]
        if not all(server in self._routing.roster.addresses for server in servers):
            return False
        limit_ns = _FORGOTTEN_NS if link.lasts else self._over_ns
        return now_ns - link.reported_ns <= limit_ns or (link.lasts and self._waits(pair))

    def _waits(self, pair: Pair) -> bool:
        """Whether the worker of this pair is in the job, and waits for the link."""
        worker = worker_number(pair[0])
        member = None if worker is None else self._view.at(worker)
        return member is not None and not member.attached

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadlines by the time in which the lead was paused."""
        for link in self._state.links.values():
            link.reported_ns += paused_ns

    def waiting(self, *, alone: bool) -> Waiting | None:
        """The wait for a link; None if the job waits for no link. `alone`: no member takes part in
        rounds, so the job waits for the excluded ones."""
        found = {pair: link for pair, link in self._state.links.items() if alone or not link.lasts}
        if not found:
            return None
        workers = sorted({w for one, _ in found if (w := worker_number(one)) is not None})
        servers = {s for pair in found for name in pair if (s := server_number(name)) is not None}
        fields: dict[str, Field] = {"servers": sorted(servers)}
        since_ns = min(link.since_ns for link in found.values())
        if not workers:
            return Waiting(Reason("servers-apart", fields), since_ns)
        code = "links-cut" if alone else "link-silent"
        return Waiting(Reason(code, {"workers": workers, **fields}), since_ns)
