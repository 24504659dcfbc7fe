"""Copies between the memory of a device, where the user's code computes, and that of the host.

*The user's code, downloads and uploads run independently of each other, as on the streams of a
GPU.* A download begins after everything that the user's code has queued so far. So does an upload,
because it overwrites parameters. The host waits for downloads once per step. It does not wait for
uploads: the device runs what the user's code queues after `join` only when they are done.

`tensors/device_model.py` decides what is copied. The classes here only run these copies at the
right time, so that the same tests cover all devices: `DeferredCopies` is a device in host memory,
whose copies happen as late as they may.
"""

import mmap
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

Work = Callable[[], None]
"""Operations of torch that copy, or compute what is copied."""

SWITCH = "POLYRHYTHM_DEFERRED_COPIES"
"""An environment variable for tests. If it is set, models on the CPU are treated as if they were on
a device (`DeferredCopies`); `bounce` also lets push buffers refuse to be pinned."""


class Copies(Protocol):
    """A device and its copies. The thread of the user's loop calls all methods; any thread may call
    `upload` and `await_uploads`."""

    device: torch.device

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Allocate host memory that the device can copy from and to without help of the processor
        (pinned memory)."""

    def pin(self, memory: torch.Tensor) -> bool:
        """Pin memory that exists already, until `close`, and keep it alive. Returns False if that is
        not possible. The memory must be a separate mapping: pages are pinned as a whole, and the
        driver refuses copies of other memory that is only partly in such pages."""

    def download(self, work: Work) -> None:
        """Run `work`, which copies to the host, after everything that the user's code has queued so
        far. The result is available after `synchronise`."""

    def synchronise(self) -> None:
        """Wait for the downloads. Everything that the user's code and uploads did before them is
        then complete too."""

    def upload(self, work: Work) -> None:
        """Run `work`, which copies to the device, after everything that the user's code has queued
        so far."""

    def join(self) -> None:
        """From now on, run the work that the user's code queues only after the uploads."""

    def await_uploads(self) -> None:
        """Wait until the uploads no longer need the memory of the host."""

    def fetch(self, number: torch.Tensor) -> torch.Tensor:
        """Begin to copy a number to the host. The result is available after the next `synchronise`
        or `await_computing`."""

    def await_computing(self) -> None:
        """Wait for everything that the user's code has queued so far."""

    def computed_ns(self, called_ns: int) -> int:
        """The time at which the device had computed the content of the last download. `called_ns`:
        the time at which the host had queued all of this work."""

    def take_late_ns(self) -> int:
        """How long the uploads before the last `join` still took after that call. The time is
        returned only once, and is known after the next `synchronise`."""

    def close(self) -> None:
        """Wait for all copies, and release the memory that `pin` has pinned."""


def copies_for(device: torch.device) -> Copies | None:
    """The copies of a device; None for models in the memory of the host, which need none."""
    if device.type == "cuda":
        return CudaCopies(device)
    if device.type != "cpu":
        return BlockingCopies(device)
    if (switch := os.environ.get(SWITCH)) is not None:
        return DeferredCopies(pins=switch != "bounce")
    return None


