"""The interface of all updaters of a slice, and the common part of updaters without state."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Protocol, Self

import torch

from polyrhythm.tensors.held import Held, Parts, State
from polyrhythm.tensors.rows import Incoming
from polyrhythm.wire.messages import Row, SliceStep

Named = tuple[Row, torch.Tensor]
"""A contribution that a fold names, and its part of a slice."""


class Updater(Protocol):
    """How contributions to a slice are added up, and what a fold does with the sum."""

    takes_parts: ClassVar[bool]
    """Whether a contribution may contain only some parts of a slice. If so, replicas in a job
    without rounds get the resulting step instead of the contribution."""
    takes_rows: ClassVar[bool]
    """Whether a contribution may contain only some rows of a slice that consists of rows."""
    by_name: ClassVar[bool]
    """Whether a contribution is added only when a fold names it (`enter`), instead of when it
    arrives (`add`)."""
    writes_on_aggregate: ClassVar[bool]
    """Whether a fold may write to the aggregate. If so, a replica must fold a copy of the aggregate
    that it received."""
    most_tensors: ClassVar[int]
    """The most tensors that the updater keeps for a slice between folds."""

    def add(self, held: Held, incoming: Incoming, weight: float, parts: Parts = None) -> None:
        """Add a slice of a contribution, or these parts of the slice, to the aggregate. Only
        updaters of kind gradient get rows."""

    def enter(self, held: Held, live: Iterable[Row], named: Sequence[Named]) -> None:
        """Add the contributions that the next fold names. `live`: all rows of its version. Only for
        updaters that are `by_name`."""

    def settle(
        self,
        held: Held,
        scales: Mapping[int, float] | None = None,
        *,
        forwarded: bool = False,
    ) -> None:
        """Scale the aggregate so that the next fold can apply it directly, unless that was done
        already. `scales`: for each part, the fraction of a full step. `forwarded`: replicas read
        the aggregate in place, so the fold must not write to it."""

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        """Make a step with the aggregate of each slice, and write the new parameters to the slice's
        `target`. The target is the memory of the current version if no reader uses that version.
        The result depends only on the current parameters, the step, the aggregate and the updater's
        state."""

    def export(self, held: Held) -> State:
        """Return a copy of the state that the updater keeps for this slice, by name."""

    def adopt(self, held: Held, state: State) -> None:
        """Use these tensors as the state of this slice. The caller must not use them any more."""

    def absorb(self, other: Self) -> None:
        """Adopt the slices of another updater of the same kind, with their state."""

    def drop(self, held: Held) -> None:
        """Forget a slice."""


def without_rows(updater: Updater, held: Held, live: Iterable[Row], named: Sequence[Named]) -> None:
    """Refuse the call: only updaters that are `by_name` have an `enter`."""
    raise AssertionError(
        "this updater takes a contribution when it arrives, not when a fold names it"
    )


class Stateless:
    """An updater that keeps no state between folds, and whose aggregates need no scaling before a
    fold."""

    takes_parts: ClassVar[bool] = False
    takes_rows: ClassVar[bool] = False
    by_name: ClassVar[bool] = False
    writes_on_aggregate: ClassVar[bool] = False
    most_tensors: ClassVar[int] = 0
    enter = without_rows

    def settle(
        self,
        held: Held,
        scales: Mapping[int, float] | None = None,
        *,
        forwarded: bool = False,
    ) -> None:
        pass

    def export(self, held: Held) -> State:
        return {}

    def adopt(self, held: Held, state: State) -> None:
        pass

    def absorb(self, other: Self) -> None:
        pass

    def drop(self, held: Held) -> None:
        pass
