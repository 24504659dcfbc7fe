"""Lays out the tensors of a model in flat buffers ("spaces", one per role and dtype), and cuts
these into slices.

A slice is a contiguous range of a space. It lies inside one parameter group and has at most
`slice_nbytes`. There are at least as many slices as servers. A tensor whose gradients contain only
some rows (a sparse gradient) has its own slices, which are cut between rows. Probe slices, if any,
are cut from the beginning of the longest range of parameters. All processes compute the same
slices, because they use the same model description, which contains the division.

Workers share a buffer of the model, such as a running mean, in one of three ways (`SHARINGS`):

*mean*: every worker gets the mean of the values of all workers that changed the buffer, weighted by
their points. Of integers it gets the largest value. *first*: every worker gets the values of the
evaluator, the one worker that evaluates the model. *local*: every worker keeps its own values. The
servers then hold the values of the evaluator, for the saved model, for checkpoints, and for workers
that join or resume.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from polyrhythm.core.placement.assignment import PROBE_NBYTES
from polyrhythm.core.placement.division import given_division
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import JobSpec, ModelSpec, TensorSpec

MEAN, FIRST, LOCAL = "mean", "first", "local"
SHARINGS = (MEAN, LOCAL, FIRST)


ALIGN = 64
"""Alignment in bytes: tensors and slices begin on a cache line."""

ITEM_NBYTES = {
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
BUFFERS = -1
"""The group of tensors that are not optimized: buffers, and parameters outside the optimizer."""


class TensorPlace(msgspec.Struct, frozen=True):
    """The offset of a tensor in its space, in elements."""

    tensor: TensorSpec
    index: int
    space: int
    offset: int
    length: int


class Slice(msgspec.Struct, frozen=True):
    """A slice: a contiguous range of a space, in elements."""

    id: int
    space: int
    group: int
    offset: int
    length: int
    parts: tuple[tuple[int, int], ...] = ()
    """The ranges of the tensors (or of the parts of tensors) in the slice: (first, end), relative
    to the beginning of the slice."""
    width: int = 0
    """If positive, the slice consists of whole rows of one tensor, and a row has this many elements.
    Contributions may contain only some of these rows."""
    values: frozenset[int] = frozenset()
    """The indices of the parts whose values are those of the evaluator, and not a mean over
    workers."""
    local: frozenset[int] = frozenset()
    """The indices, among `values`, of the parts that a worker reads only when it joins."""

    @property
    def rows(self) -> int:
        """The number of rows in the slice; 0 if it does not consist of rows."""
        return (self.parts[0][1] - self.parts[0][0]) // self.width if self.width else 0


class Space(msgspec.Struct, frozen=True):
    dtype: str
    buffers: bool
    length: int

    @property
    def item_nbytes(self) -> int:
        return ITEM_NBYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.length * self.item_nbytes


class Layout(msgspec.Struct, frozen=True):
    spaces: tuple[Space, ...]
    places: tuple[TensorPlace, ...]
    slices: tuple[Slice, ...]

    @property
    def nbytes(self) -> int:
        return sum(space.nbytes for space in self.spaces)


def layout_of(spec: ModelSpec, job: JobSpec) -> Layout:
    """The layout of the model of a job."""
    division = spec.division or given_division(job)
    if division is None:
        raise InvariantBroken("the lead has not decided how the model is cut into slices")
    return lay_out(spec, division.servers, division.slice_nbytes, division.probes)


def lay_out(spec: ModelSpec, servers: int, slice_nbytes: int, probes: int = 0) -> Layout:
    """The layout of a model for this number of servers, slice size and number of probe slices."""
    keys = sorted({(t.group == BUFFERS, t.dtype) for t in spec.tensors})
    spaces, places = [], []
    runs: list[_Run] = []
    for space, (buffers, dtype) in enumerate(keys):
        align = max(1, ALIGN // ITEM_NBYTES[dtype])
        end = 0
        members = [
            (index, tensor)
            for index, tensor in enumerate(spec.tensors)
            if (tensor.group == BUFFERS, tensor.dtype) == (buffers, dtype)
        ]
        for group in sorted({tensor.group for _, tensor in members}):
            first = end
            item = ITEM_NBYTES[dtype]
            for index, tensor in ((i, t) for i, t in members if t.group == group):
                length = math.prod(tensor.shape)
                places.append(TensorPlace(tensor, index, space, end, length))
                began, end = end, end + -(-length // align) * align
                if width := _width_of(tensor, align, slice_nbytes // item):
                    unit = math.lcm(align, width)
                    runs.append(_Run(space, group, first, began, align, item))
                    runs.append(_Run(space, group, began, end, unit, item, width))
                    first = end
            runs.append(_Run(space, group, first, end, align, item))
        spaces.append(Space(dtype, buffers, end))
    runs = [run for run in runs if run.end > run.first]
    cut = _cut(_with_probes(runs, probes), places, servers, slice_nbytes)
    return Layout(tuple(spaces), tuple(places), cut)


class _Run(msgspec.Struct, frozen=True):
    """A range [first, end) of a space that is cut into slices. Slices begin at multiples of `unit`
    elements. `width`: see `Slice.width`."""

    space: int
    group: int
    first: int
    end: int
    unit: int
    item: int
    width: int = 0
    most_nbytes: int = 0
    """The largest size of a slice in this range; 0 if the range has no limit apart from the
    division's."""


