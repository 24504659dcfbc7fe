"""How the slices of a contribution are sent: exactly, or as integers of 8 bits (`--push`).

*With `int8`, a slice of parameters that goes over TCP is quantised: it is sent as integers of 8
bits, with one scale for each block of 256 numbers. Everything else is sent exactly: the model's
buffers, integers, slices that consist of rows, and all slices over links that carry references
instead of bytes.* The form of a slice is chosen when its contribution is made. A slice that is sent
again, to another server or over another link, is sent in the same form and with the same bytes.
"""

from collections.abc import Collection, Sequence

from polyrhythm.core.placement.slices import ITEM_NBYTES, Layout, Slice
from polyrhythm.wire.messages import Route

EXACT, INT8 = "exact", "int8"
BLOCK = 256
"""How many consecutive numbers of a slice are quantised with the same scale."""
_FLOATS = ("float32", "float64", "bfloat16", "float16")


def may_be_quantised(layout: Layout, slice_: Slice) -> bool:
    """Whether this slice is quantised with `--push int8`. A slice that consists of rows is not
    quantised, because an aggregate finds out from its numbers which rows were sent
    (`tensors/rows.py`)."""
    space = layout.spaces[slice_.space]
    return not space.buffers and space.dtype in _FLOATS and not slice_.width


def scale_nbytes(dtype: str) -> int:
    """The size of a scale for numbers of this dtype. It is at least the size of a float32."""
    return max(4, ITEM_NBYTES[dtype])


def quantised_nbytes(layout: Layout, slice_: Slice) -> int:
    """The size of a quantised slice: the scales of its blocks, and a byte for each number."""
    dtype = layout.spaces[slice_.space].dtype
    return -(-slice_.length // BLOCK) * scale_nbytes(dtype) + slice_.length


def quantised_slices(
    push: str, layout: Layout, routes: Sequence[Route], by_reference: Collection[int]
) -> frozenset[int]:
    """The slices that a worker quantises in its next contribution. `by_reference`: the servers that
    read this worker's memory. Nothing is quantised for them, because no bytes are sent."""
    if push != INT8:
        return frozenset()
    return frozenset(
        slice_.id
        for slice_ in layout.slices
        if may_be_quantised(layout, slice_) and routes[slice_.id].primary not in by_reference
    )
