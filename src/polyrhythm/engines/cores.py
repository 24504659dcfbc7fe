"""How many threads torch uses in each worker of a host."""

import os
from collections.abc import Sequence

from polyrhythm.core.devices import CPU
from polyrhythm.io.limits import allowed_threads, usable_cores


def share_of_cores(workers: int, servers: int) -> int:
    """The number of cores for each worker, on a host with this many workers and servers. One core
    is left for every server, so that threads of workers do not take the servers' time.
    `OMP_NUM_THREADS` can lower the number."""
    share = max(1, (usable_cores() - servers) // max(1, workers))
    return min(share, allowed_threads(os.environ) or share)


def shares_of_cores(asked: Sequence[str], servers: int) -> list[int]:
    """The number of cores for each worker of a host. `asked`: per worker, the device that it asks
    for (`core/devices.py`). If some workers compute on a CPU and others on a GPU, a GPU worker has
    one core, which prepares its batches, and the CPU workers share the other cores."""
    on_cpu = asked.count(CPU)
    if on_cpu in (0, len(asked)):
        return [share_of_cores(len(asked), servers)] * len(asked)
    on_gpu = len(asked) - on_cpu
    share = share_of_cores(on_cpu, servers + on_gpu)
    return [share if each == CPU else 1 for each in asked]
