"""The policy is asked, and what it decides becomes the lead's word: `Fold`, `Release`, `Pause`.

*A fold is put off while slices change their primary, or while something is owed to a server that was
promoted; and who has become a primary since it was told may not have heard it.*
"""

from collections.abc import Mapping

from polyrhythm.core.lead.contributions import Contributions
from polyrhythm.core.lead.members import Member, View
from polyrhythm.core.lead.outbox import TERM, LeadOutbox
from polyrhythm.core.lead.removals import Removals
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import Routing
from polyrhythm.core.machine import Reason
from polyrhythm.core.sync import policy as sync
from polyrhythm.wire import messages as m


class Folds:
    def __init__(
        self,
        policy: sync.SyncPolicy,
        view: View,
        placing: Routing,
        arrivals: Contributions,
        departures: Removals,
        rounds: Rounds,
        dispatch: LeadOutbox,
    ) -> None:
        self._policy = policy
        self._view = view
        self._placing = placing
        self._arrivals = arrivals
        self._departures = departures
        self._rounds = rounds
        self._dispatch = dispatch
        self.wake_ns: int | None = None
        """When the policy wants to be asked again."""
        self.frozen = False
        """Without rounds: servers have been told to fold nothing after this."""
        self._fold: m.Fold | None = None
        """What the servers were told last."""
        self._told_share = 1.0
        """The smallest share of a step that was noted."""
        self._put_off: tuple[frozenset[int], Reason, bool] | None = None
        """A fold that was decided while slices change their primary or are owed."""

    def ask(self, event: sync.PolicyEvent, now_ns: int) -> None:
        decision = self._policy.on(event, now_ns)
        self.wake_ns = decision.wake_at
        if decision.pause:
            self.pause()
        if decision.change is not None:
            said = decision.change
            self._dispatch.note("policy", code=said.code, fields=said.fields, words=str(said))
        if decision.fold:
            self.fold(decision.release, decision.reason, now_ns)
        elif decision.release:
            # without rounds, who passes the gate as it arrives has asked for its parameters already
            asked = sync.NO_WORKERS
            if isinstance(event, sync.MemberContributed) and not self._policy.traits.rounds:
                asked = frozenset((event.worker,))
            self.release(decision.release, asked)

    # -- folds ---------------------------------------------------------------------------------

    def open(self, entering: list[Member], now_ns: int) -> None:
        """Round 1, by the fold of round 0."""
        for member in entering:
            self._view.enter(member)
            self._policy.on(sync.Joined(member.worker), now_ns)
        self.fold(
            frozenset(member.worker for member in entering),
            Reason("opened", {"round": 1, "members": len(entering)}),
            now_ns,
        )

    def fold(
        self, release: frozenset[int], reason: Reason, now_ns: int, *, last: bool = False
    ) -> None:
        if self._policy.traits.rounds and (self._placing.moving or self._arrivals.owed):
            self._put_off = (release, reason, last)
            return
        members = self._view.specs()
        self._rounds.begin_fold(release, reason, members, now_ns)
        self._departures.told()
        self.frozen = last
        self._fold = m.Fold(
            term=TERM,
            view=self._view.epoch,
            routing=self._placing.epoch,
            round=self._rounds.round,
            readers=tuple(sorted(self._rounds.readers)) if self._policy.traits.rounds else (),
            members=members,
            last=last,
            share=self._rounds.share if self._policy.traits.rounds else 1.0,
        )
        self._dispatch.tell_servers(self._fold, self._placing.primaries)
        self._note_share(self._fold.share)

    def _note_share(self, share: float) -> None:
        """Once for each number of workers that have visited all of their points."""
        if share >= self._told_share:
            return
        self._told_share = share
        resting = self._rounds.resting
        fields = {"resting": resting, "members": len(self._rounds.members), "share": share}
        said = Reason("points-visited", fields)
        self._dispatch.note("policy", code=said.code, fields=said.fields, words=str(said))

    def fold_if_put_off(self, now_ns: int) -> None:
        if self._placing.moving or self._arrivals.owed or self._rounds.folding:
            return
        if self._put_off is not None:
            (release, reason, last), self._put_off = self._put_off, None
            self.fold(release, reason, now_ns, last=last)

    def folded(self, message: m.Folded) -> bool:
        """A server has folded; True if that was the last one."""
        if not self._placing.moving:
            return self._rounds.folded(message, self._placing.primaries)
        if not self._policy.traits.rounds:
            self._rounds.heard(message)
        return False

    def recount(self, versions: Mapping[int, int]) -> bool:
        """Others are primaries now, with these versions; True if that closes the fold."""
        if not self._rounds.folding:
            return False
        primaries, told = self._placing.primaries, self._rounds.told
        if self._policy.traits.rounds and self._rounds.round > 0:
            told = frozenset(s for s in primaries if versions[s] >= self._rounds.round)
        if self._rounds.reroute(primaries, told & primaries):
            return True
        if not self._arrivals.owed:
            self._tell_again()
        return False

    def paid(self) -> None:
        """Everything that was lost with a server is where it belongs, or nobody will send it."""
        if self._rounds.folding and not self._placing.moving:
            self._tell_again()

    def _tell_again(self) -> None:
        """Who is a primary only now, or has more slices than it had, may not have heard it."""
        assert self._fold is not None
        self._dispatch.tell_servers(self._fold, self._rounds.late(self._placing.primaries))

    # -- members -------------------------------------------------------------------------------

    def pause(self) -> None:
        """All are to contribute what they have."""
        for member in self._view.members():
            if member.entered:
                identity = self._dispatch.identity(member)
                self._dispatch.tell(member, m.Pause(**identity, round=self._rounds.round + 1))

    def release(self, release: frozenset[int], readers: frozenset[int]) -> None:
        at, enlisted = self._view.at, self._rounds.enlisted
        for worker in self._rounds.last_first(release):
            member = at(worker)
            # who came back while the servers folded is unknown to them, and enters at the next fold
            if member is not None and member.key in enlisted:
                member.resting = False
                self.release_one(member, readers)

    def release_one(
        self, member: Member, readers: frozenset[int], *, stop: bool = False, reason: str = ""
    ) -> None:
        terms = self._policy.terms(member.worker)
        release = m.Release(
            term=TERM,
            view=self._view.epoch,
            routing=self._placing.epoch,
            worker=member.worker,
            incarnation=member.incarnation,
            round=self._rounds.round,
            pushed=member.worker in readers,
            stop=stop,
            reason=reason,
            steps=terms.steps,
            interval_ns=terms.interval_ns,
            points=terms.points,
            probe=self._rounds.part_of(member.worker) if terms.probe else (0, 0),
        )
        self._dispatch.tell(member, release)
