"""Kind statistics: whether workers compute new parameters from a version (an M-step), or keep those
that they have.

When a worker dies, its row leaves the sum, and its points are missing until their new holders have
visited them. Where the order of the points follows their values, whole clusters may be missing, and an
M-step would move their centres to other points. *So M-steps are held when many points have left a sum
that has contained nearly all points, until the missing points are back.* At the beginning of a job,
parameters from a part of the points are better than the first ones, so no M-step is held there.

*A hold ends in any case when as many points were visited as the data set has in two passes. After
that, the next hold begins only when nearly all points were in the sum again.*
"""

from dataclasses import dataclass

from polyrhythm.core.machine import Reason

MOST_MISSING = 0.05
"""M-steps are held when more than this share of the points is missing. A chunk that moves from a slow
worker to a fast one is about 1% of the points."""
NEARLY_ALL = 0.01
"""A sum contains nearly all points if at most this share is missing."""
MOST_PASSES = 2
"""A hold ends when as many points were visited as in this many passes. The new holders visit the
missing points first. With equal workers they are back after less than one pass; the second pass
is for slow workers."""


@dataclass(frozen=True, slots=True)
class SummedPoints:
    """`points`: how many points the data set has. `missing`: how many of them are not in the sum of a
    version. `visited`: how many points were visited since the job began."""

    points: int
    missing: int
    visited: int


class MStepHold:
    def __init__(self) -> None:
        self._was_whole = False
        """Whether the sum has contained nearly all points since the job began, or since a hold ended
        without them."""
        self._since: int | None = None
        """How many points had been visited when the hold began; None if M-steps are not held."""
        self._versions = 0
        """How many versions of this hold have no parameters of their own."""

    @property
    def held(self) -> bool:
        """Whether no M-step is made on the version that was decided last."""
        return self._since is not None

    def decide(self, found: SummedPoints) -> Reason | None:
        """A version with this sum is folded: decide whether M-steps are held. Returns the reason if
        this changes."""
        numbers = {"absent": found.missing, "points": found.points}
        whole = found.points > 0 and found.missing <= NEARLY_ALL * found.points
        self._was_whole = self._was_whole or whole
        if self._since is None:
            if not self._was_whole or found.missing <= MOST_MISSING * found.points:
                return None
            self._since, self._versions = found.visited, 1
            return Reason("m-steps-held", numbers)
        if not whole and found.visited - self._since < MOST_PASSES * found.points:
            self._versions += 1
            return None
        self._since, self._was_whole = None, whole
        code = "m-steps-resumed" if whole else "m-steps-without"
        return Reason(code, {**numbers, "versions": self._versions, "passes": MOST_PASSES})
