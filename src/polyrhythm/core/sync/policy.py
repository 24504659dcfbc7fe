"""The interface of all sync policies. A policy runs in the lead only; servers have no barrier.

The lead tells the policy which workers joined, left and contributed, and what time it is. The
policy answers with a `Decision`: whether to fold, which workers to release, when to call the policy
again, and why.

A policy declares its properties as `Traits`, and a `PolicyEntry` says how `--sync` names it. Other
parts of the program read the traits; none may decide by the name of a policy.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import ContributionReport, JobSpec

NO_WORKERS: frozenset[int] = frozenset()


class Joined(msgspec.Struct, frozen=True, gc=False):
    """A worker wants to become a member. The worker takes part after the next fold."""

    worker: int


class Left(msgspec.Struct, frozen=True, gc=False):
    """A member left, died or was evicted. From now on no other worker may be kept waiting for
    it."""

    worker: int


class MemberContributed(msgspec.Struct, frozen=True, gc=False):
    """A contribution is complete on all its servers, which counted it in `round`.

    The report contains what the worker measured. `round` may already be folded, because the
    worker's trailer can arrive later than the servers' reports.
    """

    worker: int
    round: int
    report: ContributionReport | None = None


class MemberAbstained(msgspec.Struct, frozen=True, gc=False):
    """A member has nothing to contribute to the open round."""

    worker: int


class Returned(msgspec.Struct, frozen=True, gc=False):
    """A member that abstained has points to visit again. This event exists only without rounds."""

    worker: int


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A worker has visited all of its points and asks the lead to end the round."""

    worker: int


class Opened(msgspec.Struct, frozen=True, gc=False):
    """All servers have folded version `round`, so the next round is open. Without rounds: all servers
    know the new view."""

    round: int


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """The time has come that the policy named in `Decision.wake_at`."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The answer of a policy to one event.

    With `fold`, the workers in `release` continue with the version that the fold makes; without
    `fold`, with the newest existing version. A policy without rounds uses `fold` to change the
    view: servers then fold nothing, but learn the new members.
    """

    fold: bool
    release: frozenset[int]
    wake_at: int | None
    reason: Reason
    pause: bool = False
    """Whether all workers must now contribute the points that they have visited so far."""
    change: Reason | None = None
    """A parameter that the policy itself has changed, such as its interval, for the journal."""


class RoundTerms(msgspec.Struct, frozen=True, gc=False):
    """When a released worker contributes next: after a number of steps, a time or a number of
    points.

    0 means no such limit; if all are 0, the user's loop decides. `probe`: evaluate the probe sample
    first. `probe_parts`: n, to evaluate only every n-th point of the sample.
    """

    steps: int = 0
    interval_ns: int = 0
    points: int = 0
    probe: bool = False
    probe_parts: int = 1


USER_PACE = RoundTerms()
ALL_POINTS = -1
"""A value of `RoundTerms.points`: all points of the worker."""


PolicyEvent: TypeAlias = (
    Joined | Left | MemberContributed | MemberAbstained | Returned | Asked | Opened | TimePassed
)


class Traits(msgspec.Struct, frozen=True):
    """The properties of a policy that lead, servers, workers and tools adapt to."""

    rounds: bool
    """Whether the lead orders the folds. Otherwise servers fold each contribution when it
    arrives."""
    kinds: frozenset[str]
    """The kinds of contribution that the policy can fold."""
    preferred_kind: str = "gradient"
    """The kind that `--kind auto` stands for."""
    timed: bool = False
    """Whether a worker contributes when an interval ends, with the points visited by then."""
    gathers: bool = False
    """Whether several batches of the user's loop, at the same parameters, make one contribution."""
    plans_steps: bool = False
    """Whether the policy tells each worker after how many local steps to contribute."""
    trains_through: bool = False
    """Whether a worker continues to train during the fold of its contribution, and then rebases on
    the new version."""
    asks_before_steps: bool = True
    """Whether a worker needs the lead's permission to begin its next step."""


class SyncPolicy(Protocol):
    """A policy is a struct. Its fields are everything that it remembers, and msgpack can encode
    them."""

    @property
    def traits(self) -> Traits: ...

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        """Change the state of the policy by one event, and return the decision that follows."""

    def terms(self, worker: int) -> RoundTerms:
        """When a worker that is released now contributes next."""

    def why(self) -> Waiting:
        """What the policy waits for. This call changes no state."""


class PolicyEntry(msgspec.Struct, frozen=True):
    """One entry of the registry: how `--sync` names a policy, and how to build the policy for a
    job."""

    name: str
    """The name in `--sync`, without the argument."""
    help: str
    """A phrase for the command line's help."""
    traits: Traits
    build: Callable[[JobSpec], SyncPolicy]
    """Builds the policy. Raises a `UsageError` if options of the job do not fit the policy."""
    argument: str = ""
    """The name, in the help, of the whole number that follows `NAME:`; empty if the policy takes
    none."""

    @property
    def syntax(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


def split_sync(sync: str) -> tuple[str, str]:
    """Split `--sync NAME:ARGUMENT` into its name and its argument, which is empty without a
    colon."""
    name, _, argument = sync.partition(":")
    return name, argument


def sync_argument(job: JobSpec) -> int:
    """The whole number after the colon of `--sync`. Raises a `UsageError` if it is missing or not a
    number."""
    name, text = split_sync(job.sync)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--sync {job.sync!r} needs a whole number, such as {name}:8")
    return int(text)
