"""Says what the lead waits for, and when the journal mentions a wait.

*If the round waits for a link, the reason names both ends of the link. If it waits for a server
that has not reported or folded contributions, the reason names this server instead of the workers
that sent them.*
"""

from typing import Any

import msgspec

from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.progress.progress import STOPPED
from polyrhythm.core.lead.rounds.modes import Mode
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.wire.messages.reasons import Field

_WORTH_NOTING_NS = 10**9
"""The journal mentions a wait that has lasted this long, and again after each further wait of this
length."""
_LOOK_EVERY_NS = 250 * 10**6


class WaitReportState(msgspec.Struct):
    noted_ns: int = 0
    look_ns: int = 0


class WaitReport:
    def __init__(self, state: WaitReportState, parts: Parts, mode: Mode) -> None:
        self._state = state
        self._mode = mode
        self._served = parts.job.served
        self._policy = parts.policy
        self._view = parts.view
        self._routing = parts.routing
        self._opening = parts.opening
        self._contributions = parts.contributions
        self._broken = parts.broken
        self._rounds = parts.rounds
        self._saving = parts.saving
        self._ending = parts.ending
        self._limit = parts.progress.goals.limit

    def why(self) -> Waiting:
        routing, opening = self._routing, self._opening
        if self._saving.active:
            return self._for_failover() or self._saving.waiting()
        goal = self._ending.goal
        if goal is not None and not self._rounds.folding:
            present = [member.worker for member in self._view.members()]
            code = "stopping" if goal.code == STOPPED.code else "ending"
            return Waiting(Reason(code, {"workers": present}), self._rounds.moved_ns)
        if self._rounds.open and self._served and not len(self._view):
            return Waiting(Reason("no-workers"), self._rounds.moved_ns)
        if self._rounds.open:
            waiting = self._for_failover() or self._for_links() or self._for_servers()
            return waiting or self._policy.why()
        if routing.spec is not None and not routing.all_placed:
            return Waiting(Reason("placing"), opening.since_ns)
        if routing.seeding.seeder is not None and not routing.all_seeded:
            seeding = Reason("seeding", {"workers": [routing.seeding.seeder]})
            return Waiting(seeding, opening.since_ns)
        gathering = Reason("gathering", {"absent": opening.missing(self._view.attached)})
        # when the start timeout is over, only the time limit ends the wait for the first model
        until_ns = opening.deadline.wake_ns or self._limit.deadline.wake_ns
        return Waiting(gathering, opening.since_ns, until_ns)

    def line(self, now_ns: int) -> dict[str, Any] | None:
        """The fields of a journal entry if one is due."""
        if now_ns < self._state.look_ns:
            return None
        self._state.look_ns = now_ns + _LOOK_EVERY_NS
        waiting = self.why()
        since_ns = max(waiting.since_ns, self._state.noted_ns)
        if waiting.reason.code in ("none", "going") or now_ns < since_ns + _WORTH_NOTING_NS:
            return None
        self._state.noted_ns = now_ns
        until_ns = waiting.until_ns
        return {
            **waiting.reason.noted(),
            "since_s": (now_ns - waiting.since_ns) / 1e9,
            "until_s": None if until_ns is None else (until_ns - now_ns) / 1e9,
        }

    def _for_failover(self) -> Waiting | None:
        """The wait for failover after a server was lost: the other servers must apply new routes,
        and workers must send contributions again."""
        change = self._routing.change
        if change is not None and change.lost:
            fields: dict[str, Field] = {
                "lost": change.lost[-1],
                "servers": list(self._routing.late),
            }
            return Waiting(Reason("failover", fields), change.since_ns)
        if change is not None and change.promoted:
            late: dict[str, Field] = {"servers": list(self._routing.late)}
            return Waiting(Reason("moving", late), change.since_ns)
        if self._contributions.owed:
            workers, servers = self._contributions.owing()
            fields = {"workers": sorted(workers), "servers": sorted(servers)}
            return Waiting(Reason("resending", fields), self._rounds.moved_ns)
        return None

    def _for_links(self) -> Waiting | None:
        """The wait for a link between two processes that both reach the lead."""
        if not self._broken.any:
            return None
        alone = not any(member.entered for member in self._view.members())
        return self._broken.waiting(alone=alone)

    def _for_servers(self) -> Waiting | None:
        """The wait for servers that have not folded, or that have not reported contributions whose
        trailers have come."""
        moved_ns = self._rounds.moved_ns
        if self._rounds.folding:
            late = sorted(self._rounds.late(self._routing.primaries))
            folding = Reason("folding", {"round": self._rounds.round, "servers": late})
            return Waiting(folding, moved_ns)
        if (waiting := self._mode.waiting()) is not None:
            return waiting
        workers, servers = self._contributions.late(self._routing.primary_since)
        by_policy = self._policy.why()
        held = sorted(workers)
        if not workers or by_policy.reason.fields.get("missing", held) != held:
            return None
        fields: dict[str, Field] = {"held": held, "servers": sorted(servers)}
        return Waiting(Reason("unreported", fields), moved_ns, by_policy.until_ns)