def _with_probes(runs: list[_Run], probes: int) -> list[_Run]:
    """Cut probe slices from the beginning of the longest range. They take at most half of that
    range, so a very small model has fewer of them."""
    whole = [run for run in runs if not run.width and run.group != BUFFERS]
    if not probes or not whole:
        return runs
    longest = max(whole, key=lambda run: (run.end - run.first) * run.item)
    probe = PROBE_NBYTES // longest.item
    end = longest.first + min(probes, (longest.end - longest.first) // (2 * probe)) * probe
    parts = [replace(longest, end=end, most_nbytes=PROBE_NBYTES), replace(longest, first=end)]
    at = runs.index(longest)
    return [run for run in (*runs[:at], *parts, *runs[at + 1 :]) if run.end > run.first]


def _width_of(tensor: TensorSpec, align: int, most: int) -> int:
    """The width of the rows into which this tensor is cut. 0: the tensor is not cut between rows,
    because its gradients contain all rows, or because a slice would need more than `most`
    elements."""
    if not tensor.rows or tensor.group == BUFFERS or not tensor.shape:
        return 0
    width = math.prod(tensor.shape[1:])
    return width if tensor.shape[0] and width and math.lcm(align, width) <= most else 0


def _cut(
    runs: list[_Run],
    places: list[TensorPlace],
    servers: int,
    slice_nbytes: int,
) -> tuple[Slice, ...]:
    total_nbytes = sum((run.end - run.first) * run.item for run in runs)
    share_nbytes = total_nbytes // max(1, servers)
    slices = _cut_at(runs, places, min(slice_nbytes, -(-share_nbytes // ALIGN) * ALIGN))
    # a slice size rounded up to whole cache lines can give fewer slices than servers
    if len(slices) < servers:
        slices = _cut_at(runs, places, min(slice_nbytes, share_nbytes))
    return slices


def _cut_at(runs: list[_Run], places: list[TensorPlace], limit_nbytes: int) -> tuple[Slice, ...]:
    slices: list[Slice] = []
    ends = [(place.space, place.offset + place.length) for place in places]
    for run in runs:
        first, end = run.first, run.end
        most = min(limit_nbytes, run.most_nbytes or limit_nbytes)
        limit = max(1, most // run.item // run.unit) * run.unit
        count = -(-(end - first) // limit)
        step = -(-(end - first) // count // run.unit) * run.unit
        for offset in range(first, end, step):
            length = min(step, end - offset)
            inside = _places(places, ends, run.space, offset, offset + length)
            shared = [place.tensor.sharing for place in inside if run.group == BUFFERS]
            cut = Slice(
                len(slices),
                run.space,
                run.group,
                offset,
                length,
                _parts(inside, offset, offset + length),
                run.width,
                frozenset(part for part, sharing in enumerate(shared) if sharing != MEAN),
                frozenset(part for part, sharing in enumerate(shared) if sharing == LOCAL),
            )
            slices.append(cut)
    return tuple(slices)


def _places(
    places: list[TensorPlace], ends: list[tuple[int, int]], space: int, first: int, end: int
) -> list[TensorPlace]:
    """The tensors that overlap [first, end) of a space. `places` must be in ascending order."""
    found = []
    for place in places[bisect_right(ends, (space, first)) :]:
        if place.space != space or place.offset >= end:
            break
        if place.length:
            found.append(place)
    return found


def _parts(inside: list[TensorPlace], first: int, end: int) -> tuple[tuple[int, int], ...]:
    """The ranges of these tensors in [first, end) of their space, relative to `first`."""
    return tuple(
        (max(place.offset, first) - first, min(place.offset + place.length, end) - first)
        for place in inside
    )


def pack(slices: Sequence[Slice], item_nbytes: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """Pack slices into one buffer. Returns the offset and the size of each in bytes, and the size
    of the buffer."""
    places, end = [], 0
    for slice_, item in zip(slices, item_nbytes, strict=True):
        nbytes = slice_.length * item
        places.append((end, nbytes))
        end += -(-nbytes // ALIGN) * ALIGN
    return places, end
