"""The seam of all sync policies. A policy runs in the lead only; servers have no barrier.

The lead tells the policy which workers joined, left and contributed, and what time it is. The policy
answers with a `Decision`: whether to fold, which workers to release, when to wake the policy, and why.

A policy declares its properties as `Traits` and is known to `--sync` by a `PolicyEntry`. Other parts
of the program ask for the traits; no part may decide by the text of a policy's name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec, Trailer

NO_WORKERS: frozenset[int] = frozenset()


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
    change: Reason | None = None
    """What the policy changed about itself, for the journal."""


class RoundTerms(msgspec.Struct, frozen=True, gc=False):
    """When a worker that is released contributes next: after so many steps, after so long, after so
    many points; 0: as its user's loop says. `probe`: evaluate the probe sample first."""

    steps: int = 0
    interval_ns: int = 0
    points: int = 0
    probe: bool = False


USER_PACE = RoundTerms()
ALL_POINTS = -1
"""In place of a number of points: all that the worker has."""


PolicyEvent: TypeAlias = (
    Joined | Left | MemberContributed | MemberAbstained | Returned | Asked | Opened | TimePassed
)


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a policy that lead, servers, workers and tools adapt to."""

    rounds: bool
    """The lead orders the folds. Otherwise servers fold each contribution when it arrives."""
    kinds: frozenset[str]
    """The kinds of contribution that the policy can fold."""
    preferred_kind: str = "gradient"
    """The kind that `--kind auto` stands for."""
    timed: bool = False
    """A worker contributes when an interval ends, with the points visited by then."""
    gathers: bool = False
    """Several batches of the user's loop, at the same parameters, make one contribution."""
    plans_steps: bool = False
    """The policy tells each worker after how many local steps to contribute."""
    trains_through: bool = False
    """A worker trains on while its contribution is folded, and rebases on the new version."""
    asks_before_steps: bool = True
    """A worker needs the lead's permission to begin its next step."""


class SyncPolicy(Protocol):
    traits: Traits

    def on(self, event: PolicyEvent, now_ns: int) -> Decision: ...

    def terms(self, worker: int) -> RoundTerms:
        """For a worker that goes on now."""

    def why(self) -> Waiting: ...


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One line of the registry: how `--sync` names a policy, and how to build it for a job."""

    name: str
    """The word of `--sync`, without the argument."""
    help: str
    """Half a sentence for the command line's help."""
    traits: Traits
    build: Callable[[JobSpec], SyncPolicy]
    """Make the policy. Refuse wrong options of the job with a `UsageError`."""
    argument: str = ""
    """The name of the whole number that follows `NAME:`; empty: the policy takes none."""

    @property
    def syntax(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


def split_sync(sync: str) -> tuple[str, str]:
    """The name and the argument of `--sync NAME:ARGUMENT`; the argument is empty without a colon."""
    name, _, argument = sync.partition(":")
    return name, argument


def sync_argument(job: JobSpec) -> int:
    """The whole number after the colon of `--sync`; refused if it is missing or not a number."""
    name, text = split_sync(job.sync)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--sync {job.sync!r} needs a whole number, such as {name}:8")
    return int(text)
