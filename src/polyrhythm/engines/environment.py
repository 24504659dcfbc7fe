"""What the environment of the local engine's processes says to the C library and to OpenMP, unless the
user has said it already. Both read it when they are loaded, so it is there before."""

import os
from collections.abc import Mapping, Sequence

from polyrhythm.io.secretfile import VARIABLE

BEYOND_CACHE = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x40000"}
"""Large copies go past the cache (`tensors/copying.py`); without glibc on x86 it means nothing."""
AT_REST = {"OMP_WAIT_POLICY": "passive"}
"""A thread that is done sleeps at once. It would otherwise spin for a while, in case more comes."""


def environment(threads: Sequence[int]) -> Mapping[str, str]:
    """`threads`: of each worker on this machine. Where none has more than one, only servers do anything
    in parallel, and what spins there keeps a worker from its core. A secret that is in this process's
    environment, for another job, is not in theirs."""
    rest = AT_REST if max(threads, default=1) == 1 else {}
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return {**BEYOND_CACHE, **rest, **inherited}


def rest_at_once() -> None:
    """In this process, before torch is imported: only a server is here."""
    for name, value in AT_REST.items():
        os.environ.setdefault(name, value)
