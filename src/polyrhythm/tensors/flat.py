"""A worker's model as flat buffers, one for each dtype (spaces). The model's parameters are views
into them.

Versions that arrive are copied into these buffers. Contributions are written into separate *push*
buffers, which servers may read in place. A worker uses several sets of push buffers in turn,
because it must not write to a set before the servers have acknowledged the contribution in it.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from polyrhythm.core.placement.slices import MEAN, Layout, Slice, TensorPlace
from polyrhythm.errors import LinkError, ModelChanged
from polyrhythm.tensors.absent import NO_GRADIENT
from polyrhythm.tensors.changes import BufferChanges
from polyrhythm.tensors.copies import Copies
from polyrhythm.tensors.copying import copy
from polyrhythm.tensors.dtypes import DTYPES, HALVES, tensor_over, wire_dtype
from polyrhythm.tensors.finite import FEW, Numbers, all_finite, few_finite, not_finite, numbers_of
from polyrhythm.tensors.row_gradients import RowGradients
from polyrhythm.tensors.spaces import allocate_spaces, in_order, lay, view_of

PARAMETER, BUFFER = "parameter", "buffer"
_WHY = {
    "replaced": "is not the tensor that was attached: something put another one in its place",
    "removed": "is not in the model any more: something removed it after attach()",
    "reshaped": "has shape {now} now, and had {before} when it was attached",
    "retyped": "has dtype {now} now, and had {before} when it was attached",
    "moved": "is on the device {now} now, and was on {before} when it was attached",
    "relocated": "is not in the memory that attach() gave it: something assigned its .data, or called"
    " .to() or share_memory()",
    "thawed": "requires gradients now, and was frozen when the model was attached, so the servers do"
    " not train it",
}
_ADVICE = {
    "replaced": {
        PARAMETER: "load values with load_state_dict() without assign=True, or copy them with"
        " parameter.data.copy_()",
        BUFFER: "write into it, as in self.{key}.copy_(new) or self.{key} += 1, instead of assigning a"
        " new tensor to self.{key}",
    },
    "removed": dict.fromkeys((PARAMETER, BUFFER), "build the whole model before attach()"),
    "reshaped": {
        PARAMETER: "give the model its final shape before attach()",
        BUFFER: "give the buffer its largest size before attach(), and write into a part of it",
    },
    "retyped": dict.fromkeys(
        (PARAMETER, BUFFER), "convert the model before attach(), or compute under torch.autocast"
    ),
    "moved": dict.fromkeys(
        (PARAMETER, BUFFER), "leave the model on the device where attach() found it"
    ),
    "relocated": {
        PARAMETER: "change it in place, with parameter.data.copy_()",
        BUFFER: "change it in place, with self.{key}.copy_()",
    },
    "thawed": {
        PARAMETER: "attach the model before you freeze parameters, or leave them frozen",
        BUFFER: "",
    },
}


def changed(
    why: str, what: str, tensor: str, *, now: object = "", before: object = ""
) -> ModelChanged:
    """`why`: the change. `what`: parameter or buffer. `tensor`: its name in the model. `now` and
    `before`: the property that changed."""
    found = _WHY[why].format(now=now, before=before)
    advice = _ADVICE[why][what].format(key=tensor.rpartition(".")[2])
    return ModelChanged(f"the {what} {tensor!r} {found}; {advice}")


def left_home(tensor: torch.Tensor, place: TensorPlace, flat: torch.Tensor) -> ModelChanged:
    """The error for a tensor of the model that is no longer at its place in this flat buffer."""
    what = PARAMETER if isinstance(tensor, torch.nn.Parameter) else BUFFER
    name, shape = place.tensor.name, list(place.tensor.shape)
    if list(tensor.shape) != shape:
        return changed("reshaped", what, name, now=list(tensor.shape), before=shape)
    if tensor.dtype != flat.dtype:
        return changed("retyped", what, name, now=tensor.dtype, before=flat.dtype)
    if tensor.device != flat.device:
        return changed("moved", what, name, now=tensor.device, before=flat.device)
    return changed("relocated", what, name)


_FEW_NBYTES = 1 << 18
"""A slice of at most this size is copied as bytes, without making a tensor."""


class FlatModel:
    """`tensors` are the model's parameters and buffers in the order of the spec. `aside`: a version
    that arrives is stored in separate memory until `adopt` or `rebase`, because the user's code
    uses the parameters meanwhile. `models`: the number of the model of each parameter group, if a
    worker has several models. `evaluates`: whether this worker evaluates the model for all. Buffers
    that are not averaged keep their own memory (`tensors/changes.py`)."""

    copies: Copies | None = None
    """The copies between host and device; None for a model in the memory of the host."""

    def __init__(
        self,
        layout: Layout,
        tensors: Sequence[torch.Tensor],
        wire: str,
        *,
        aside: bool = False,
        models: Sequence[int] = (),
        evaluates: Callable[[], bool] = lambda: False,
    ) -> None:
        self.layout = layout
        self._tensors = list(tensors)
        self._places = in_order(layout, len(self._tensors))
        self._own = {
            index: tensor
            for index, (tensor, place) in enumerate(zip(self._tensors, self._places, strict=True))
            if layout.spaces[place.space].buffers and place.tensor.sharing != MEAN
        }
        self._evaluates = evaluates
        self._wires = [wire_dtype(space, wire) for space in layout.spaces]
        self.aside = aside
        self._memory, self._flat, self._here = self._allocate()
        """`_flat`: the spaces with the parameters. `_here` and `_memory`: those into which versions
        that arrive are written, as tensors and as bytes."""
        self._base: dict[int, torch.Tensor] = {}
        self._buffers = self._track_buffers()
        self._sums: list[torch.Tensor] | None = None
        for tensor, place in zip(self._tensors, self._places, strict=True):
            view = view_of(self._flat[place.space], place)
            view.copy_(tensor.detach())
            if place.index not in self._own:
                tensor.data = view
        self._homes = [tensor.data_ptr() for tensor in self._tensors]
        self._parts = [self._here[s.space][s.offset : s.offset + s.length] for s in layout.slices]
        self._bytes = [self.memory_of(slice_) for slice_ in layout.slices]
        self._gradient_views: dict[int, list[torch.Tensor]] = {}
        self._numbers: dict[int, Numbers | None] = {}
        """Push buffers as numpy arrays, by address. The arrays keep the memory alive, so that no
        other memory gets the same address."""
        self._rows = RowGradients(layout, self._tensors, self._places, self._wires)
        self._few = [
            space.length <= FEW and index not in self._rows.spaces
            for index, space in enumerate(layout.spaces)
        ]
        self._trained = [
            (index, self._tensors[index], place, self._few[place.space])
            for index, place in enumerate(self._places)
            if not layout.spaces[place.space].buffers and index not in self._rows
        ]
        self._checked_at_once = [
            index
            for index, space in enumerate(layout.spaces)
            if self._few[index] and space.length and not space.buffers
        ]
        self._models = tuple(models)
        self._others: dict[int, tuple[int, ...]] = {}
        """The slices that the last contribution leaves out because they belong to other models.
        Each has an empty tuple of parts."""

    def _allocate(self) -> tuple[list[memoryview], list[torch.Tensor], list[torch.Tensor]]:
        memory, flat = allocate_spaces(self.layout)
        here = flat
        if self.aside:
            memory, here = allocate_spaces(self.layout)
        return memory, flat, here

    def _track_buffers(self) -> BufferChanges:
        return self._changes(self._flat, aside=self.aside)

    def _changes(self, flat: Sequence[torch.Tensor], *, aside: bool) -> BufferChanges:
        return BufferChanges(
            self.layout, flat, self._here, aside=aside, own=self._own, evaluates=self._evaluates
        )

    @property
    def own_changed(self) -> Mapping[str, TensorPlace]:
        """The buffers that are not averaged and that this worker has sent, by name."""
        return self._buffers.own_changed

    # -- versions that arrive ------------------------------------------------------------------

    def memory_of(self, slice_: Slice) -> memoryview | None:
        """The memory into which a slice's bytes can be received. None if the slice is sent in
        another dtype than it has in the model."""
        item = self._flat[slice_.space].element_size()
        if self._wires[slice_.space].itemsize != item:
            return None
        return self._memory[slice_.space][
            slice_.offset * item : (slice_.offset + slice_.length) * item
        ]

    def land(self, slice_: Slice, data: memoryview) -> None:
        """Copy a slice that was received into other memory to its place in the model."""
        memory = self._bytes[slice_.id]
        if memory is not None and len(memory) == len(data) <= _FEW_NBYTES:
            # copy the bytes, because making a tensor would take longer than copying a small slice
            memory[:] = data
        else:
            copy(self._parts[slice_.id], tensor_over(data, self._wires[slice_.space]))

    def put(self, slice_: Slice, parameters: torch.Tensor) -> None:
        """Give the model the parameters of a slice that this process has computed."""
        copy(self._parts[slice_.id], parameters)

    def land_parts(self, slice_: Slice, parts: tuple[int, ...], data: memoryview) -> None:
        """Copy the parts of a slice of buffers to their places in the model. The parts that were
        not sent are the same as in the previous version."""
        if not self.layout.spaces[slice_.space].buffers:
            raise LinkError(f"slice {slice_.id} came in parts, but only slices of buffers may")
        self._buffers.land(slice_, parts, data)

    def _part(self, slice_: Slice) -> torch.Tensor:
        return self._flat[slice_.space][slice_.offset : slice_.offset + slice_.length]

    def read_in_place(self, memory: memoryview) -> None:
        """Make the parameters views into a server's memory of a version, which is read-only and
        contains the spaces one after the other. Buffers are copied, because forward passes write to
        them."""
        end = 0
        for index, space in enumerate(self.layout.spaces):
            there = tensor_over(memory[end : end + space.nbytes], DTYPES[space.dtype])
            end += space.nbytes
            if space.buffers:
                self._flat[index].copy_(there)
            else:
                self._flat[index] = there
        for tensor, place in zip(self._tensors, self._places, strict=True):
            if place.index not in self._own:
                tensor.data = view_of(self._flat[place.space], place)
        self._homes = [tensor.data_ptr() for tensor in self._tensors]

    def adopt(self) -> None:
        """Replace the parameters by the version that arrived aside. It is the base of later changes
        too."""
        for index, (flat, here) in enumerate(zip(self._flat, self._here, strict=True)):
            flat.copy_(here)
            if index in self._base:
                self._base[index].copy_(here)
        self._buffers.adopt()

    def rebase(self, sent: Sequence[torch.Tensor]) -> None:
        """Replace the base by the version that arrived aside (`new`), and keep the local changes
        that are not in the contribution `sent`: local <- new + (local - base - sent), base <- new.
        If `sent` was rounded to the dtype of the wire, the rounding error stays in the local
        changes."""
        for index, space in enumerate(self.layout.spaces):
            if not space.length or space.buffers:
                continue
            flat, here, base = self._flat[index], self._here[index], self._base[index]
            flat.add_(here).sub_(base).sub_(sent[index])
            base.copy_(here)
        self._buffers.rebase()

    def set_apart(self, sent: Sequence[torch.Tensor]) -> None:
        """Add the contribution `sent` to the base of changes: it is in flight, so its changes must
        not be sent again."""
        for index, space in enumerate(self.layout.spaces):
            if space.length and not space.buffers:
                self._base[index].add_(sent[index])
        self._buffers.set_apart()

    def remember(self, *, parameters: bool) -> None:
        """Make the current buffers the base of changes; with `parameters`, the current parameters
        too."""
        self._buffers.remember()
        for index, space in enumerate(self.layout.spaces):
            if not space.length or space.buffers or not parameters:
                continue
            if index in self._base:
                self._base[index].copy_(self._flat[index])
            else:
                self._base[index] = self._flat[index].clone()

    # -- contributions -------------------------------------------------------------------------

    def check_homes(self) -> None:
        for tensor, home, place in zip(self._tensors, self._homes, self._places, strict=True):
            if tensor.data_ptr() != home and place.index not in self._own:
                raise left_home(tensor, place, self._flat[place.space])

    def seed(self, slice_: Slice) -> torch.Tensor:
        """Return the slice's current parameters in the dtype of the wire."""
        return self._part(slice_).to(self._wires[slice_.space]).contiguous()

    def fill_gradients(self, push: Sequence[torch.Tensor], model: int | None = None) -> None:
        """Write the gradients of the parameters and the changes of the model's buffers into the
        push buffers, of which there is one per space. `model`: of several models, only the
        gradients of this one; the contribution then leaves out the slices of the others."""
        views = self._views_of(push)
        for index, tensor, place, few in self._of_model(model):
            gradient, view = tensor.grad, views[index]
            if gradient is None:
                view.fill_(NO_GRADIENT)
            elif not few:
                lay(push[place.space], view, place, gradient)
            elif gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient.detach() if gradient.requires_grad else gradient)
        if model is None:
            for index in self._checked_at_once:
                self._check(push[index], index, "gradient")
        else:
            for index, _, place, few in self._of_model(model):
                if few and not all_finite(views[index]):
                    raise not_finite("gradient", place.tensor.name)
        self._others = {} if model is None else self._slices_without(model)
        self._rows.fill(push)
        self._buffers.fill(push)

    def _of_model(self, model: int | None) -> list[tuple[int, torch.Tensor, TensorPlace, bool]]:
        """The trained tensors of a model; None: of all models."""
        if model is None:
            return self._trained
        models = self._models
        return [each for each in self._trained if models[each[2].tensor.group] == model]

    def _slices_without(self, model: int) -> dict[int, tuple[int, ...]]:
        """The slices of the parameters of all other models."""
        return {
            slice_.id: ()
            for slice_ in self.layout.slices
            if slice_.group >= 0 and self._models[slice_.group] != model
        }

    def check_gradients(self, model: int | None = None) -> None:
        """Raise NotFinite if a gradient of the model is not finite."""
        for index, tensor in enumerate(self._tensors):
            place, gradient = self._places[index], tensor.grad
            group = place.tensor.group
            if gradient is None or self.layout.spaces[place.space].buffers:
                continue
            if model is not None and self._models[group] != model:
                continue
            if not all_finite(gradient._values() if gradient.is_sparse else gradient):
                raise not_finite("gradient", place.tensor.name)

    def restore_buffers(self, *, sums: bool = True) -> None:
        """Reset the buffers that are not finite to the values of the last version. With `sums`,
        forget the gradients that `gather` has added."""
        self._buffers.restore()
        for gathered in (self._sums or ()) if sums else ():
            gathered.fill_(NO_GRADIENT)
        if sums:
            self._rows.forget()

    def gather(self, points: float) -> None:
        """Add the gradients of a micro-batch, multiplied by its number of points, to the sums."""
        if self._sums is None:
            # Sum in float32: a sum in half precision would lose small summands, or overflow.
            dtypes = [torch.float32 if f.dtype in HALVES else f.dtype for f in self._flat]
            pairs = zip(self._flat, dtypes, strict=True)
            self._sums = [torch.full_like(f, NO_GRADIENT, dtype=dtype) for f, dtype in pairs]
        for index, view in enumerate(self._views_of(self._sums)):
            tensor, space = self._tensors[index], self.layout.spaces[self._places[index].space]
            if index in self._rows:
                self._rows.gather(index, view, points)
            elif tensor.grad is not None and not space.buffers:
                view.add_(tensor.grad.detach(), alpha=points)

    def fill_gathered(self, push: Sequence[torch.Tensor], points: float) -> None:
        """Divide the sums that `gather` made by the total number of points, write the result into
        the push buffers, and reset the sums."""
        assert self._sums is not None
        for index, space in enumerate(self.layout.spaces):
            if not space.buffers and space.length and index not in self._rows.spaces:
                torch.div(self._sums[index], points, out=self._sums[index])
                push[index].copy_(self._sums[index])
                self._check(push[index], index, "gradient")
                self._sums[index].fill_(NO_GRADIENT)
        if self._rows.spaces:
            self._fill_beside_rows(push, self._sums, points)
        self._buffers.fill(push)

    def _fill_beside_rows(
        self, push: Sequence[torch.Tensor], sums: Sequence[torch.Tensor], points: float
    ) -> None:
        """Like `fill_gathered`, for the spaces in which some tensors have gradients of rows."""
        by_tensor, views = self._views_of(sums), self._views_of(push)
        for index, _, place, _ in self._trained:
            if place.space in self._rows.spaces:
                views[index].copy_(by_tensor[index].div_(points))
                if not all_finite(views[index]):
                    raise not_finite("gradient", place.tensor.name)
                by_tensor[index].fill_(NO_GRADIENT)
        self._rows.fill_gathered(push, dict(enumerate(by_tensor)), points)

    def _views_of(self, push: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a view into these push buffers for each tensor of the model. The views are
        cached."""
        # the maximum, because an empty tensor has the address 0
        key = max(tensor.data_ptr() for tensor in push)
        if key not in self._gradient_views:
            self._gradient_views[key] = [
                view_of(push[place.space], place) for place in self._places
            ]
        return self._gradient_views[key]

    def fill_changes(self, push: Sequence[torch.Tensor]) -> None:
        """Write the changes of parameters and buffers since the base into the push buffers."""
        for index, space in enumerate(self.layout.spaces):
            if not space.buffers:
                change = push[index]
                if change.dtype == self._flat[index].dtype:
                    torch.sub(self._flat[index], self._base[index], out=change)
                else:
                    change.copy_(self._flat[index] - self._base[index])
                self._check(push[index], index, "parameter")
        self._others = {}
        self._buffers.fill(push)

    def fill_values(self, push: Sequence[torch.Tensor], values: Mapping[int, torch.Tensor]) -> None:
        """Write these values of tensors, by their numbers in the spec, into the push buffers. The
        contribution leaves out the slices of buffers unless it has values of all buffers."""
        views = self._views_of(push)
        for index, value in values.items():
            views[index].copy_(value)
        buffers = [s.id for s in self.layout.slices if self.layout.spaces[s.space].buffers]
        self._buffers.changed = {} if len(values) == len(views) else dict.fromkeys(buffers, ())
        self._others = {}

    @property
    def changed(self) -> dict[int, tuple[int, ...]]:
        """Per slice of buffers, the numbers of the parts that are in the last contribution. Slices
        of parameters that it leaves out have an entry without parts."""
        return self._buffers.changed | self._others if self._others else self._buffers.changed

    @property
    def indices(self) -> dict[int, int]:
        """For each slice of which the last contribution contains only rows, the number of these
        rows."""
        return self._rows.sent

    @property
    def row_tensors(self) -> set[int]:
        """The ids of the tensors whose gradients are contributed row by row."""
        return {id(tensor) for i, tensor in enumerate(self._tensors) if i in self._rows}

    @property
    def trained(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters that are optimized, with their names."""
        return [
            (place.tensor.name, tensor)
            for tensor, place in zip(self._tensors, self._places, strict=True)
            if place.length and not self.layout.spaces[place.space].buffers
        ]

    def check_parameters(self) -> None:
        """Raise NotFinite if a parameter of the model is not finite."""
        for name, tensor in self.trained:
            if not all_finite(tensor.detach()):
                raise not_finite("parameter", name)

    def _finite(self, change: torch.Tensor) -> bool:
        key = change.data_ptr()
        if key not in self._numbers:
            self._numbers[key] = numbers_of(change)
        numbers = self._numbers[key]
        return all_finite(change) if numbers is None else few_finite(numbers)

    def _check(self, change: torch.Tensor, space: int, what: str) -> None:
        """`what`: see `not_finite`."""
        if not self._finite(change):
            for place in self._places:
                if place.space == space and not all_finite(view_of(change, place)):
                    raise not_finite(what, place.tensor.name)

    def push_buffers(
        self, allocate: Callable[[int], memoryview]
    ) -> tuple[list[memoryview], list[torch.Tensor]]:
        """Allocate memory for one contribution: a buffer per space, in the dtype of the wire."""
        memory, tensors = [], []
        for space, wire in zip(self.layout.spaces, self._wires, strict=True):
            memory.append(allocate(space.length * wire.itemsize))
            tensors.append(tensor_over(memory[-1], wire) if space.length else torch.empty(0))
        return memory, tensors

    def wire_range(self, slice_: Slice) -> tuple[int, int]:
        """Return (offset, nbytes) of a slice in its space's push buffer."""
        item = self._wires[slice_.space].itemsize
        return slice_.offset * item, slice_.length * item
