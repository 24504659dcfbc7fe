"""How many threads torch uses for what one thread of ours asks of it.

Each thread of ours that works in parallel keeps a team of torch's for itself: that must be few.
"""

import contextlib
from collections.abc import Iterator

import torch


def work_with(count: int) -> None:
    """On this thread, from now on. torch gives every thread the process's number when the thread
    first has parallel work, whatever it asked for before; so that is had first."""
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextlib.contextmanager
def working_with(count: int) -> Iterator[None]:
    """For a while; then as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
