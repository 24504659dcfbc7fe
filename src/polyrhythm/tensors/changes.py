"""The buffers of a worker's model: which buffers the worker has changed since the last version, and
by how much.

*A buffer is constant as long as its bits are those of the version that the worker began from.
Constant buffers are not sent: the servers have them from the seed.* Every contribution compares
again, so a buffer that begins to change later is sent from then on. The comparison uses bits
instead of values, because NaN does not equal itself, and the difference of two infinities is NaN.

A buffer that is not averaged (`core/placement/slices.py`) stays in the memory of the user's model,
and the spaces have the servers' values of it. *Only the evaluator sends such a buffer, as its
value. A worker reads the servers' values once, when it joins; later it reads only those of `first`
buffers, unless it is the evaluator.*
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from polyrhythm.core.placement.slices import FIRST, Layout, Slice, TensorPlace
from polyrhythm.errors import LinkError
from polyrhythm.tensors.buffers import parts_length, pieces_of
from polyrhythm.tensors.dtypes import tensor_over
from polyrhythm.tensors.finite import all_finite, not_finite
from polyrhythm.tensors.spaces import view_of

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""For each size of an element in bytes, the integer type of this size."""


@dataclass(slots=True)
class _Buffer:
    place: TensorPlace
    parts: list[tuple[int, int, int, int]]
    """The pieces of this buffer in slices: the slice, the number of the part in that slice, and the
    range [first, end) of elements, counted from the beginning of the buffer."""
    own: torch.Tensor | None = None
    """The tensor of the user's model, if the buffer is not averaged."""
    last: torch.Tensor | None = None
    """The values of `own` when the worker began with the present version."""

    def values(self) -> torch.Tensor:
        """The elements of `own`, copied to host memory, in the order in which they are laid out in
        the buffer's space."""
        assert self.own is not None
        tensor, spec = self.own.detach(), self.place.tensor
        if tuple(tensor.stride()) != spec.strides:
            there = torch.empty(self.place.length, dtype=tensor.dtype)
            there.as_strided(spec.shape, spec.strides).copy_(tensor)
            return there
        return tensor.as_strided((self.place.length,), (1,)).cpu()


