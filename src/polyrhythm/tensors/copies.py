"""Copies between the memory of a device, where the user's code computes, and that of the host.

*The user's code, downloads and uploads run independently of each other, as on the streams of a
GPU.* A download begins after everything that the user's code has queued so far. So does an upload,
because it overwrites parameters. The host waits for downloads once per step. It does not wait for
uploads: what the user's code queues after `join` waits for them on the device.

`tensors/device_model.py` decides what is copied. The classes here only run these copies at the
right time, so that the same tests cover all devices: `DeferredCopies` is a device in host memory,
whose copies happen as late as they may.
"""

import os
import time
from collections.abc import Callable
from typing import Protocol

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
        not possible. The memory must be a mapping of its own: pages are pinned as a whole, and the
        driver refuses copies of other memory that is only partly in such pages."""

    def download(self, work: Work) -> None:
        """Run `work`, which copies to the host, after everything that the user's code has queued
        so far. The result is there after `synchronise`."""

    def synchronise(self) -> None:
        """Wait for the downloads. Everything that the user's code and uploads did before them is
        then complete too."""

    def upload(self, work: Work) -> None:
        """Run `work`, which copies to the device, after everything that the user's code has queued
        so far."""

    def join(self) -> None:
        """Let everything that the user's code queues from now on wait for the uploads."""

    def await_uploads(self) -> None:
        """Wait until the uploads do not need the memory of the host any more."""

    def fetch(self, number: torch.Tensor) -> torch.Tensor:
        """Begin to copy a number to the host. The result is there after the next `synchronise` or
        `await_computing`."""

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
        from polyrhythm.tensors.cuda_copies import CudaCopies

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
