"""Copies of large buffers that bypass the cache.

A copy that another process reads, or that is made in a pass over the whole model, is evicted from
the cache before it is used again. Storing it without first reading it into the cache makes the copy
one and a half times as fast. The C library does this above a threshold, which the local engine
lowers for its child processes (`engines/environment.py`).
"""

import ctypes

import torch

_LARGE_NBYTES = 256 * 1024

_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memmove.restype = ctypes.c_void_p


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Do `target.copy_(source)`. Large tensors must be flat."""
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
    """Do `target.copy_(source)` for two flat tensors of one dtype and length, of any size."""
    _memmove(target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
