"""The open round and the fold that closes it.

*Workers are released when every primary has folded. The new version is pushed only to workers that
were members at the fold before this one. A new member pulls its first version, because a pushed
version could arrive before the routes.*

Without rounds a fold changes no parameters: it tells the servers which workers are members.
"""

from polyrhythm.core.machine import Reason
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Folded, MemberSpec

_NOT_OPEN = -1


class Rounds:
    def __init__(self) -> None:
        self.round = _NOT_OPEN
        self.open = False
        """Whether round 1 has opened."""
        self.reason = Reason("none")
        """Why the last fold was ordered."""
        self.release: frozenset[int] = frozenset()
        """The workers that continue when the fold is over."""
        self.readers: frozenset[int] = frozenset()
        """The workers to which the new version is pushed."""
        self.members: tuple[MemberSpec, ...] = ()
        """The members that the servers know of."""
        self.enlisted: frozenset[tuple[int, int]] = frozenset()
        """The members in `members`, as pairs of worker and incarnation. Only these workers can read
        the version."""
        self.moved_ns = 0
        """When the last contribution was completed, or the last fold was ordered."""
        self.folds: dict[int, int] = {}
        """Per server, how many of its folds contained a contribution."""
        self.resting = 0
        """How many workers that had contributed before abstained from the last fold."""
        self.share = 1.0
        """The fraction of a full step that the last fold made."""
        self._workers: frozenset[int] = frozenset()
        """The workers in `members`."""
        self._ranks: dict[int, int] | None = None
        """Per member, its rank by worker number; None until it is needed."""
        self.folding = False
        """Whether some primary has not answered the fold under way yet."""
        self._folding: set[int] | None = None
        """The servers that have answered the fold under way; None if no fold is under way."""
        self._arrived: dict[int, None] = {}
        """The workers whose contribution was completed since the last fold was ordered, in the
        order of completion."""
        self._order: tuple[int, ...] = ()
        """The workers that contributed to the last fold; the last to arrive comes first."""
        self._rested: set[int] = set()
        """The workers that have contributed at some time, and have abstained since the last fold
        was ordered."""
        self._contributed: set[int] = set()
        """The workers that have ever contributed."""

    @property
    def opening(self) -> bool:
        """Whether the fold of round 0, which makes the first version, is under way."""
        return self.round == 0 and self._folding is not None

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
        if members is not self.members:
            self.members = members
            self.enlisted = frozenset((spec.worker, spec.incarnation) for spec in members)
            self._workers = frozenset(spec.worker for spec in members)
            stayed = frozenset(worker for worker, _ in self.enlisted & before)
            self._ranks = None
        self.readers = release & stayed
        self._folding = set()
        self.folding = True

    def arrived(self, worker: int, round_: int) -> None:
        """A contribution is complete. It is ignored if the last fold contained it."""
        self._contributed.add(worker)
        if round_ > self.round:
            self._arrived.pop(worker, None)
            self._arrived[worker] = None

    def abstained(self, worker: int) -> None:
        if worker in self._contributed:
            self._rested.add(worker)

    def left(self, worker: int) -> None:
        """A worker was removed: it does not count as resting any more, but its contributions still
        count."""
        self._rested.discard(worker)

    def _share(self) -> float:
        """The fraction of a full step for the next fold. *A worker that has visited all of its points
        still counts in the mean, with a change of zero.* If it did not count, steps would be noisier:
        with one worker left, the step would use one batch, but at the learning rate that was chosen
        for the batches of all workers. A worker that never had points does not count."""
        self.resting = len(self._rested.difference(self._arrived))
        contributed = len(self._arrived)
        return contributed / (contributed + self.resting) if contributed else 1.0

    def last_first(self, workers: frozenset[int]) -> list[int]:
        """The workers in the order of their release: the last to arrive is released first, because
        the next round is likely to wait for it again."""
        arrived = [worker for worker in self._order if worker in workers]
        return [*arrived, *sorted(workers.difference(arrived))]

    def folded(self, message: Folded, primaries: frozenset[int]) -> bool:
        """A server has folded. Returns True if all primaries have folded now: then the fold is over."""
        if self._folding is None or message.round != self.round:
            return False
        self._folding.add(message.server)
        if message.weight:
            self.folds[message.server] = self.folds.get(message.server, 0) + 1
        return self._close_if(primaries)

    def answered(self, message: Folded) -> None:
        """A server has answered the fold while primaries change. The fold cannot be over before that
        change is over."""
        if self._folding is not None and message.round == self.round:
            self._folding.add(message.server)

    def _close_if(self, primaries: frozenset[int]) -> bool:
        if self._folding is None or not self._folding >= primaries:
            return False
        self._folding = None
        self.folding = False
        return True

    def reroute(self, primaries: frozenset[int], folded: frozenset[int]) -> bool:
        """The primaries have changed. The primaries in `folded` have folded all slices that they
        have now. Returns True if the fold is over now."""
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

    def folded_one(self, server: int) -> None:
        """Without rounds: a server has folded a contribution."""
        self.folds[server] = self.folds.get(server, 0) + 1

    def part_of(self, worker: int) -> tuple[int, int]:
        """A member's rank and the number of members, for work that all members divide; (0, 0) for a
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