class BlockingCopies:
    """For devices without streams: everything happens at once, and the host waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def pin(self, memory: torch.Tensor) -> bool:
        return True

    def download(self, work: Work) -> None:
        work()
        self.await_computing()

    def synchronise(self) -> None:
        pass

    def upload(self, work: Work) -> None:
        work()
        self.await_computing()

    def join(self) -> None:
        pass

    def await_uploads(self) -> None:
        pass

    def fetch(self, number: torch.Tensor) -> torch.Tensor:
        return number.detach().cpu()

    def await_computing(self) -> None:
        torch.accelerator.synchronize(self.device)

    def computed_ns(self, called_ns: int) -> int:
        return called_ns

    def take_late_ns(self) -> int:
        return 0

    def close(self) -> None:
        pass


class DeferredCopies:
    """A device in the memory of the host, for tests. Downloads run when the host waits for them,
    and uploads when the user's code needs them. Code that forgets to wait, or that overwrites
    memory too early, therefore gets wrong values."""

    def __init__(self, *, pins: bool = True) -> None:
        self.device = torch.device("cpu")
        self.log: list[str] = []
        """The names of the calls that queue or await copies."""
        self._pins = pins
        self._downloads: list[Work] = []
        self._uploads: list[Work] = []
        self._late_ns = 0

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    def pin(self, memory: torch.Tensor) -> bool:
        return self._pins

    def download(self, work: Work) -> None:
        self.log.append("download")
        self._downloads.append(work)

    def synchronise(self) -> None:
        self.log.append("synchronise")
        self._run(self._downloads)

    def upload(self, work: Work) -> None:
        self.log.append("upload")
        self._uploads.append(work)

    def join(self) -> None:
        self.log.append("join")
        began_ns = time.monotonic_ns()
        self._run(self._uploads)
        self._late_ns = time.monotonic_ns() - began_ns

    def await_uploads(self) -> None:
        self.log.append("await uploads")
        self._run(self._uploads)

    def fetch(self, number: torch.Tensor) -> torch.Tensor:
        host, source = torch.full((), torch.nan, dtype=number.dtype), number.detach()

        def work() -> None:
            host.copy_(source.reshape(()))

        self._downloads.append(work)
        return host

    def await_computing(self) -> None:
        self.log.append("await computing")
        self._run(self._downloads)

    def computed_ns(self, called_ns: int) -> int:
        return called_ns

    def take_late_ns(self) -> int:
        late_ns, self._late_ns = self._late_ns, 0
        return late_ns

    def close(self) -> None:
        self._run(self._downloads)
        self._run(self._uploads)

    def _run(self, works: list[Work]) -> None:
        with torch.no_grad():
            while works:
                works.pop(0)()


class CudaCopies:
    """Copies of a CUDA device: one stream for downloads and one for uploads, beside the stream on
    which the user's code computes. See `tensors/copies.py`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.current_stream(device)
        """The stream on which the user's code computed last."""
        self._down = self._new_stream()
        self._up = self._new_stream()
        self._computed = self._event()
        self._downloaded = self._event()
        self._uploaded = self._event()
        self._ordered = False
        """Whether the stream of uploads already waits for the work that the user's code had queued when
        the version began to arrive. The user's loop queues no further work until `join`."""
        self._has_uploaded = False
        self._joined_ns = 0
        self._done_ns = 0
        """The time at which the host had finished waiting for the last downloads."""
        self._pinned: dict[int, torch.Tensor] = {}
        """The memory that was pinned after it was allocated, by address."""

    def _new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def pin(self, memory: torch.Tensor) -> bool:
        address, nbytes = memory.data_ptr(), memory.numel() * memory.element_size()
        if not nbytes or address in self._pinned:
            return True
        if address % mmap.PAGESIZE:
            # only whole pages can be pinned, and the first page of this buffer contains other
            # memory too
            return False
        with torch.cuda.device(self.device):
            if int(_runtime().cudaHostRegister(address, nbytes, 0)):
                return False
        self._pinned[address] = memory
        return True

    def download(self, work: Work) -> None:
        self._computed.record(self._computing)
        self._down.wait_event(self._computed)
        self._down.wait_event(self._uploaded)
        with torch.cuda.stream(self._down), torch.no_grad():
            work()
        self._downloaded.record(self._down)

    def synchronise(self) -> None:
        self._downloaded.synchronize()
        self._done_ns = time.monotonic_ns()

    def upload(self, work: Work) -> None:
        if not self._ordered:
            self._up.wait_stream(self._stream)
            self._ordered = True
        with torch.cuda.stream(self._up), torch.no_grad():
            work()

    def join(self) -> None:
        self._uploaded.record(self._up)
        self._computing.wait_event(self._uploaded)
        self._has_uploaded, self._ordered = True, False
        self._joined_ns = time.monotonic_ns()

    def await_uploads(self) -> None:
        self._up.synchronize()

    def fetch(self, number: torch.Tensor) -> torch.Tensor:
        host = torch.empty((), dtype=number.dtype, pin_memory=True)
        return host.copy_(number.detach().reshape(()), non_blocking=True)

    def await_computing(self) -> None:
        self._computed.record(self._computing)
        self._computed.synchronize()

    @property
    def _computing(self) -> torch.cuda.Stream:
        self._stream = torch.cuda.current_stream(self.device)
        return self._stream

    def computed_ns(self, called_ns: int) -> int:
        return max(called_ns, self._done_ns - _between_ns(self._computed, self._downloaded))

    def take_late_ns(self) -> int:
        if not self._has_uploaded:
            return 0
        self._has_uploaded = False
        uploaded_ns = self._done_ns - _between_ns(self._uploaded, self._downloaded)
        return max(0, uploaded_ns - self._joined_ns)

    def close(self) -> None:
        try:
            self._down.synchronize()
            self._up.synchronize()
            with torch.cuda.device(self.device):
                for address in self._pinned:
                    _runtime().cudaHostUnregister(address)
        except RuntimeError:
            return  # a kernel has failed, after which CUDA refuses all calls of this process
        self._pinned.clear()


def _between_ns(first: torch.cuda.Event, second: torch.cuda.Event) -> int:
    return int(first.elapsed_time(second) * 1e6)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
