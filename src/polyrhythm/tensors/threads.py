"""The number of torch threads that one of our threads uses.

Each of our threads that does parallel work has a team of torch threads of its own, so the teams
must be small.
"""

import contextlib
from collections.abc import Iterator

import torch


def work_with(count: int) -> None:
    """Use this many torch threads on this thread from now on. torch sets the process's number when
    a thread first does parallel work, and would override ours; `get_num_threads` makes torch do
    that first."""
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextlib.contextmanager
def working_with(count: int) -> Iterator[None]:
    """Use this many torch threads within this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
