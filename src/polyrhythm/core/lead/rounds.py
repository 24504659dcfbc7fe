"""The round that is open, and the fold that closes it.

*Workers are released when every server that holds slices has folded. Only who was a member at the
fold before has the version pushed: a new member pulls its first one, because pushed it could
overtake the member's routing.*
"""

from polyrhythm.core.machine import Reason
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Folded, MemberSpec

_NOT_OPEN = -1


class Rounds:
    def __init__(self) -> None:
        self.round = _NOT_OPEN
        self.open = False
        self.reason = Reason("none")
        """Why the last fold was decided."""
        self.release: frozenset[int] = frozenset()
        self.readers: frozenset[int] = frozenset()
        self.members: tuple[MemberSpec, ...] = ()
        """The members as the servers know them."""
        self.moved_ns = 0
        """When a contribution was last complete, or a fold begun."""
        self.folds: dict[int, int] = {}
        """Per server, how often it had something to fold."""
        self.enlisted: frozenset[tuple[int, int]] = frozenset()
        """The same, by worker and incarnation: who can read the version."""
        self._ranks: dict[int, int] | None = None
        """Per member its place among all, once somebody has asked."""
        self._folding: set[int] | None = None
        self._arrived: dict[int, None] = {}
        """Whose contribution was complete since the last fold was decided, in order."""
        self._order: tuple[int, ...] = ()
        self._rested: set[int] = set()
        """Who has abstained since the last fold was decided, of those who contributed before."""
        self._contributed: set[int] = set()
        """Who has ever contributed."""
        self.resting = 0
        """How many of those were not in the last fold."""
        self.share = 1.0
        """How much of a full step the last fold was."""

    @property
    def folding(self) -> bool:
        """Some server has not folded yet, or does not know the view."""
        return self._folding is not None

    @property
    def opening(self) -> bool:
        """The first version is on its way to the first members."""
        return self.round == 0 and self._folding is not None

    def begin_fold(
        self,
        release: frozenset[int],
        reason: Reason,
        members: tuple[MemberSpec, ...],
        now_ns: int,
    ) -> None:
        """The fold of the next round; the opening is the fold of round 0."""
        self.round += 1
        self.open = True
        self.moved_ns = now_ns
        self.share = self._share()
        self._order, self._arrived = tuple(reversed(self._arrived)), {}
        self._rested = set()
        self.release, self.reason = release, reason
        before = self.enlisted
        if members is not self.members:
            self.members = members
            self.enlisted = frozenset((spec.worker, spec.incarnation) for spec in members)
            self._ranks = None
        self.readers = frozenset(
            worker for worker, _ in self.enlisted & before if worker in release
        )
        self._folding = set()

    def arrived(self, worker: int, round_: int) -> None:
        """A contribution is complete. One that the last fold took already counts in no other."""
        self._contributed.add(worker)
        if round_ > self.round:
            self._arrived.pop(worker, None)
            self._arrived[worker] = None

    def abstained(self, worker: int) -> None:
        if worker in self._contributed:
            self._rested.add(worker)

    def left(self, worker: int) -> None:
        """Who is no member is not in the mean; what it contributed stays."""
        self._rested.discard(worker)

    def _share(self) -> float:
        """*A worker that has visited all of its points stays in the mean as one that changes nothing.*
        The mean over the others alone would have their noise: with one worker left, a step of one
        batch at the rate that was chosen for the batches of all. A worker that never had points does
        not count."""
        self.resting = len(self._rested.difference(self._arrived))
        contributed = len(self._arrived)
        return contributed / (contributed + self.resting) if contributed else 1.0

    def last_first(self, workers: frozenset[int]) -> list[int]:
        """Who was waited for goes on first: the others have time."""
        arrived = [worker for worker in self._order if worker in workers]
        return [*arrived, *sorted(workers.difference(arrived))]

    def folded(self, message: Folded, primaries: frozenset[int]) -> bool:
        """A server has folded; True if that was the last one."""
        if self._folding is None or message.round != self.round:
            return False
        self._folding.add(message.server)
        if message.weight:
            self.folds[message.server] = self.folds.get(message.server, 0) + 1
        return self._close_if(primaries)

    def heard(self, message: Folded) -> None:
        """While routes change: a server knows the view, and that may stand."""
        if self._folding is not None and message.round == self.round:
            self._folding.add(message.server)

    def _close_if(self, primaries: frozenset[int]) -> bool:
        if self._folding is None or not self._folding >= primaries:
            return False
        self._folding = None
        return True

    def reroute(self, primaries: frozenset[int], folded: frozenset[int]) -> bool:
        """Other servers hold the slices now; these have folded the round, or know the view, as far
        as what they hold now goes. True if that closes a fold."""
        if self._folding is None:
            return False
        self._folding = set(folded)
        return self._close_if(primaries)

    @property
    def told(self) -> frozenset[int]:
        """Servers that have answered the fold that is under way."""
        return frozenset(self._folding or ())

    def late(self, primaries: frozenset[int]) -> frozenset[int]:
        """Servers that owe the fold."""
        return primaries - (primaries if self._folding is None else self._folding)

    def folded_one(self, server: int) -> None:
        """Without rounds: a server has folded a contribution."""
        self.folds[server] = self.folds.get(server, 0) + 1

    def part_of(self, worker: int) -> tuple[int, int]:
        """Which part of how many a member has in what is shared by all: (n, m)."""
        if self._ranks is None:
            members = sorted(number for number, _ in self.enlisted)
            self._ranks = {number: rank for rank, number in enumerate(members)}
        return (self._ranks[worker], len(self._ranks)) if worker in self._ranks else (0, 0)

    def check(self, primaries: frozenset[int]) -> None:
        if self._folding is not None and self._folding >= primaries:
            raise InvariantBroken("every server has folded, and nobody noticed")
