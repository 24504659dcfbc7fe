"""The lead's orders: it asks the policy, and sends `Fold` to servers and `Release` and `Pause` to
members. The mode (`modes.py`) decides when a fold is ordered and when it is over."""

from polyrhythm.core.lead.contributions import Contributions
from polyrhythm.core.lead.members import Member, View
from polyrhythm.core.lead.outbox import TERM, LeadOutbox
from polyrhythm.core.lead.progress import JobProgress
from polyrhythm.core.lead.removals import Removals
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import RoutingTable
from polyrhythm.core.machine import Reason
from polyrhythm.core.sync import policy as sync
from polyrhythm.wire import messages as m


class Folds:
    def __init__(
        self,
        policy: sync.SyncPolicy,
        view: View,
        routing: RoutingTable,
        removals: Removals,
        rounds: Rounds,
        outbox: LeadOutbox,
        progress: JobProgress,
        contributions: Contributions | None = None,
    ) -> None:
        """`contributions`: given only with kind statistics, where each fold names the contributions
        that it contains."""
        self._policy = policy
        self._view = view
        self._routing = routing
        self._removals = removals
        self._rounds = rounds
        self._outbox = outbox
        self._progress = progress
        self._contributions = contributions
        self.wake_ns: int | None = None
        """The time at which the policy must be asked again, even if no event comes before it."""
        self._whole_only = False
        """Kind statistics: whether workers keep their parameters after the present version."""
        self._fold: m.Fold | None = None
        """The last `Fold` that was sent to the servers."""

    def consult(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        """Ask the policy. If it decides to pause the workers, or has changed a parameter, this
        method sends the pause and writes the journal. The caller carries out the fold or the
        release."""
        decision = self._policy.on(event, now_ns)
        self.wake_ns = decision.wake_at
        if decision.pause:
            self.pause()
        if decision.change is not None:
            self.note(decision.change)
        return decision

    def note(self, change: Reason) -> None:
        """Write to the journal which of the policy's parameters has changed."""
        self._outbox.note("policy", **change.noted())

    def hold(self, whole_only: bool, change: Reason | None) -> None:
        """Kind statistics: tell workers with their releases whether to keep their parameters if points
        are missing from the sum, and write a change to the journal."""
        self._whole_only = whole_only
        if change is not None:
            self._outbox.note("m-steps", **change.noted())

    # -- orders to servers ---------------------------------------------------------------------

    def begin(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        """Record that the next fold begins. `send` then sends the order to the servers."""
        self._rounds.begin_fold(release, reason, self._view.specs(), now_ns)
        self._removals.told()

    def send(self, *, readers: tuple[int, ...] = (), share: float = 1.0, last: bool) -> None:
        """Order the fold that was begun. `readers`: workers to which the new version is pushed.
        `last`: servers fold nothing after this fold."""
        self._fold = m.Fold(
            term=TERM,
            view=self._view.epoch,
            routing=self._routing.epoch,
            round=self._rounds.round,
            readers=readers,
            members=self._rounds.members,
            last=last,
            share=share,
            rows=self._rows(),
        )
        self._outbox.tell_servers(self._fold, self._routing.primaries)

    def _rows(self) -> tuple[m.Row, ...]:
        """Kind statistics: the rows of the version. *They contain the contributions that are
        complete now, so every primary has them.*"""
        if self._contributions is None:
            return ()
        return self._contributions.name(self._rounds.members, self._rounds.round)

    def send_again(self) -> None:
        """Repeat the order to all primaries that have not answered it. A server that has just become
        a primary, or has got more slices, may not have received the order for all of its slices."""
        assert self._fold is not None
        self._outbox.tell_servers(self._fold, self._rounds.late(self._routing.primaries))

    # -- orders to members ---------------------------------------------------------------------

    def pause(self) -> None:
        """Tell every member to contribute the points that it has visited so far."""
        for member in self._view.members():
            if member.entered:
                identity = self._outbox.identity(member)
                self._outbox.tell(member, m.Pause(**identity, round=self._rounds.round + 1))

    def release(self, release: frozenset[int], readers: frozenset[int]) -> None:
        """Let these workers continue. The new version is pushed to `readers`; the other workers
        pull it."""
        at, enlisted = self._view.at, self._rounds.enlisted
        for worker in self._rounds.last_first(release):
            member = at(worker)
            # Servers learn with the next fold that a worker has rejoined during this fold. Until
            # then it cannot read a version, so it is not released.
            if member is not None and member.key in enlisted:
                member.resting = False
                self.release_one(member, readers)

    def _share(self, member: Member, terms: sync.RoundTerms) -> tuple[int, int]:
        """Which part of the probe sample the member evaluates; (0, 0) if none. *Together the members
        evaluate every point whose position is a multiple of `probe_parts`, however many members there
        are, because values of the objective are compared also after a worker has joined or left.*"""
        part, parts = self._rounds.part_of(member.worker) if terms.probe else (0, 0)
        return part * terms.probe_parts, parts * terms.probe_parts

    def release_one(self, member: Member, readers: frozenset[int], *, stop: bool = False) -> None:
        terms = self._policy.terms(member.worker)
        release = m.Release(
            term=TERM,
            view=self._view.epoch,
            routing=self._routing.epoch,
            worker=member.worker,
            incarnation=member.incarnation,
            round=self._rounds.round,
            pushed=member.worker in readers,
            stop=stop,
            steps=terms.steps,
            interval_ns=terms.interval_ns,
            points=terms.points,
            probe=self._share(member, terms),
            torn=self._contributions is not None and self._contributions.torn(self._rounds.round),
            whole_only=self._whole_only,
            progress=self._progress.told(),
            rank=self._rounds.rank_of(member.worker),
        )
        self._outbox.tell(member, release)

    def tell_progress(self, member: Member) -> None:
        """Tell a member that is not released after its contribution how far the job has come."""
        identity, rank = self._outbox.identity(member), self._rounds.rank_of(member.worker)
        message = m.Progressed(**identity, progress=self._progress.told(), rank=rank)
        self._outbox.tell(member, message)