class BufferChanges:
    """`flat`: the spaces on which the model computes. `here`: the spaces into which arriving
    versions are written. `aside`: whether `here` is separate memory; otherwise both are the same
    memory. `own`: by their index in the spec, the tensors of the user's model that are not averaged.
    `evaluates`: whether this worker evaluates the model for all."""

    def __init__(
        self,
        layout: Layout,
        flat: Sequence[torch.Tensor],
        here: Sequence[torch.Tensor],
        *,
        aside: bool,
        own: Mapping[int, torch.Tensor],
        evaluates: Callable[[], bool],
    ) -> None:
        self.changed: dict[int, tuple[int, ...]] = {}
        self.own_changed: dict[str, TensorPlace] = {}
        """The buffers that are not averaged and that this worker has sent, by name."""
        self._evaluates = evaluates
        self._joined = False
        """Whether the worker has read the servers' values of the buffers that are not averaged."""
        self._slices = {s.id: s for s in layout.slices if layout.spaces[s.space].buffers}
        spaces = sorted({s.space for s in self._slices.values()})
        self._flat = {index: flat[index] for index in spaces}
        self._here = {index: here[index] for index in spaces}
        self._base = {index: flat[index].clone() for index in spaces}
        self._left = {index: flat[index].clone() for index in spaces} if aside else {}
        """The values of the buffers when the last contribution was sent."""
        self._all = [
            _Buffer(place, self._parts_of(place), own.get(place.index))
            for place in layout.places
            if place.space in self._flat and place.length
        ]
        self._averaged = [buffer for buffer in self._all if buffer.own is None]
        self._own = [buffer for buffer in self._all if buffer.own is not None]

    def _parts_of(self, place: TensorPlace) -> list[tuple[int, int, int, int]]:
        found = []
        for slice_ in self._slices.values():
            for number, (first, end) in enumerate(slice_.parts):
                at = slice_.offset + first - place.offset
                if slice_.space == place.space and 0 <= at < place.length:
                    found.append((slice_.id, number, at, at + end - first))
        return found

    def remember(self) -> None:
        """Make the current buffers the base of changes: the worker continues with a new version."""
        for index, base in self._base.items():
            base.copy_(self._flat[index])
        if not self._left:
            self._take()

    def adopt(self) -> None:
        """Continue with a version that has arrived, and drop the worker's changes."""
        self.remember()
        self._take()

    def _take(self) -> None:
        """Copy the servers' values of buffers that are not averaged from the version that has
        arrived, unless this worker keeps its own values."""
        first = not self._joined
        self._joined = True
        for buffer in self._own:
            place, own = buffer.place, buffer.own
            assert own is not None
            if first or (place.tensor.sharing == FIRST and not self._evaluates()):
                own.data.copy_(view_of(self._here[place.space], place))
            if buffer.last is None:
                buffer.last = own.detach().clone()
            else:
                buffer.last.copy_(own.detach())

    def land(self, slice_: Slice, parts: tuple[int, ...], data: memoryview) -> None:
        """Write the parts of a slice that a new version changes to their places. All parts of the
        slice that `parts` does not name are as in the previous version."""
        here = self._here[slice_.space][slice_.offset : slice_.offset + slice_.length]
        # If `aside` is not set, the model computes in `here` and may have changed it. So the parts
        # that were not sent are copied from the base.
        if not self._left:
            here.copy_(self._base[slice_.space][slice_.offset : slice_.offset + slice_.length])
        length = parts_length(slice_, parts)
        if length is None or length * here.element_size() != len(data):
            raise LinkError(
                f"the peer sent {len(data)} bytes, which do not fit parts {list(parts)} of slice"
                f" {slice_.id}"
            )
        incoming = tensor_over(data, here.dtype) if length else here[:0]
        for part, piece in pieces_of(slice_, incoming, parts):
            first, end = slice_.parts[part]
            here[first:end].copy_(piece)

    def fill(self, push: Sequence[torch.Tensor]) -> None:
        """Write the changed buffers into the push buffers: the changed parts of each slice one
        after the other. Floating-point numbers are written as their change, integers as their
        value."""
        numbers: dict[int, list[int]] = {slice_: [] for slice_ in self._slices}
        ends = {slice_.id: slice_.offset for slice_ in self._slices.values()}
        evaluates = bool(self._own) and self._evaluates()
        for buffer in self._all:
            if buffer.own is None:
                now, base = self._of(self._flat, buffer), self._of(self._base, buffer)
                if _same(now, base):
                    continue
                change = _change(now, base)
                if not all_finite(change):
                    raise not_finite("buffer", buffer.place.tensor.name)
            else:
                if not evaluates or _same(change := buffer.values(), self._of(self._here, buffer)):
                    continue
                for known in (self._here, self._base):
                    self._of(known, buffer).copy_(change)
                self.own_changed.setdefault(buffer.place.tensor.name, buffer.place)
            for slice_, number, first, last in buffer.parts:
                end = ends[slice_]
                ends[slice_] += last - first
                push[buffer.place.space][end : ends[slice_]].copy_(change[first:last])
                numbers[slice_].append(number)
        self.changed = {slice_: tuple(parts) for slice_, parts in numbers.items()}
        for index, left in self._left.items():
            left.copy_(self._flat[index])

    def restore(self) -> None:
        """Reset the buffers that are not finite to the values of the last version."""
        for buffer in self._averaged:
            now = self._of(self._flat, buffer)
            if now.is_floating_point() and not all_finite(now):
                now.copy_(self._of(self._base, buffer))
        for buffer in self._own:
            own, last = buffer.own, buffer.last
            assert own is not None
            if last is not None and own.is_floating_point() and not all_finite(own.detach()):
                own.data.copy_(last)

    def set_apart(self) -> None:
        """Make the values of the last contribution the base of changes. The contribution is in
        flight, so its changes must not be sent again."""
        for index, left in self._left.items():
            self._base[index].copy_(left)

    def rebase(self) -> None:
        """Replace the base by the version that has arrived in separate memory, and keep the local
        changes since the last contribution."""
        for buffer in self._averaged:
            now, left, here = (
                self._of(spaces, buffer) for spaces in (self._flat, self._left, self._here)
            )
            if _same(now, left):
                now.copy_(here)
            elif now.is_floating_point():
                now.copy_(torch.where(_bits(now) == _bits(left), here, here + (now - left)))
            else:
                torch.maximum(now, here, out=now)
        for index, base in self._base.items():
            base.copy_(self._here[index])
        self._take()

    def _of(self, spaces: dict[int, torch.Tensor], buffer: _Buffer) -> torch.Tensor:
        place = buffer.place
        return spaces[place.space][place.offset : place.offset + place.length]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_BITS[tensor.element_size()])


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(_bits(one), _bits(other))


def _change(now: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    if not now.is_floating_point():
        return now
    change = now - base
    # the change of an element that stays infinite or NaN is 0, and not NaN
    if not all_finite(change):
        change[_bits(now) == _bits(base)] = 0
    return change
