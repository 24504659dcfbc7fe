"""A worker whose device has no memory left says so in one line, whichever part of torch has failed."""

import pytest
import torch

from polyrhythm.engines.worker_process import out_of_memory

ADVICE = "use smaller batches, or let fewer workers share the device"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of\n"
            ),
            "out of memory on the device, which has no 20.00 GiB left",
        ),
        (torch.OutOfMemoryError("MPS backend out of memory"), "out of memory on the device"),
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
            "out of memory on the device",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            "out of memory on the device",
        ),
    ],
)
def test_an_error_of_memory_is_one_line(error: RuntimeError, words: str) -> None:
    assert str(out_of_memory(error)) == f"{words}: {ADVICE}"


def test_other_errors_stay_as_they_are() -> None:
    assert out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
