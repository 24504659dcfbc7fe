"""Who visits which chunks as members come and go.

*The first data set that is enrolled makes the plan; the others must be as long. Chunks change hands
only at a fold, when no punctual member's contribution is on its way.* One who is late at a fold that
moves its chunks has contributed points that count as visited where the chunks went.
"""

from collections.abc import Iterable

from polyrhythm.core.data.plan import Plan
from polyrhythm.core.membership import Member, View
from polyrhythm.wire.messages import Leased, Trailer


class Sharing:
    def __init__(self, seed: int, epochs: int | None) -> None:
        self._seed = seed
        self._epochs = epochs
        self._plan: Plan | None = None
        self._stale = False

    @property
    def passes(self) -> int:
        return self._plan.passes if self._plan is not None else 0

    @property
    def begun(self) -> bool:
        """Somebody has enrolled a data set."""
        return self._plan is not None

    @property
    def done(self) -> bool:
        return self._plan is not None and self._plan.done

    def enrol(self, member: Member, points: int, view: View) -> Leased | str:
        """A member's lease, or what is wrong with its data set."""
        if points < 1:
            return "is empty"
        if self._plan is None:
            entered = _entered(view.members())
            self._plan = Plan(points, len(entered), self._seed, self._epochs)
            self._plan.share(entered)
            self._stale = False
        elif points != self._plan.points:
            return f"has {points} points, the job's has {self._plan.points}"
        member.enrolled = True
        return self._plan.lease(member.worker)

    def members_changed(self) -> None:
        self._stale = True

    def share_again(self, view: View) -> list[tuple[Member, Leased]]:
        """The leases that changed, if members did since the last time."""
        if self._plan is None or not self._stale:
            return []
        self._stale = False
        changed = self._plan.share(_entered(view.members()))
        return [
            (member, self._plan.lease(member.worker))
            for member in view.members()
            if member.worker in changed and member.enrolled
        ]

    def commit(self, trailer: Trailer) -> int:
        """Count what a contribution visited; how many points that were."""
        if self._plan is None:
            return int(trailer.weight)
        return self._plan.commit(trailer.worker, trailer.progress)

    def check(self) -> None:
        if self._plan is not None:
            self._plan.check()


def _entered(members: Iterable[Member]) -> list[int]:
    return [member.worker for member in members if member.entered]
