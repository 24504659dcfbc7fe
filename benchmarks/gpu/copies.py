"""Measures two sorts of copies between host and device in turn: those of an attached model, and
plain copies from and to pinned memory."""

import statistics
import time
from collections.abc import Callable

import torch

from polyrhythm.core.placement.slices import lay_out
from polyrhythm.io.segments import Segment
from polyrhythm.tensors.copies import Copies, DeferredCopies, copies_for
from polyrhythm.tensors.device_model import DeviceModel
from polyrhythm.wire.messages import ModelSpec, OptimizerSpec, TensorSpec

_SLICE_NBYTES = 2 << 20
_WARMUP = 3


def measure(device: str, nbytes: int, times: int) -> dict[str, float]:
    """Bandwidths in GB/s: of plain copies to the host (`down`) and to the device (`up`), and of the
    copies of the model (`push`, `pull`). The copies of the model include everything that a step
    does for them: putting the gradients together, checking them, and waiting for the result."""
    length = nbytes // 4
    copies = copies_for(torch.device(device)) or DeferredCopies()
    model, push, parameter = _attached(copies, device, length)
    gradient = torch.ones(length, device=device)
    on_host = copies.host_memory(nbytes).view(torch.float32)
    on_device = torch.zeros(length, device=device)
    version = memoryview(bytearray(nbytes))
    took: dict[str, list[float]] = {"down": [], "up": [], "push": [], "pull": []}

    def timed(name: str, work: Callable[[], object]) -> None:
        copies.await_computing()
        began_s = time.perf_counter()
        work()
        copies.await_computing()
        took[name].append(time.perf_counter() - began_s)

    def fill() -> None:
        parameter.grad = gradient
        model.fill_gradients(push)

    for _ in range(_WARMUP + times):
        timed("down", lambda: on_host.copy_(on_device, non_blocking=True))
        timed("push", fill)
        timed("up", lambda: on_device.copy_(on_host, non_blocking=True))
        for slice_ in model.layout.slices:  # write as a link does
            model.memory_of(slice_)[:] = version[: slice_.length * 4]
        timed("pull", model.adopt)
    copies.close()
    return {
        name: nbytes / statistics.median(seconds[_WARMUP:]) / 1e9 for name, seconds in took.items()
    }


def _attached(
    copies: Copies, device: str, length: int
) -> tuple[DeviceModel, list[torch.Tensor], torch.nn.Parameter]:
    """A model with one parameter, and a push buffer that servers can map."""
    parameter = torch.nn.Parameter(torch.zeros(length, device=device))
    tensor = TensorSpec("parameter", (length,), "float32", 0, (1,))
    spec = ModelSpec((tensor,), OptimizerSpec("SGD", ({"lr": 1.0},)))
    model = DeviceModel(lay_out(spec, 1, _SLICE_NBYTES), [parameter], "same", copies)
    segments: list[Segment] = []

    def allocate(nbytes: int) -> memoryview:
        segments.append(Segment(nbytes, shared=True))
        return segments[-1].memory

    _, push = model.push_buffers(allocate)
    model.remember(parameters=False)
    return model, push, parameter
