"""`Rounds` keeps the state of the open round and of the fold that closes it. `Folds` asks the
policy and sends the lead's orders. The mode (`modes.py`) decides when to order a fold and when the
fold is complete."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from polyrhythm.core.lead.members.view import Member, View
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.progress.progress import JobProgress
from polyrhythm.core.lead.rounds.contributions import Contributions
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.machine import Reason
from polyrhythm.core.sync import policy as sync
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import Folded, MemberSpec

_NOT_OPEN = -1


class Rounds(msgspec.Struct):
    """The open round, and the fold that closes it."""

    round: int = _NOT_OPEN
    open: bool = False
    """Whether round 1 has opened."""
    reason: Reason = Reason("none")
    """Why the last fold was ordered."""
    fold: m.Fold | None = None
    """The last `Fold` that was sent to the servers."""
    wake_ns: int | None = None
    """The time at which the policy must be asked again, even if no event comes before it."""
    whole_only: bool = False
    """Kind statistics: whether workers keep their parameters when the sum of the present version
    lacks points."""
    release: frozenset[int] = frozenset()
    """The workers that continue when the fold is complete."""
    readers: frozenset[int] = frozenset()
    """The workers that receive the new version without a request."""
    members: tuple[MemberSpec, ...] = ()
    """The members that the servers know of."""
    enlisted: frozenset[tuple[int, int]] = frozenset()
    """The members in `members`, as pairs of worker and incarnation. Only these workers can read
    the version."""
    moved_ns: int = 0
    """When the last contribution became complete, or the last fold was ordered."""
    folds: dict[int, int] = {}
    """Per server, how many folds on it contained a contribution."""
    resting: int = 0
    """How many workers abstained from the last fold although they had contributed before."""
    taking_part: float = 1.0
    """The share of the workers with points that contributed to the last fold."""
    share: float = 1.0
    """The points of the last fold as a share of a whole batch of every worker with points; at most
    1."""
    unshared: bool = False
    """Whether only workers have the parameters of the present version (`sharing.py`)."""
    _workers: frozenset[int] = frozenset()
    """The workers in `members`."""
    _ranks: dict[int, int] | None = None
    """Per member, its rank by worker number; None until it is needed."""
    _folding: set[int] | None = None
    """The servers that have answered the fold under way; None if no fold is under way."""
    _kept_open: bool = False
    """Whether every primary has answered the fold under way, and slices get new primaries before it
    is over."""
    _arrived: dict[int, float] = {}
    """The workers whose contribution became complete since the last fold was ordered, in that
    order. Per worker, the points of the contribution as a share of a whole batch."""
    _order: tuple[int, ...] = ()
    """The workers that contributed to the last fold. The last to arrive comes first."""
    _rested: set[int] = set()
    """The workers that have contributed before, and have abstained since the last fold was
    ordered."""
    _contributed: set[int] = set()
    """The workers that have ever contributed."""

    @property
    def folding(self) -> bool:
        """Whether some primary has not answered the fold under way yet."""
        return self._folding is not None

    @property
    def opening(self) -> bool:
        """Whether the fold of round 0, which makes the first version, is under way."""
        return self.round == 0 and self._folding is not None

    @property
    def folded(self) -> int:
        """The last round that every primary has folded."""
        return self.round if self._folding is None or self._kept_open else self.round - 1

    def keep_open(self) -> None:
        """Keep workers waiting although every primary has folded: slices get new primaries
        first."""
        self._folding, self._kept_open = set(), True

    def begin_fold(
        self,
        release: frozenset[int],
        reason: Reason,
        members: tuple[MemberSpec, ...],
        now_ns: int,
    ) -> None:
        """Begin the fold of the next round. Round 1 is opened by the fold of round 0."""
        self.round += 1
        self.open = True
        self.moved_ns = now_ns
        self.share = self._share()
        self._order, self._arrived = tuple(reversed(self._arrived)), {}
        self._rested = set()
        self.release, self.reason = release, reason
        before, stayed = self.enlisted, self._workers
        if members != self.members:
            self.members = members
            self.enlisted = frozenset((spec.worker, spec.incarnation) for spec in members)
            self._workers = frozenset(spec.worker for spec in members)
            stayed = frozenset(worker for worker, _ in self.enlisted & before)
            self._ranks = None
        self.readers = release & stayed
        self._folding = set()

    def on_arrived(self, worker: int, round_: int, part: float = 1.0) -> None:
        """Note a complete contribution, unless the last fold contained it. `part`: its points as a
        share of a whole batch."""
        self._contributed.add(worker)
        if round_ > self.round:
            self._arrived.pop(worker, None)
            self._arrived[worker] = part

    def on_abstained(self, worker: int) -> None:
        if worker in self._contributed:
            self._rested.add(worker)

    def on_left(self, worker: int) -> None:
        """Note the removal of a worker. It no longer counts as resting, but its contributions still
        count."""
        self._rested.discard(worker)

    def _share(self) -> float:
        """The fraction of a full step that the next fold makes. *A worker that has visited all of
        its points still counts in the mean, with a change of zero.* If it did not count, steps
        would become noisier: when only one worker is left, the step would use one batch, but with
        the learning rate that was chosen for the batches of all workers. A worker that never had
        any points does not count. For the same reason, a round that the clock ends before every
        worker has visited a whole batch makes a part of a step."""
        self.resting = len(self._rested.difference(self._arrived))
        contributed = len(self._arrived)
        self.taking_part = contributed / (contributed + self.resting) if contributed else 1.0
        parts = sum(self._arrived.values())
        return min(1.0, parts / (contributed + self.resting)) if contributed else 1.0

    def awaits(self, worker: int) -> bool:
        """Whether this worker waits for the present version: the fold that made it contains the
        worker's contribution. After a stop that did not wait, the fold may lack contributions of
        workers that still compute."""
        return worker in self._order

    def last_first(self, workers: frozenset[int]) -> list[int]:
        """The workers in the order of their release. The last to arrive is released first, because
        the next round will probably wait for it again."""
        arrived = [worker for worker in self._order if worker in workers]
        return [*arrived, *sorted(workers.difference(arrived))]

    def on_folded(self, message: Folded, primaries: frozenset[int]) -> bool:
        """Note that a server has folded. Returns True if all primaries have folded now: then the
        fold is complete."""
        if self._folding is None or message.round != self.round:
            return False
        self._folding.add(message.server)
        if message.weight:
            self.folds[message.server] = self.folds.get(message.server, 0) + 1
        return self._close_if(primaries)

    def on_answered(self, message: Folded) -> None:
        """Note that a server has answered the fold while primaries change. The fold can become
        complete only after that change."""
        if self._folding is not None and message.round == self.round:
            self._folding.add(message.server)

    def _close_if(self, primaries: frozenset[int]) -> bool:
        if self._folding is None or not self._folding >= primaries:
            return False
        self._folding, self._kept_open = None, False
        return True

    def reroute(self, primaries: frozenset[int], folded: frozenset[int]) -> bool:
        """Follow a change of primaries. The primaries in `folded` have folded all slices that they
        have now. Returns True if the fold is complete now."""
        if self._folding is None:
            return False
        self._folding = set(folded)
        return self._close_if(primaries)

    @property
    def told(self) -> frozenset[int]:
        """The servers that have answered the fold under way."""
        return frozenset(self._folding or ())

    def late(self, primaries: frozenset[int]) -> frozenset[int]:
        """The primaries that have not answered the fold under way."""
        return primaries - (primaries if self._folding is None else self._folding)

    def on_folded_one(self, server: int) -> None:
        """Note, in a job without rounds, that a server has folded a contribution."""
        self.folds[server] = self.folds.get(server, 0) + 1

    def part_of(self, worker: int) -> tuple[int, int]:
        """A member's rank and the number of members, for work that all members share; (0, 0) for a
        worker that the servers do not know."""
        rank = self.rank_of(worker)
        return (0, 0) if self._ranks is None or rank < 0 else (rank, len(self._ranks))

    def rank_of(self, worker: int) -> int:
        """The rank of a member by its worker number; -1 for a worker that the servers do not know."""
        if self._ranks is None:
            members = sorted(number for number, _ in self.enlisted)
            self._ranks = {number: rank for rank, number in enumerate(members)}
        return self._ranks.get(worker, -1)

    def check(self, primaries: frozenset[int]) -> None:
        if self._folding is not None and self._folding >= primaries:
            raise InvariantBroken("every primary has folded, but the fold was not closed")


class Folds:
    """Asks the policy, and sends `Fold` to servers and `Release` and `Pause` to members.

    *Workers are released when every primary has folded. Servers publish the new version only to
    workers that were members at the previous fold. A new member pulls its first version, because a
    published version could arrive before the routes.*

    Without rounds a fold changes no parameters. It tells the servers which workers are members.
    """

    def __init__(
        self,
        policy: sync.SyncPolicy,
        view: View,
        routing: RoutingTable,
        rounds: Rounds,
        outbox: LeadOutbox,
        progress: JobProgress,
        lacks: Callable[[Member], bool] = lambda member: False,
        contributions: Contributions | None = None,
    ) -> None:
        """`lacks`: whether a member that is released needs the parameters and the state
        (`sharing.py`). `contributions`: given only with kind statistics, where each fold names the
        contributions that it contains."""
        self._policy = policy
        self._view = view
        self._routing = routing
        self._rounds = rounds
        self._outbox = outbox
        self._progress = progress
        self._lacks = lacks
        self._contributions = contributions

    def consult(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        """Ask the policy. If it wants to pause the workers, or has changed a parameter, send the
        pause and write to the journal. The caller performs the fold or the release."""
        decision = self._policy.on(event, now_ns)
        self._rounds.wake_ns = decision.wake_at
        if decision.pause:
            self.pause()
        if decision.change is not None:
            self.note(decision.change)
        return decision

    def note(self, change: Reason) -> None:
        """Write to the journal which of its parameters the policy has changed."""
        self._outbox.note("policy", **change.noted())

    def hold(self, whole_only: bool, change: Reason | None) -> None:
        """Kind statistics: decide whether workers keep their parameters while the sum lacks points.
        The releases tell the workers. A change is written to the journal."""
        self._rounds.whole_only = whole_only
        if change is not None:
            self._outbox.note("m-steps", **change.noted())

    # -- orders to servers ---------------------------------------------------------------------

    def begin(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        """Record that the next fold begins. `send` then sends the order to the servers."""
        self._rounds.begin_fold(release, reason, self._view.specs(), now_ns)

    def send(self, *, readers: tuple[int, ...] = (), share: float = 1.0, last: bool) -> None:
        """Order the fold that was begun. `readers`: the workers that receive the new version
        without a request. `last`: servers fold nothing after this fold."""
        fold = self._rounds.fold = m.Fold(
            term=self._outbox.seat.term,
            view=self._view.epoch,
            routing=self._routing.epoch,
            round=self._rounds.round,
            readers=readers,
            members=self._rounds.members,
            last=last,
            share=share,
            rows=self._rows(),
        )
        self._outbox.tell_servers(fold, self._routing.primaries)

    def _rows(self) -> tuple[m.Row, ...]:
        """Kind statistics: the rows of the version. For each member: its last complete
        contribution, which every primary has."""
        if self._contributions is None:
            return ()
        return self._contributions.name(self._rounds.members, self._rounds.round)

    def send_again(self) -> None:
        """Repeat the order to all primaries that have not answered it. A server that is a new
        primary, or the primary of more slices than before, may lack the order for some of its
        slices."""
        fold = self._rounds.fold
        assert fold is not None
        self._outbox.tell_servers(fold, self._rounds.late(self._routing.primaries))

    # -- orders to members ---------------------------------------------------------------------

    def pause(self) -> None:
        """Tell every member to contribute the points that it has visited so far."""
        for member in self._view.members():
            if member.entered:
                identity = self._outbox.identity(member)
                self._outbox.tell(member, m.Pause(**identity, round=self._rounds.round + 1))

    def release(self, release: frozenset[int], readers: frozenset[int]) -> None:
        """Let these workers continue. Servers send the new version to `readers`; the other workers
        pull it."""
        at, enlisted, common = self._view.at, self._rounds.enlisted, self._release_of_all()
        for worker in self._rounds.last_first(release):
            member = at(worker)
            # Servers learn with the next fold that a worker has rejoined during this fold. Until
            # then it cannot read a version, so do not release it.
            if member is not None and member.key in enlisted:
                member.resting = False
                self._send_release(member, readers, common)

    def _share(self, member: Member, terms: sync.RoundTerms) -> tuple[int, int]:
        """The member's part of the probe sample, as (part, number of parts); (0, 0) if it evaluates
        none. *Together the members evaluate every point whose position is a multiple of
        `probe_parts`, whatever their number is. So objectives before and after a join or a leave
        can be compared.*"""
        part, parts = self._rounds.part_of(member.worker) if terms.probe else (0, 0)
        return part * terms.probe_parts, parts * terms.probe_parts

    def stop(self, member: Member) -> None:
        """Let a member read the final version, and leave."""
        self._send_release(member, self._rounds.readers, self._release_of_all(stop=True))

    def _release_of_all(self, *, stop: bool = False) -> m.Release:
        """The fields that the releases of all members have in common."""
        torn = self._contributions is not None and self._contributions.torn(self._rounds.round)
        return m.Release(
            term=self._outbox.seat.term,
            view=self._view.epoch,
            routing=self._routing.epoch,
            round=self._rounds.round,
            stop=stop,
            torn=torn,
            whole_only=self._rounds.whole_only,
            progress=self._progress.told(),
        )

    def _send_release(self, member: Member, readers: frozenset[int], common: m.Release) -> None:
        terms = self._policy.terms(member.worker)
        release = replace(
            common,
            worker=member.worker,
            incarnation=member.incarnation,
            pushed=member.worker in readers,
            steps=terms.steps,
            interval_ns=terms.interval_ns,
            points=terms.points,
            probe=self._share(member, terms),
            rank=self._rounds.rank_of(member.worker),
            whole=self._lacks(member),
        )
        self._outbox.tell(member, release)

    def tell_progress(self, member: Member) -> None:
        """Tell a member the progress of the job, if its contribution is not answered by a
        release."""
        identity, rank = self._outbox.identity(member), self._rounds.rank_of(member.worker)
        message = m.Progressed(**identity, progress=self._progress.told(), rank=rank)
        self._outbox.tell(member, message)
