"""Parts of a run's state: a wait, the end, a data point of the curve, and the loss of a server."""

from dataclasses import dataclass, field, replace
from typing import Any

from polyrhythm.wire.messages.reasons import Reason


@dataclass(frozen=True, slots=True)
class WaitingState:
    """What the job waits for. Times are in seconds since the run began, as in the journal."""

    reason: Reason
    since_s: float
    until_s: float | None
    """When a timer ends the wait; None if no timer does."""
    missing: tuple[int, ...]
    """The workers that the job waits for."""
    held: tuple[int, ...]
    """The workers that are waiting, if the lead names them."""
    seen_s: float
    """When the lead last reported this wait."""

    @classmethod
    def read(cls, line: dict[str, Any], at_s: float) -> "WaitingState":
        """Read a `waiting` line of the journal. `at_s`: when it was written."""
        until_s, fields = line.get("until_s"), line.get("fields") or {}
        return cls(
            Reason(line["reason"], fields),
            at_s - line.get("since_s", 0.0),
            None if until_s is None else at_s + until_s,
            tuple(fields.get("missing") or ()),
            tuple(fields.get("held") or ()),
            at_s,
        )

    def without(self, worker: int, at_s: float) -> "WaitingState | None":
        """What the job still waits for when this worker has left; None if it waits for no other
        worker."""
        missing = tuple(other for other in self.missing if other != worker)
        return replace(self, missing=missing, seen_s=at_s) if missing else None


@dataclass(frozen=True, slots=True)
class Ended:
    at_s: float
    reason: Reason
    failed: bool


@dataclass(frozen=True, slots=True)
class Point:
    """A data point of the run's curve, from one `rounds` line of the journal."""

    at_s: float
    round: int
    passes: int
    points: int
    objective: float | None


@dataclass(slots=True)
class ServerLoss:
    """The loss of a server: how it was noticed, which slices moved, and how long that took."""

    server: int
    at_s: float
    noticed: Reason
    promoted: dict[str, int] = field(default_factory=dict)
    """Per server, the number of slices of which it became the primary."""
    seconds: float | None = None
    """The seconds until every server used the new routing; None until then."""
    replaced: bool = False
    """Whether another server with the same number has joined since."""
