"""A worker's gradients that contain only some rows of a tensor, and how they are put into a
contribution (`tensors/rows.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from polyrhythm.core.placement.slices import Layout, Slice, TensorPlace
from polyrhythm.tensors.absent import NO_GRADIENT
from polyrhythm.tensors.finite import all_finite, not_finite
from polyrhythm.tensors.rows import ABSENT, rows_nbytes, write_rows


@dataclass(slots=True)
class _Table:
    """A tensor whose gradients contain only some of its rows, and the slices of this tensor."""

    tensor: torch.Tensor
    place: TensorPlace
    slices: list[Slice]
    gathered: list[torch.Tensor] = field(default_factory=list)
    """The numbers of the rows in the gradients that were gathered since the last contribution."""
    whole: bool = False
    """Whether a gradient that was gathered since the last contribution contained all rows."""
    begun: bool = False
    """Whether a gradient was gathered since the last contribution."""


class RowGradients:
    """The tensors of a model whose gradients contain only some of their rows. `wires`: the dtype in
    which each space is sent."""

    def __init__(
        self,
        layout: Layout,
        tensors: Sequence[torch.Tensor],
        places: Sequence[TensorPlace],
        wires: Sequence[torch.dtype],
    ) -> None:
        self.sent: dict[int, int] = {}
        """For each slice of which the last contribution contains only some rows, how many rows
        these are."""
        self._wires = wires
        self._tables = {
            index: _Table(tensors[index], place, slices)
            for index, place in enumerate(places)
            if (slices := _slices_of(layout, place))
        }
        self.spaces = {table.place.space for table in self._tables.values()}

    def __contains__(self, tensor: int) -> bool:
        return tensor in self._tables

    def fill(self, push: Sequence[torch.Tensor]) -> None:
        """Write the gradients into the push buffers. Raise NotFinite if one is not finite."""
        self.sent = {}
        for table in self._tables.values():
            gradient = table.tensor.grad
            if gradient is None:
                self.sent.update({slice_.id: ABSENT for slice_ in table.slices})
            elif not gradient.is_sparse:
                self._write_whole(push, table, gradient.detach())
            else:
                rows = gradient.detach().coalesce()
                self._write(push, table, rows.indices()[0], rows.values())

    def gather(self, table_of: int, sums: torch.Tensor, points: float) -> None:
        """Add a gradient, multiplied by its number of points, to `sums`, which has the shape of the
        tensor."""
        table = self._tables[table_of]
        gradient = table.tensor.grad
        if gradient is None:
            return
        table.begun = True
        if gradient.is_sparse:
            rows = gradient.detach().coalesce()
            indices = rows.indices()[0]
            # adding 0.0 turns -0.0, which would mean "no gradient", into 0.0
            values = rows.values().to(sums.dtype) + 0.0
            sums.index_add_(0, indices, values, alpha=points)
            table.gathered.append(indices)
        else:
            sums.add_(gradient.detach(), alpha=points)
            table.whole = True

    def fill_gathered(
        self, push: Sequence[torch.Tensor], sums: dict[int, torch.Tensor], points: float
    ) -> None:
        """Divide the sums by the total number of points, write them into the push buffers, and
        reset them. `sums`: per tensor, the sum of its gradients."""
        self.sent = {}
        for index, table in self._tables.items():
            if not table.begun:
                self.sent.update({slice_.id: ABSENT for slice_ in table.slices})
            elif table.whole:
                self._write_whole(push, table, sums[index] / points)
                sums[index].fill_(NO_GRADIENT)
            else:
                rows = torch.unique(torch.cat(table.gathered))
                self._write(push, table, rows, sums[index][rows] / points)
                sums[index][rows] = NO_GRADIENT
            self._reset(table)

    def forget(self) -> None:
        """Forget the gradients that were gathered."""
        for table in self._tables.values():
            self._reset(table)

    def _reset(self, table: _Table) -> None:
        table.gathered, table.whole, table.begun = [], False, False

    def _write(
        self,
        push: Sequence[torch.Tensor],
        table: _Table,
        indices: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Write these rows, in ascending order, into the push buffer, slice by slice. If a slice
        would be shorter as a whole, it is sent as a whole."""
        indices, values = indices.cpu(), values.cpu()
        if not all_finite(values):
            raise not_finite("gradient", table.place.tensor.name)
        wire = self._wires[table.place.space]
        width = table.slices[0].width
        values = values.reshape(-1, width).to(wire) + 0.0  # see `gather`
        firsts = [(s.offset - table.place.offset) // width for s in table.slices]
        bounds = torch.tensor([*firsts, firsts[-1] + table.slices[-1].rows])
        cuts = torch.searchsorted(indices, bounds).tolist()
        for slice_, first, begin, end in zip(
            table.slices, firsts, cuts[:-1], cuts[1:], strict=True
        ):
            there = push[table.place.space][slice_.offset : slice_.offset + slice_.length]
            numbers, some = indices[begin:end] - first, values[begin:end]
            if rows_nbytes(slice_, end - begin, wire.itemsize) > slice_.length * wire.itemsize:
                there.fill_(NO_GRADIENT)
                there[: slice_.rows * width].view(-1, width)[numbers] = some
            else:
                write_rows(there.view(torch.uint8), numbers, some)
                self.sent[slice_.id] = end - begin

    def _write_whole(
        self, push: Sequence[torch.Tensor], table: _Table, gradient: torch.Tensor
    ) -> None:
        gradient = gradient.cpu()
        if not all_finite(gradient):
            raise not_finite("gradient", table.place.tensor.name)
        place = table.place
        push[place.space][place.offset : place.offset + place.length].copy_(gradient.reshape(-1))


def _slices_of(layout: Layout, place: TensorPlace) -> list[Slice]:
    """The slices into which this tensor is cut between rows; empty if it is not cut between
    rows."""
    return [
        slice_
        for slice_ in layout.slices
        if slice_.width
        and slice_.space == place.space
        and place.offset <= slice_.offset < place.offset + place.length
    ]
