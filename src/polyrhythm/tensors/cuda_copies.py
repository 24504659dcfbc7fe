"""Copies of a CUDA device: one stream for downloads and one for uploads, beside the stream on which
the user's code computes. See `tensors/copies.py`."""

import mmap
import time
from typing import Any

import torch

from polyrhythm.tensors.copies import Work


class CudaCopies:
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
