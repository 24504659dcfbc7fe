"""What the lead waits for, and when that is worth a line of the journal.

*A server that owes a fold, or what everybody who is missing has sent to it, is named, and no worker.*
"""

from collections.abc import Iterable
from typing import Any

from polyrhythm.core.effects import server_name, worker_name
from polyrhythm.core.lead.contributions import Contributions
from polyrhythm.core.lead.in_flight import InFlight
from polyrhythm.core.lead.members import View
from polyrhythm.core.lead.opening import Opening
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import Routing
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.policy import SyncPolicy

_WORTH_SAYING_NS = 10**9
"""A wait that is longer than this is noted, and noted again after as long."""
_LOOK_EVERY_NS = 250 * 10**6


class WaitReport:
    def __init__(
        self,
        policy: SyncPolicy,
        view: View,
        placing: Routing,
        opening: Opening,
        arrivals: Contributions,
        windows: InFlight,
        rounds: Rounds,
    ) -> None:
        self._policy = policy
        self._view = view
        self._placing = placing
        self._opening = opening
        self._arrivals = arrivals
        self._windows = windows
        self._rounds = rounds
        self._said_ns = 0
        self._look_ns = 0

    def why(self, ending: Reason | None) -> Waiting:
        """`ending`: the goal that is reached, if so."""
        placing, opening = self._placing, self._opening
        if ending is not None and not self._rounds.folding:
            present = _workers(member.worker for member in self._view.members())
            return Waiting(Reason("ending", {"workers": present}), self._rounds.moved_ns)
        if self._rounds.open:
            return self._by_failover() or self._by_servers() or self._policy.why()
        if placing.spec is not None and not placing.all_placed:
            return Waiting(Reason("placing"), opening.since_ns)
        if placing.seeder is not None and not placing.all_seeded:
            seeding = Reason("seeding", {"worker": worker_name(placing.seeder)})
            return Waiting(seeding, opening.since_ns)
        gathering = Reason("gathering", {"missing": opening.missing(self._view.attached)})
        return Waiting(gathering, opening.since_ns, opening.until_ns)

    def line(self, ending: Reason | None, now_ns: int) -> dict[str, Any] | None:
        """The fields of a journal line if one is due."""
        if now_ns < self._look_ns:
            return None
        self._look_ns = now_ns + _LOOK_EVERY_NS
        waiting = self.why(ending)
        since_ns = max(waiting.since_ns, self._said_ns)
        if waiting.reason.code in ("none", "going") or now_ns < since_ns + _WORTH_SAYING_NS:
            return None
        self._said_ns = now_ns
        until_ns = waiting.until_ns
        return {
            "reason": waiting.reason.code,
            "fields": waiting.reason.fields,
            "since_s": (now_ns - waiting.since_ns) / 1e9,
            "until_s": None if until_ns is None else (until_ns - now_ns) / 1e9,
        }

    def _by_failover(self) -> Waiting | None:
        change = self._placing.change
        if change is not None and change.lost:
            fields = {"lost": change.lost[-1], "servers": _servers(self._placing.late)}
            return Waiting(Reason("failover", fields), change.since_ns)
        if self._arrivals.owed:
            workers, servers = self._arrivals.owing()
            fields = {"workers": _workers(sorted(workers)), "servers": _servers(sorted(servers))}
            return Waiting(Reason("resending", fields), self._rounds.moved_ns)
        return None

    def _by_servers(self) -> Waiting | None:
        """A server owes a fold, or what everybody who is missing has sent to it: then it is the
        server that is waited for, and no worker."""
        moved_ns = self._rounds.moved_ns
        if self._rounds.folding:
            late = _servers(sorted(self._rounds.late(self._placing.primaries)))
            folding = Reason("folding", {"round": self._rounds.round, "servers": late})
            return Waiting(folding, moved_ns)
        if not self._policy.traits.rounds and (full := self._windows.full()) is not None:
            workers, since_ns = full
            _, servers = self._arrivals.late(self._placing.primary_since, workers)
            fields = {"held": _workers(sorted(workers)), "servers": _servers(sorted(servers))}
            return Waiting(Reason("window", fields), since_ns)
        workers, servers = self._arrivals.late(self._placing.primary_since)
        paced = self._policy.why()
        held = _workers(sorted(workers))
        if not workers or paced.reason.fields.get("missing", held) != held:
            return None
        fields = {"held": held, "servers": _servers(sorted(servers))}
        return Waiting(Reason("unreported", fields), moved_ns, paced.until_ns)


def _workers(numbers: Iterable[int]) -> str:
    return ", ".join(map(worker_name, numbers))


def _servers(numbers: Iterable[int]) -> str:
    return ", ".join(map(server_name, numbers))
