"""The number of torch threads that a thread of polyrhythm uses.

torch starts a team of threads for every thread that calls parallel operations. A process has many
such threads, so the teams must be small.
"""

import contextlib
from collections.abc import Iterator

import torch


def work_with(count: int) -> None:
    """Use this many torch threads on the calling thread from now on. When a thread first does
    parallel work, torch sets its number of threads to that of the whole process. `get_num_threads`
    makes torch do this now, so that it does not override `count` later."""
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextlib.contextmanager
def working_with(count: int) -> Iterator[None]:
    """Use this many torch threads within this context."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_limit() -> int:
    """The most torch threads that the user or the launcher allows this process: the calling
    thread's number. It comes from `torch.set_num_threads`, from `OMP_NUM_THREADS` or
    `MKL_NUM_THREADS`, or else from the number of cores."""
    return torch.get_num_threads()
