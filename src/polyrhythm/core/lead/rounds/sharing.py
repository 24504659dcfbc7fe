"""Jobs with `--optimizer-on workers`: which members have the present version, and which member
sends it to the servers when they need it.

*After a round, a server publishes only the sum of the gradients. A worker that has the previous
version makes the step with this sum.*

*Servers need the parameters and the optimizer's state in three cases: a worker joins, a checkpoint
is taken, or a model is saved. Then one worker shares the present version: it sends its parameters
and state to the primaries. The next fold waits until every primary has received them* (decision
122). If that worker is lost, or slices get new primaries, the lead asks a worker again. The job
ends if neither a member nor the servers have the present version.
"""

from enum import Enum

import msgspec

from polyrhythm.core.kinds import sums_only
from polyrhythm.core.lead.members.evaluator import Chosen
from polyrhythm.core.lead.members.view import Member, View
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.rounds.folds import Rounds
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.machine import Reason
from polyrhythm.wire import messages as m

_NONE = (-1, 0)


class Has(Enum):
    """What a member has of the present version. A member that is not listed has nothing."""

    BEFORE = "before"
    """The previous version. The member is not released with the present one yet."""
    STEPS = "steps"
    """The previous version and the release, so the member makes the step."""
    READS = "reads"
    """Only the release, so the member reads the present version from the servers."""


_AFTER_A_FOLD = {Has.STEPS: Has.BEFORE, Has.READS: Has.BEFORE}
"""What a member has when the next version is made. A member that was not released with the present
one has nothing."""
_WHEN_RELEASED = {
    None: Has.READS,
    Has.BEFORE: Has.STEPS,
    Has.STEPS: Has.STEPS,
    Has.READS: Has.READS,
}


class SharingState(msgspec.Struct):
    active: bool = False
    """Whether workers make the optimizer's steps."""
    pending: bool = False
    """Whether a worker shares the present version, and some primary has not received it yet."""
    sharer: tuple[int, int] = _NONE
    """The member that shares the version."""
    holders: set[int] = set()
    """The primaries that have received the shared version."""
    members: dict[tuple[int, int], Has] = {}

    @classmethod
    def begin(cls, job: m.JobSpec) -> "SharingState":
        return cls(sums_only(job))


class Sharing:
    def __init__(
        self,
        state: SharingState,
        view: View,
        routing: RoutingTable,
        rounds: Rounds,
        evaluator: Chosen,
        outbox: LeadOutbox,
    ) -> None:
        """`evaluator`: the member that evaluates the model. If it has the version, it shares it."""
        self._state = state
        self._view = view
        self._routing = routing
        self._rounds = rounds
        self._evaluator = evaluator
        self._outbox = outbox

    @property
    def pending(self) -> bool:
        """Whether the next fold must wait, because a worker shares the present version."""
        return self._state.pending

    @property
    def sharer(self) -> str:
        """The name of the member that shares the version; empty if there is none."""
        member = self._view.get(*self._state.sharer) if self._state.pending else None
        return "" if member is None else member.name

    def on_folded(self) -> None:
        """Note that a fold is complete. Its version is now the present one, and only workers have
        it."""
        state, round_ = self._state, self._rounds.round
        if not state.active or round_ == 0:
            return
        state.members = {
            key: _AFTER_A_FOLD[has] for key, has in state.members.items() if has in _AFTER_A_FOLD
        }
        self._rounds.unshared = True

    def lacks(self, member: Member) -> bool:
        """Whether a member that is released now needs the parameters and the state, because it
        lacks the previous version. If so, this call asks a worker to share them."""
        state = self._state
        if not state.active:
            return False
        key = member.key
        state.members[key] = _WHEN_RELEASED[state.members.get(key)]
        lacks = state.members[key] is Has.READS
        if lacks:
            self.ask()
        return lacks

    def ask(self) -> bool:
        """Let a worker share the present version, unless the servers have it or receive it already.
        Returns whether they have it."""
        if self._rounds.unshared and not self._state.pending:
            self._state.pending, self._state.holders = True, set()
            self._choose()
        return not self._rounds.unshared

    def _choose(self) -> None:
        able = self._able()
        if not able:
            self._state.sharer = _NONE
            return
        chosen, awaits = (self._evaluator.worker, self._evaluator.incarnation), self._rounds.awaits
        # a hanging worker would keep the version waiting until no other worker is left
        member = min(able, key=lambda e: (not awaits(e.worker), e.key != chosen, e.worker))
        self._state.sharer = member.key
        # workers do not get routes that only add or drop copies
        since = max(self._routing.primary_since.values())
        identity = self._outbox.identity(member) | {"routing": since}
        self._outbox.tell(member, m.Share(**identity, round=self._rounds.round))

    def _able(self) -> list[Member]:
        """The members that have the present version, or make it from the previous one."""
        has, able = self._state.members, (Has.BEFORE, Has.STEPS)
        return [member for member in self._view.members() if has.get(member.key) in able]

    def on_holding(self, message: m.Holding) -> bool:
        """Note that a primary has received the version. Returns whether every primary has it
        now."""
        state, primaries = self._state, self._routing.primaries
        known = message.routing >= self._routing.primary_since.get(message.server, 0)
        if not state.pending or message.round != self._rounds.round or not known:
            return False
        state.holders.add(message.server)
        if not state.holders >= primaries:
            return False
        state.pending, self._rounds.unshared = False, False
        for member in self._view.members():
            done = m.Share(**self._outbox.identity(member), round=message.round, done=True)
            self._outbox.tell(member, done)
        return True

    def on_removed(self, key: tuple[int, int]) -> None:
        """Handle the removal of a member. If it was to share the version, another member must do
        so."""
        state = self._state
        state.members.pop(key, None)
        if state.pending and state.sharer == key:
            self._choose()

    def on_promoted(self) -> None:
        """Handle a change of primaries. The new primaries have only the sums of the gradients of
        their new slices. If a worker shares the version, or a worker may still read it, a worker
        shares it again."""
        state = self._state
        if not state.active or self._rounds.round == 0 or self._rounds.folding:
            return  # after a fold under way, only workers have its version anyway
        again = state.pending or Has.READS in state.members.values()
        state.pending, self._rounds.unshared = False, True
        if again:
            self.ask()

    @property
    def only_on_servers(self) -> bool:
        """Whether the servers have the present version and no member has it. *Then no slice may
        move: servers copy only sums to each other, so the slice's parameters would be lost.*"""
        shared = self._state.active and self._rounds.round > 0 and not self._rounds.unshared
        return shared and not self._able()

    @property
    def lost(self) -> Reason | None:
        """The reason to end the job if no process has the present version any more; else None."""
        if not self._rounds.unshared or self._able():
            return None
        return Reason("state-lost", {"round": self._rounds.round})
