"""Copies of large buffers that bypass the cache.

Copying normally loads the target into the cache. That is useless if another process reads the copy,
or if a pass over the whole model evicts it before its use. Without this load the copy is one and a
half times as fast. The C library's `memmove` omits the load for copies above a certain size, and
the local engine lowers this size for its child processes (`engines/environment.py`).
"""

import ctypes

import torch

_LARGE_NBYTES = 256 * 1024

_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memmove.restype = ctypes.c_void_p


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Do `target.copy_(source)`. The cache is bypassed only for large contiguous tensors of one
    dtype."""
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
