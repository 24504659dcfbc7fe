"""Copies of large buffers, past the cache.

What is copied for somebody else to read, or for a pass over the whole model, is evicted before it is
used again; storing it without first reading it into the cache makes such a copy half again as fast.
The C library does that above a size of its own choosing, which children of the local engine lower
(`engines/environment.py`).
"""

import ctypes

import torch

_LARGE_NBYTES = 256 * 1024

_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memmove.restype = ctypes.c_void_p


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """`target.copy_(source)`; both are flat where they are large."""
    nbytes = target.numel() * target.element_size()
    if (
        nbytes >= _LARGE_NBYTES
        and source.dtype == target.dtype
        and source.is_contiguous()
        and target.is_contiguous()
        and source.numel() == target.numel()
    ):
        _memmove(target.data_ptr(), source.data_ptr(), nbytes)
    else:
        target.copy_(source)


def copy_all(target: torch.Tensor, source: torch.Tensor) -> None:
    """`target.copy_(source)` of two flat tensors of one dtype and length, whatever their size."""
    _memmove(target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
