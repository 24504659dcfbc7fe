"""The state of one worker of a run: its work, its speed, and whether it is in the job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.wire.messages.reasons import Reason

Fields = Mapping[str, Any]
"""The fields of one worker in a `rounds` line of the journal."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The work of one worker since the job began."""

    contributions: int = 0
    points: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    transfer_s: float = 0.0
    redone_s: float = 0.0
    """The part of `compute_s` that was lost, because other workers visit the same points again."""
    skipped: int = 0
    """How many steps and contributions were left out because they were not finite."""
    without_step: int = 0
    """How many contributions were left out because the training loop had made no step."""

    @classmethod
    def of(cls, fields: Fields) -> "Totals":
        return cls(
            fields.get("contributions", 0),
            fields.get("points", 0),
            fields.get("compute_ns", 0) / 1e9,
            fields.get("wait_ns", 0) / 1e9,
            fields.get("transfer_ns", 0) / 1e9,
            fields.get("redone_ns", 0) / 1e9,
            fields.get("skipped", 0),
            fields.get("without_step", 0),
        )

    def since(self, before: "Totals") -> "Totals":
        return Totals(
            self.contributions - before.contributions,
            self.points - before.points,
            self.compute_s - before.compute_s,
            self.wait_s - before.wait_s,
            self.transfer_s - before.transfer_s,
            self.redone_s - before.redone_s,
            self.skipped - before.skipped,
            self.without_step - before.without_step,
        )

    @property
    def busy_s(self) -> float:
        return self.compute_s + self.wait_s + self.transfer_s

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """The shares of time spent on computing, waiting and transferring. None if no time was
        measured."""
        whole = self.busy_s
        if whole <= 0:
            return None
        return self.compute_s / whole, self.wait_s / whole, self.transfer_s / whole


@dataclass(slots=True)
class ObservedWorker:
    worker: int
    name: str
    joined_s: float
    incarnation: int | None = None
    clock: int | None = None
    device: str = ""
    """The device on which the worker computes; empty if the journal does not name the device."""
    measured: Fields = field(default_factory=dict)
    """The fields of this worker in the last line about rounds. `before` has the fields of a line
    that is `recent_s` seconds older."""
    before: Fields = field(default_factory=dict)
    recent_s: float = 0.0
    reports: dict[str, float] = field(default_factory=dict)
    waited_for_s: float = 0.0
    """How long the job waited for this worker. Only waits of more than a second are counted,
    because shorter ones have no `waiting` line."""
    joins: int = 1
    no_points: bool = False
    """Whether the worker is idle because it has never had points to visit."""
    left_s: float | None = None
    left: Reason | None = None
    """Why the worker left; None while it is in the job."""

    @property
    def totals(self) -> Totals:
        return Totals.of(self.measured)

    @property
    def passes(self) -> float | None:
        """How many passes the worker has made over its points; None if the passes do not differ
        between workers, or are not known."""
        return self.measured.get("passes")

    @property
    def recent(self) -> Totals:
        """The work of the last `recent_s` seconds."""
        return self.totals.since(Totals.of(self.before))

    @property
    def present(self) -> bool:
        return self.left is None

    @property
    def contributions_per_s(self) -> float:
        return self.recent.contributions / self.recent_s if self.recent_s else 0.0

    @property
    def points_per_s(self) -> float:
        return self.recent.points / self.recent_s if self.recent_s else 0.0
