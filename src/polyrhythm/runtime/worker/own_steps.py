"""Jobs with `--optimizer-on workers`: a worker makes the steps of the optimizer with the sums of
gradients that servers send.

*A worker makes exactly the step that a server would have made: slice by slice, with the same
updater, the same sum and the same numbers (`SliceStep`).* It keeps separate parameters, in the
dtype in which servers hold them. The user's model gets a copy of these after each step, so changes
that the user's code makes to its model have no effect.

The buffers of the model are not stepped: servers average them, and they arrive as values.
"""

import threading
from collections.abc import Callable

import torch
from msgspec.structs import replace

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core.placement.slices import BUFFERS, Layout, Slice
from polyrhythm.errors import FrameError
from polyrhythm.runtime.slice_state import (
    PARAMETERS,
    SliceState,
    adopt_state,
    checked_tensor,
    export_state,
    parts_of_state,
)
from polyrhythm.tensors.dtypes import held_dtype, tensor_over, wire_dtype
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.kinds import model_of, updaters_for
from polyrhythm.tensors.updater import Updater
from polyrhythm.wire import messages as m

SendShared = Callable[[int, m.Shared, memoryview | None], None]


class OwnSteps:
    """The parameters, the state of the optimizer and the arriving sums of one worker. This class is
    between `Landing` and the model: slices of buffers are written to the model, sums are received
    here."""

    def __init__(
        self,
        model: FlatModel,
        layout: Layout,
        job: m.JobSpec,
        spec: m.ModelSpec,
        send: SendShared,
        me: Callable[[], tuple[int, int]],
    ) -> None:
        """`send` sends a server a part of the state. `me`: the number and the incarnation of this
        worker."""
        self._me = me
        self._model = model
        self._spec = spec
        self._send = send
        summed = [slice_ for slice_ in layout.slices if slice_.group != BUFFERS]
        self._held: dict[int, Held] = {}
        self._sums: dict[int, torch.Tensor] = {}
        """Per slice, the sum of gradients that has arrived, in the dtype of the wire."""
        for slice_ in summed:
            space = layout.spaces[slice_.space]
            dtype, wire = held_dtype(space, job), wire_dtype(space, job.wire_dtype)
            self._sums[slice_.id] = torch.zeros(slice_.length, dtype=wire)
            self._held[slice_.id] = Held(
                slice_,
                torch.zeros(slice_.length, dtype=dtype),
                torch.zeros(slice_.length if wire != dtype else 0, dtype=dtype),
            )
        self._updaters = updaters_for(layout, job, spec, list(self._held.values()))
        self._steps: dict[int, m.SliceStep] = {}
        """Per slice whose sum has arrived, the step to make with it."""
        self._given: dict[int, SliceState] = {}
        """The arrived tensors of incomplete states."""
        self._order: fx.ShareState | None = None
        """The order to share a version whose steps this worker has not made yet."""
        self._version = -1
        """The version of the parameters."""
        self._lock = threading.Lock()

    # -- what arrives --------------------------------------------------------------------------

    def memory_of(self, slice_: Slice) -> memoryview | None:
        held = self._sums.get(slice_.id)
        if held is None:
            return self._model.memory_of(slice_)
        return held.view(torch.uint8).numpy().data

    def land(self, slice_: Slice, data: memoryview) -> None:
        place = self._sums.get(slice_.id)
        if place is None:
            self._model.land(slice_, data)
        else:
            place.copy_(tensor_over(data, place.dtype))

    def land_parts(self, slice_: Slice, parts: tuple[int, ...], data: memoryview) -> None:
        self._model.land_parts(slice_, parts, data)

    def wire_range(self, slice_: Slice) -> tuple[int, int]:
        return self._model.wire_range(slice_)

    def on_landed(self, message: m.Parameters, slices: tuple[int, ...]) -> None:
        """Note the steps to make with the sums of these slices, which have arrived. Slices of
        buffers are ignored."""
        if not self._held.keys() & set(slices):
            return
        steps = message.steps * len(slices) if len(message.steps) == 1 else message.steps
        if len(steps) != len(slices):
            raise FrameError("the peer sent sums of gradients without the steps to make with them")
        with self._lock:
            for slice_, step in zip(slices, steps, strict=True):
                if slice_ in self._held:
                    self._steps[slice_] = step

    def take(self, message: m.Given, data: memoryview) -> bool:
        """Receive one tensor of the state of a slice. Returns whether the slice is complete now."""
        held = self._held.get(message.slice)
        if held is None:
            raise FrameError(f"the peer gave a state of slice {message.slice}, which has none")
        updater = self._updater(held.slice)
        state = self._given.setdefault(message.slice, {})
        state[message.name] = checked_tensor(message, data, held, updater).clone()
        if len(state) < message.parts:
            return False
        if PARAMETERS not in state:
            raise FrameError(f"the peer gave slice {message.slice} without its parameters")
        with self._lock:
            adopt_state(held, updater, self._given.pop(message.slice))
            self._steps.pop(message.slice, None)
        return True

    def _updater(self, slice_: Slice) -> Updater:
        return self._updaters[model_of(slice_, self._spec)][0]

    # -- the step ------------------------------------------------------------------------------

    def apply(self, version: int) -> None:
        """Make the steps of the version that has arrived, unless they are made already, and give the
        model its parameters. Then share the state, if the lead has asked for it."""
        with self._lock:
            if version == self._version:
                return
            self._version = version
            for updater, slices in self._updaters.values():
                due = [held for held in slices if held.slice.id in self._steps]
                for held in due:
                    total = self._sums[held.slice.id]
                    if total.dtype == held.parameters.dtype:
                        held.aggregate = total
                    else:
                        held.aggregate.copy_(total)
                made = [self._steps[held.slice.id] for held in due]
                updater.fold(due, [held.parameters for held in due], made)
                for held in slices:
                    self._model.put(held.slice, held.parameters)
            self._steps.clear()
            order, self._order = self._order, None
        if order is not None:
            self._share(order)

    # -- sharing -------------------------------------------------------------------------------

    def share(self, effect: fx.ShareState) -> None:
        """Send the state to the servers, after the pending step."""
        with self._lock:
            if effect.round != self._version:
                self._order = effect
                return
        self._share(effect)

    def _share(self, effect: fx.ShareState) -> None:
        for server, slices in effect.slices:
            for slice_ in slices:
                if slice_ in self._held:
                    self._share_slice(server, effect, slice_)
            self._send(server, builders.shared(effect, *self._me(), m.EVERY_SLICE), None)

    def _share_slice(self, server: int, effect: fx.ShareState, slice_: int) -> None:
        held = self._held[slice_]
        head = builders.shared(effect, *self._me(), slice_)
        with self._lock:
            for fields, data in parts_of_state(export_state(held, self._updater(held.slice))):
                self._send(server, replace(head, **fields), data)
