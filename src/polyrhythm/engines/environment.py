"""Environment variables of the local engine's processes for the C library and OpenMP, unless the
user has set them. Both libraries read them when they are loaded, so they are set before a process
starts."""

import os
from collections.abc import Mapping, Sequence

from polyrhythm.io.secretfile import VARIABLE

BEYOND_CACHE = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x40000"}
"""Large copies bypass the cache (`tensors/copying.py`). This has an effect with glibc on x86
only."""
AT_REST = {"OMP_WAIT_POLICY": "passive"}
"""An idle thread of OpenMP sleeps at once. By default it spins for a while."""


def environment(threads: Sequence[int]) -> Mapping[str, str]:
    """`threads`: how many each worker on this machine has. If none has more than one, only servers
    use several threads, and a spinning thread there would take a core from a worker. A secret in
    this process's environment belongs to another job and is not passed on."""
    rest = AT_REST if max(threads, default=1) == 1 else {}
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return {**BEYOND_CACHE, **rest, **inherited}


def rest_at_once() -> None:
    """Let idle threads of this process sleep at once; for a server, before it imports torch."""
    for name, value in AT_REST.items():
        os.environ.setdefault(name, value)
