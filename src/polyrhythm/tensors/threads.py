"""How many threads torch uses for what one thread of ours asks of it."""

import torch


def work_with(count: int) -> None:
    """On this thread, from now on. torch gives every thread the process's number when the thread
    first has parallel work, whatever it asked for before; so that is had first."""
    torch.get_num_threads()
    torch.set_num_threads(count)
