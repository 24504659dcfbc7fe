"""A slice on a server: its parameters, and the aggregate that is not folded yet."""

from dataclasses import dataclass, field

import torch

from polyrhythm.core.placement.slices import Slice

State = dict[str, torch.Tensor]
Parts = tuple[int, ...] | None
"""The numbers of the parts of a slice that a contribution contains, one after the other. None: it
contains the whole slice."""


@dataclass(slots=True, eq=False)
class Held:
    """A slice on this server: its parameters in the current version, and its aggregate. `weight` is
    the total weight in the aggregate; `rate` and `clock` are those of its next `SliceStep`."""

    slice: Slice
    parameters: torch.Tensor
    aggregate: torch.Tensor
    weight: float = 0.0
    rate: float | None = None
    clock: int = -1
    part_weights: dict[int, float] = field(default_factory=dict)
    """For slices of buffers: the weight that was added to each part. A part that no worker has
    changed has no entry."""
    row_weights: torch.Tensor | None = None
    """For slices of rows in which contributions are changes: the weight of the workers that changed
    each row."""
    present: bool = False
    """For slices of rows: whether a worker had a gradient for their tensor, although it may have no
    row in this slice."""

    def empty(self) -> None:
        """Reset the aggregate after it was folded."""
        self.weight, self.rate, self.clock = 0.0, None, -1
        self.part_weights.clear()
        self.row_weights = None
        self.present = False
