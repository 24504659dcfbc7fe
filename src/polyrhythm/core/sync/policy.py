"""The seam of all sync policies. A policy runs in the lead only; servers have no barrier.

It is told who came, left and contributed and what time it is, and says: fold or not, whom to
release, when to be woken, and why.
"""

from typing import Protocol, TypeAlias

import msgspec

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.wire.messages import Trailer

NOBODY: frozenset[int] = frozenset()


class Joined(msgspec.Struct, frozen=True, gc=False):
    worker: int


class Left(msgspec.Struct, frozen=True, gc=False):
    worker: int


class MemberContributed(msgspec.Struct, frozen=True, gc=False):
    """A contribution is complete on all its servers, in `round`; the trailer says what it cost."""

    worker: int
    round: int
    trailer: Trailer | None = None


class MemberAbstained(msgspec.Struct, frozen=True, gc=False):
    worker: int


class Returned(msgspec.Struct, frozen=True, gc=False):
    """One who abstained has something to do again."""

    worker: int


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A worker has passed over all of its points and wants the barrier."""

    worker: int


class Opened(msgspec.Struct, frozen=True, gc=False):
    """Version `round` is folded everywhere: the next round is open. Without rounds: every server
    knows the view."""

    round: int


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    pass


class Decision(msgspec.Struct, frozen=True, gc=False):
    """`release` is a set of workers: with `fold` they go on with the version that the fold makes,
    without it with the version that there is. A policy without rounds says `fold` when the view
    must turn: servers have nothing to fold then, and learn who is a member."""

    fold: bool
    release: frozenset[int]
    wake_at: int | None
    reason: Reason
    pause: bool = False
    """All are to contribute what they have."""
    said: Reason | None = None
    """What the policy changed about itself, for the journal."""


class RoundTerms(msgspec.Struct, frozen=True, gc=False):
    """When a worker that is released contributes next: after so many steps, after so long, after so
    many points; 0: as its user's loop says. `probe`: evaluate the probe sample first."""

    steps: int = 0
    interval_ns: int = 0
    points: int = 0
    probe: bool = False


AS_IT_LIKES = RoundTerms()
EVERYTHING = -1
"""In place of a number of points: all that the worker has."""


PolicyEvent: TypeAlias = (
    Joined | Left | MemberContributed | MemberAbstained | Returned | Asked | Opened | TimePassed
)


class SyncPolicy(Protocol):
    kinds: frozenset[str]
    """The kinds of contribution that this policy can fold."""
    rounds: bool
    """Folds are the lead's to order; otherwise servers fold each contribution as it comes."""

    def on(self, event: PolicyEvent, now_ns: int) -> Decision: ...

    def terms(self, worker: int) -> RoundTerms:
        """For a worker that goes on now."""

    def why(self) -> Waiting: ...
