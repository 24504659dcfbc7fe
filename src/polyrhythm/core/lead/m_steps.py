"""Kind statistics: whether workers may compute new parameters (an M-step) from a sum that lacks points.

When a worker dies, its row leaves the sum, and its points are missing until their new holders have
visited them. Points that move with their memory are missing for a version or two. An M-step finds the
best parameters for the points in the sum, so it may make the objective of all points worse; where the
order of the points follows their values, it would move the centres of whole clusters to other points.
*So M-steps are held while points are missing from a sum that has contained all points. Then the
objective of all points never gets worse (FSP's Theorem 2).* At the beginning of a job, parameters from
a part of the points are better than the first ones, so no M-step is held there.

The lead says with every version whether its sum must be whole. Workers know from the sum itself whether
it is: the lead does not know in which version the holder of a moving chunk subtracts its points.

*A hold ends in any case when as many points were visited as the data set has in two passes. After
that, the next hold begins only when all points were in the sum again.*
"""

from dataclasses import dataclass

from polyrhythm.core.machine import Reason

MANY_MISSING = 0.05
"""A hold is written to the journal when more than this share of the points is missing. A chunk that
moves from a slow worker to a fast one is about 1% of the points, and is missing from one version."""
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
        """Whether the sum has contained all points since the job began, or since a hold ended without
        them."""
        self._since: int | None = None
        """How many points had been visited when the hold began; None if M-steps are not held."""
        self._versions = 0
        """How many versions of this hold have no parameters of their own."""
        self._said = False
        """Whether many points were missing in this hold, so that the journal has its beginning."""

    @property
    def whole_only(self) -> bool:
        """Whether no M-step is made on the version that was decided last, if it lacks points."""
        return self._was_whole

    def decide(self, found: SummedPoints) -> Reason | None:
        """A version with this sum is folded: decide whether M-steps are held. Returns the reason if
        this changes, unless only a few points were missing for a moment."""
        numbers = {"absent": found.missing, "points": found.points}
        whole = found.points > 0 and not found.missing
        self._was_whole = self._was_whole or whole
        if self._since is None:
            if whole or not self._was_whole:
                return None
            self._since, self._versions, self._said = found.visited, 0, False
        if not whole and found.visited - self._since < MOST_PASSES * found.points:
            self._versions += 1
            if self._said or found.missing <= MANY_MISSING * found.points:
                return None
            self._said = True
            return Reason("m-steps-held", numbers)
        self._since, self._was_whole = None, whole
        if whole and not self._said:
            return None
        code = "m-steps-resumed" if whole else "m-steps-without"
        return Reason(code, {**numbers, "versions": self._versions, "passes": MOST_PASSES})
