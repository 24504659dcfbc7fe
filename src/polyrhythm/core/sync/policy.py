"""The seam of all sync policies. A policy runs in the lead only; servers have no barrier.

It is told who came, left and contributed and what time it is, and says: fold or not, whom to
release, when to be woken, and why.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from polyrhythm.core.machine import Reason, Waiting

NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Joined:
    worker: int


@dataclass(frozen=True, slots=True)
class Left:
    worker: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """A contribution is complete on all its servers, in `round`."""

    worker: int
    round: int


@dataclass(frozen=True, slots=True)
class Abstained:
    worker: int


@dataclass(frozen=True, slots=True)
class Returned:
    """One who abstained has something to do again."""

    worker: int


@dataclass(frozen=True, slots=True)
class Opened:
    """Version `round` is folded everywhere: the next round is open. Without rounds: every server
    knows the view."""

    round: int


@dataclass(frozen=True, slots=True)
class Tick:
    pass


@dataclass(frozen=True, slots=True)
class Decision:
    """`release` is a set of workers: with `fold` they go on with the version that the fold makes,
    without it with the version that there is. A policy without rounds says `fold` when the view
    must turn: servers have nothing to fold then, and learn who is a member."""

    fold: bool
    release: frozenset[int]
    wake_at: int | None
    reason: Reason


PolicyEvent: TypeAlias = Joined | Left | Arrived | Abstained | Returned | Opened | Tick


class SyncPolicy(Protocol):
    kinds: frozenset[str]
    """The kinds of contribution that this policy can fold."""
    rounds: bool
    """Folds are the lead's to order; otherwise servers fold each contribution as it comes."""

    def on(self, event: PolicyEvent, now_ns: int) -> Decision: ...
    def why(self) -> Waiting: ...
