"""A worker's model on a device such as a GPU. The parameters are views into flat buffers on the
device, as those of a model in host memory are (`tensors/flat.py`).

Versions arrive in memory of the host, and are copied to the device. *A contribution is built and
checked on the device, and copied to the push buffers in one piece per space. The host waits only
once for all of that.* Buffers of the model are small, so they are copied to host memory and
compared there with the last version.

Besides parameters and gradients, the device needs memory for one more model: the contribution (kind
gradient), the sums of the micro-batches, or the base of the changes (kind local).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from polyrhythm.core.placement.slices import Layout, Slice
from polyrhythm.tensors.absent import NO_GRADIENT
from polyrhythm.tensors.changes import BufferChanges
from polyrhythm.tensors.copies import Copies, Work, copies_for
from polyrhythm.tensors.copying import copy
from polyrhythm.tensors.dtypes import DTYPES, tensor_over
from polyrhythm.tensors.finite import check_all, largest_of, magnitudes, not_finite
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.spaces import pieces_of, view_of

_EARLY_NBYTES = 1 << 18
"""A slice of at least this size is copied to the device as soon as it has arrived."""
Pack = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Range = tuple[int, int, int]
"""A space, and the first and the last element (exclusive) of a part of it."""


def flatten(
    layout: Layout,
    tensors: Sequence[torch.Tensor],
    wire: str,
    *,
    aside: bool = False,
    models: Sequence[int] = (),
    evaluates: Callable[[], bool] = lambda: False,
) -> FlatModel:
    """Make the flat model of these tensors, which are on one device or in host memory."""
    device = tensors[0].device if tensors else torch.device("cpu")
    copies = copies_for(device)
    if copies is None:
        return FlatModel(layout, tensors, wire, aside=aside, models=models, evaluates=evaluates)
    return DeviceModel(
        layout, tensors, wire, copies, aside=aside, models=models, evaluates=evaluates
    )


class DeviceModel(FlatModel):
    copies: Copies

    def __init__(
        self,
        layout: Layout,
        tensors: Sequence[torch.Tensor],
        wire: str,
        copies: Copies,
        *,
        aside: bool = False,
        models: Sequence[int] = (),
        evaluates: Callable[[], bool] = lambda: False,
    ) -> None:
        self.copies = copies
        self._uploading = False
        """Whether the device may still read the memory in which versions arrive."""
        self._early: set[int] = set()
        """The slices of the arriving version that are being copied to the device, or were
        copied."""
        self._through = aside
        self._parameters = [i for i, s in enumerate(layout.spaces) if s.length and not s.buffers]
        self._buffer_spaces = [i for i, s in enumerate(layout.spaces) if s.length and s.buffers]
        self._outgoing: dict[int, torch.Tensor] = {}
        self._outgoing_views: dict[int, torch.Tensor] = {}
        self._bounce: list[torch.Tensor] | None = None
        super().__init__(layout, tensors, wire, aside=aside, models=models, evaluates=evaluates)
        # versions arrive in host memory, and never in the memory of the parameters
        self.aside = True
        self._dense = list(self._dense_ranges())
        self._verdicts = self._host_tensor(len(tensors) + len(layout.spaces), torch.bool)
        """For each tensor or space that was checked on the device, whether it is finite."""

    def _allocate(self) -> tuple[list[memoryview], list[torch.Tensor], list[torch.Tensor]]:
        flat = [
            torch.zeros(space.length, dtype=DTYPES[space.dtype], device=self.copies.device)
            for space in self.layout.spaces
        ]
        here = self._host_spaces()
        memory = [each.view(torch.uint8).numpy().data for each in here]
        return memory, flat, here

    def _host_spaces(self) -> list[torch.Tensor]:
        """Host memory for all spaces, in the dtypes in which they are sent."""
        pairs = zip(self.layout.spaces, self._wires, strict=True)
        return [self._host_tensor(space.length, wire) for space, wire in pairs]

    def _host_tensor(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        return self.copies.host_memory(length * dtype.itemsize).view(dtype)

    def _track_buffers(self) -> BufferChanges:
        """The buffers are compared in host memory. Versions arrive in the same memory, unless the
        worker trains while they arrive."""
        self._mirrors = list(self._here)
        for index in self._buffer_spaces if self._through else ():
            space = self.layout.spaces[index]
            self._mirrors[index] = self._host_tensor(space.length, self._wires[index])
        return self._changes(self._mirrors, aside=self._through)

    def _dense_ranges(self) -> Iterator[Range]:
        """The parts of the parameters whose gradients are not contributed row by row: whole spaces,
        or single tensors of a space in which others contribute rows."""
        for index in self._parameters:
            if index not in self._rows.spaces:
                yield index, 0, self.layout.spaces[index].length
                continue
            for number, _, place, _ in self._trained:
                if place.length and place.space == index and number not in self._rows:
                    yield index, place.offset, place.offset + place.length

    # -- versions that arrive ------------------------------------------------------------------

    def memory_of(self, slice_: Slice) -> memoryview | None:
        self._claim()
        self._early.discard(slice_.id)
        item = self._wires[slice_.space].itemsize
        return self._memory[slice_.space][
            slice_.offset * item : (slice_.offset + slice_.length) * item
        ]

    def _claim(self) -> None:
        """Wait until the device no longer reads the memory of the previous version, because the
        next one begins to arrive."""
        if self._uploading:
            self.copies.await_uploads()
            self._uploading = False

    def land(self, slice_: Slice, data: memoryview) -> None:
        self._claim()
        super().land(slice_, data)
        if self._through or self.layout.spaces[slice_.space].buffers or len(data) < _EARLY_NBYTES:
            self._early.discard(slice_.id)
            return
        end = slice_.offset + slice_.length
        self.copies.upload(partial(self._upload, [(slice_.space, slice_.offset, end)]))
        self._early.add(slice_.id)

    def put(self, slice_: Slice, parameters: torch.Tensor) -> None:
        self._claim()
        self._early.discard(slice_.id)
        super().put(slice_, parameters)

    def land_parts(self, slice_: Slice, parts: tuple[int, ...], data: memoryview) -> None:
        self._claim()
        super().land_parts(slice_, parts, data)

    def read_in_place(self, memory: memoryview) -> None:
        """Copy a version from a server's memory, because a device cannot use that memory in
        place."""
        self._claim()
        end = 0
        for here, space in zip(self._here, self.layout.spaces, strict=True):
            there = tensor_over(memory[end : end + space.nbytes], here.dtype)
            copy(here, there)
            end += space.nbytes

    def adopt(self) -> None:
        if self._through:
            for index in self._buffer_spaces:
                self._mirrors[index].copy_(self._here[index])
        self._begin_upload(partial(self._upload, [*self._left(), *self._whole_buffers()]))
        self._early.clear()
        for index, base in self._base.items():
            base.copy_(self._flat[index])
        self._buffers.adopt()

    def _begin_upload(self, work: Work) -> None:
        self._uploading = True
        self.copies.upload(work)
        self.copies.join()

    def _left(self) -> list[Range]:
        """The parts of the parameters whose copy to the device has not begun yet."""
        left: list[Range] = []
        for slice_ in self.layout.slices:
            if slice_.id in self._early or self.layout.spaces[slice_.space].buffers:
                continue
            end = slice_.offset + slice_.length
            if left and left[-1][0] == slice_.space and left[-1][2] == slice_.offset:
                left[-1] = (slice_.space, left[-1][1], end)
            else:
                left.append((slice_.space, slice_.offset, end))
        return left

    def _whole_buffers(self) -> list[Range]:
        return [(index, 0, self.layout.spaces[index].length) for index in self._buffer_spaces]

    def _upload(self, ranges: Sequence[Range]) -> None:
        for space, first, end in ranges:
            source, target = self._mirrors[space][first:end], self._flat[space][first:end]
            if source.dtype == target.dtype:
                target.copy_(source, non_blocking=True)
            else:
                for begin, last in pieces_of(target):
                    target[begin:last].copy_(self._on_device(source[begin:last]))

    def _on_device(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self.copies.device, non_blocking=True)

    def rebase(self, sent: Sequence[torch.Tensor]) -> None:
        self._download_buffers()
        self._buffers.rebase()
        self._begin_upload(partial(self._rebase, sent))

    def _rebase(self, sent: Sequence[torch.Tensor]) -> None:
        for index in self._parameters:
            for begin, end in pieces_of(self._flat[index]):
                here = self._on_device(self._here[index][begin:end])
                base = self._base[index][begin:end]
                contributed = self._on_device(sent[index][begin:end])
                self._flat[index][begin:end].add_(here).sub_(base).sub_(contributed)
                base.copy_(here)
        self._upload(self._whole_buffers())

    def set_apart(self, sent: Sequence[torch.Tensor]) -> None:
        def add() -> None:
            for index in self._parameters:
                for begin, end in pieces_of(self._base[index]):
                    self._base[index][begin:end].add_(self._on_device(sent[index][begin:end]))

        self.copies.upload(add)
        self.copies.join()
        self._buffers.set_apart()

    # -- contributions -------------------------------------------------------------------------

    def fill_gradients(self, push: Sequence[torch.Tensor], model: int | None = None) -> None:
        if not self._outgoing:
            self._allocate_outgoing()
        self._send(push, partial(self._pack, model=model), model)
        self._others = {} if model is None else self._slices_without(model)
        self._rows.fill(push)
        self._buffers.fill(push)

    def _allocate_outgoing(self) -> None:
        """Allocate the device's memory in which contributions of gradients are built."""
        for index in self._parameters:
            space, dtype = self.layout.spaces[index], self._wires[index]
            self._outgoing[index] = torch.full(
                (space.length,), NO_GRADIENT, dtype=dtype, device=self.copies.device
            )
        self._outgoing_views = {
            number: view_of(self._outgoing[place.space], place)
            for number, _, place, _ in self._trained
        }

    def _pack(self, targets: Sequence[torch.Tensor], model: int | None) -> list[torch.Tensor]:
        views: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        trained = self._of_model(model)
        for number, tensor, _, _ in trained:
            if tensor.grad is None:
                self._outgoing_views[number].fill_(NO_GRADIENT)
            else:
                views.append(self._outgoing_views[number])
                gradients.append(tensor.grad.detach())
        if views:
            torch._foreach_copy_(views, gradients)
        parts = [(space, first, end, self._outgoing[space]) for space, first, end in self._dense]
        for space, first, end, outgoing in parts:
            targets[space][first:end].copy_(outgoing[first:end], non_blocking=True)
        # The copy is started before the check, so that the host prepares the check while the device
        # copies.
        if model is None:
            return [largest_of(outgoing[first:end]) for _, first, end, outgoing in parts]
        return magnitudes([view for view in views if view.numel()])

    def fill_gathered(self, push: Sequence[torch.Tensor], points: float) -> None:
        assert self._sums is not None
        self._send(push, partial(self._pack_sums, sums=self._sums, points=points))
        if self._rows.spaces:
            self._rows.fill_gathered(push, dict(enumerate(self._views_of(self._sums))), points)
        self._others = {}
        self._buffers.fill(push)

    def _pack_sums(
        self, targets: Sequence[torch.Tensor], sums: Sequence[torch.Tensor], points: float
    ) -> list[torch.Tensor]:
        largest = []
        for space, first, end in self._dense:
            mean = sums[space][first:end].div_(points)
            self._download(targets[space][first:end], mean)
            largest.append(largest_of(mean))
            mean.fill_(NO_GRADIENT)
        return largest

    def fill_changes(self, push: Sequence[torch.Tensor]) -> None:
        self._send(push, self._pack_changes, what="parameter")
        self._others = {}
        self._buffers.fill(push)

    def _pack_changes(self, targets: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        largest = []
        for index in self._parameters:
            flat, base = self._flat[index], self._base[index]
            pieces, scratch = [], torch.empty_like(flat[: next(pieces_of(flat))[1]])
            for begin, end in pieces_of(flat):
                # `scratch` can be overwritten now: the device copies the previous piece before it
                # computes this one.
                change = torch.sub(flat[begin:end], base[begin:end], out=scratch[: end - begin])
                self._download(targets[index][begin:end], change)
                pieces.append(largest_of(change))
            largest.append(torch.stack(pieces).amax())
        return largest

    def _download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if source.dtype == target.dtype:
            target.copy_(source, non_blocking=True)
            return
        for begin, end in pieces_of(source):
            target[begin:end].copy_(source[begin:end].to(target.dtype), non_blocking=True)

    def _send(
        self,
        push: Sequence[torch.Tensor],
        pack: Pack,
        model: int | None = None,
        what: str = "gradient",
    ) -> None:
        """Copy a contribution to the push buffers, and the buffers of the model to the host. `pack`
        copies the contribution to the tensors that it gets, and returns the largest magnitude of
        each part of the contribution. Raise NotFinite if a part is not finite."""
        targets = self._targets(push)
        checked = 0

        def work() -> None:
            nonlocal checked
            largest = pack(targets)
            checked = len(largest)
            if largest:
                finite = torch.stack([each.isfinite() for each in largest])
                self._verdicts[:checked].copy_(finite, non_blocking=True)
            self._download_mirrors()

        self.copies.download(work)
        self.copies.synchronise()
        self._uploading = False
        finite = bool(self._verdicts[:checked].all())
        if targets is not push:
            for space, first, end in self._dense:
                copy(push[space][first:end], targets[space][first:end])
        if not finite:
            self._name(push, model, what)

    def _targets(self, push: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The pinned memory into which a contribution is copied: the push buffers themselves, if
        they can be pinned."""
        if self._bounce is None and all(self.copies.pin(push[index]) for index in self._parameters):
            return push
        if self._bounce is None:
            self._bounce = self._host_spaces()
        return self._bounce

    def _name(self, push: Sequence[torch.Tensor], model: int | None, what: str) -> None:
        """Raise the error that names the first tensor that is not finite."""
        for _, _, place, _ in self._of_model(model):
            if not view_of(push[place.space], place).isfinite().all():
                raise not_finite(what, place.tensor.name)

    def check_gradients(self, model: int | None = None) -> None:
        names, values = [], []
        for tensor, place in zip(self._tensors, self._places, strict=True):
            gradient, group = tensor.grad, place.tensor.group
            if gradient is None or self.layout.spaces[place.space].buffers:
                continue
            if model is None or self._models[group] == model:
                names.append(place.tensor.name)
                values.append(gradient._values() if gradient.is_sparse else gradient.detach())
        check_all("gradient", names, values)

    def check_parameters(self) -> None:
        names = [name for name, _ in self.trained]
        check_all("parameter", names, [tensor.detach() for _, tensor in self.trained])

    # -- buffers of the model ------------------------------------------------------------------

    def _download_mirrors(self) -> None:
        for index in self._buffer_spaces:
            self._mirrors[index].copy_(self._flat[index], non_blocking=True)

    def _download_buffers(self) -> None:
        """Copy the buffers of the model to the host, and wait for them."""
        if self._buffer_spaces:
            self._claim()
            self.copies.download(self._download_mirrors)
            self.copies.synchronise()

    def restore_buffers(self, *, sums: bool = True) -> None:
        self._download_buffers()
        super().restore_buffers(sums=sums)
        if self._buffer_spaces:
            self._begin_upload(partial(self._upload, self._whole_buffers()))
