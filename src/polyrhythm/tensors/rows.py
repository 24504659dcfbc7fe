"""Contributions that contain only some rows of a tensor: the gradients of
`nn.Embedding(sparse=True)`.

A tensor with such gradients has separate slices (`Slice.width`). A worker sends the rows that its
gradient contains, and their numbers. *In the aggregate, a row that no worker has sent is -0.0, as
is a gradient that is missing (`tensors/absent.py`). So an aggregate says which rows were sent, to
this server and to its replicas.* The weight of a contribution counts for all rows: a row that the
contribution does not contain counts with the gradient 0.

With kind local a contribution contains all rows, as changes. *A row changes by the mean over the
workers that have changed it* (`weigh_rows`, `average_rows`): most workers have never seen a rare
row, and their zeros would take most of its change away.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.errors import LinkError
from polyrhythm.tensors.absent import NO_GRADIENT, bits_of
from polyrhythm.tensors.dtypes import tensor_over
from polyrhythm.tensors.held import Held

INDEX = torch.int64
ABSENT = -1
"""If a worker had no gradient for the tensor, its contribution has this value in place of the number of
rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a slice: their numbers within the slice, in ascending order, and their values,
    one row of the tensor `values` each. `present`: the worker had a gradient for the tensor."""

    indices: torch.Tensor
    values: torch.Tensor
    present: bool = True

    def clone(self) -> "Rows":
        return Rows(self.indices.clone(), self.values.clone(), self.present)


Incoming: TypeAlias = torch.Tensor | Rows
"""A slice of a contribution: all its elements, or some of its rows."""


def numbers_in(incoming: Incoming) -> torch.Tensor:
    """The elements of a contributed slice that must be finite: all values. The row indices are not
    checked."""
    return incoming.values if isinstance(incoming, Rows) else incoming


def rows_nbytes(slice_: Slice, count: int, item: int) -> int:
    """The size of a payload with this many rows. `item`: the size of an element in bytes."""
    return max(0, count) * (INDEX.itemsize + slice_.width * item)


def read_rows(slice_: Slice, data: memoryview, count: int, wire: torch.dtype) -> Rows:
    """The rows in a payload. Raises LinkError unless the payload consists of rows of this slice, in
    ascending order. The numbers of the rows are copied, so that a sender that shares the memory
    cannot change them after the check."""
    if not slice_.width:
        raise LinkError(f"the peer sent rows of slice {slice_.id}, which does not consist of rows")
    nbytes = rows_nbytes(slice_, count, wire.itemsize)
    if count > slice_.rows or len(data) != nbytes:
        raise LinkError(
            f"the peer sent {len(data)} bytes for {count} rows of slice {slice_.id}, which has"
            f" {slice_.rows} rows of {slice_.width} elements"
        )
    if count <= 0:
        empty = torch.empty((0, slice_.width), dtype=wire)
        return Rows(torch.empty(0, dtype=INDEX), empty, present=count != ABSENT)
    end = count * INDEX.itemsize
    indices = tensor_over(data[:end], INDEX).clone()
    first, last = int(indices[0]), int(indices[-1])
    if first < 0 or last >= slice_.rows or not bool((indices[1:] > indices[:-1]).all()):
        raise LinkError(
            f"the peer sent rows of slice {slice_.id}, but the numbers of the rows do not ascend or are"
            f" not all between 0 and {slice_.rows - 1}"
        )
    return Rows(indices, tensor_over(data[end:], wire).view(count, slice_.width))


def write_rows(memory: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> None:
    """Write rows into a push buffer. `memory`: the bytes of the slice in this buffer, as a tensor.
    `values` must have the dtype of the wire."""
    parts = [indices.contiguous().view(-1), values.contiguous().view(-1)]
    end = 0
    for part in parts:
        if part.numel():
            flat = part.view(torch.uint8)
            memory[end : end + len(flat)].copy_(flat)
            end += len(flat)


def add_rows(held: Held, rows: Rows, weight: float) -> None:
    """Add `weight` times these rows to the aggregate."""
    if not held.weight:
        held.aggregate.fill_(NO_GRADIENT)
    if len(rows.indices):
        values = rows.values.to(held.aggregate.dtype)
        in_rows(held.slice, held.aggregate).index_add_(0, rows.indices, values, alpha=weight)
    held.present = held.present or rows.present


def weigh_rows(held: Held, change: torch.Tensor, weight: float) -> None:
    """Note which rows this contribution changes."""
    changed = (in_rows(held.slice, change) != 0).any(1).to(torch.float64).mul_(weight)
    if held.row_weights is None:
        held.row_weights = changed
    else:
        held.row_weights.add_(changed)


def average_rows(held: Held) -> None:
    """Scale each row of the aggregate, once: as if the workers that have not changed the row had
    changed it by the mean of the others."""
    changed, held.row_weights = held.row_weights, None
    if changed is None:
        return
    some = ((changed > 0) & (changed < held.weight)).nonzero().view(-1)
    if len(some):
        rows = in_rows(held.slice, held.aggregate)
        rows[some] *= (held.weight / changed[some]).to(rows.dtype).view(-1, 1)


def in_rows(slice_: Slice, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the slice's length as a table of the slice's rows, without the padding at its
    end."""
    first, end = slice_.parts[0]
    return tensor[first:end].view(-1, slice_.width)


def sent_rows(slice_: Slice, aggregate: torch.Tensor) -> torch.Tensor:
    """The numbers of the rows that a worker has sent: those that are not -0.0."""
    bits, nothing = bits_of(in_rows(slice_, aggregate))
    return (bits != nothing).any(1).nonzero().view(-1)


def fill_unsent(held: Held) -> None:
    """Give the gradient 0 to all rows that no worker has sent, if a worker had a gradient for the
    tensor. Some optimizers of torch need this: they treat a row that is missing in a sparse gradient as
    a row with the gradient 0."""
    if held.present:
        held.aggregate.add_(0.0)  # this turns -0.0 into 0.0, and changes no other number
        held.present = False


if not torch.sparse.check_sparse_tensor_invariants.is_enabled():  # type: ignore[no-untyped-call]
    # Torch warns when code makes a sparse tensor without having chosen whether it is checked, and
    # torch's own optimizers do so. This chooses the default.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
