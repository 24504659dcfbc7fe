"""Environment variables for the C library and OpenMP in the processes of the local engine. Values
that the user has set stay. Both libraries read the variables when they are loaded, so the variables
must be set before a process starts."""

import os
from collections.abc import Mapping, Sequence

from polyrhythm.io.secretfile import VARIABLE

BEYOND_CACHE = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x40000"}
"""With this variable, large copies bypass the cache (`tensors/copying.py`). It has an effect only
with glibc on x86."""
WITHOUT_CUDA_INIT = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With this variable, `torch.cuda.is_available()` asks the driver's management library. Otherwise
the function initialises CUDA, and processes that are forked afterwards cannot use CUDA."""
AT_REST = {"OMP_WAIT_POLICY": "passive"}
"""With this variable, idle threads of OpenMP sleep at once. By default they spin for a while."""


def environment(threads: Sequence[int]) -> Mapping[str, str]:
    """The environment of the processes. `threads`: the number of threads of each worker on this
    host. If every worker has one thread, only servers use several, and a spinning thread of a
    server would take a core from a worker. A secret is not passed on in the environment: processes get
    it over their control sockets."""
    rest = AT_REST if max(threads, default=1) == 1 else {}
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return {**BEYOND_CACHE, **WITHOUT_CUDA_INIT, **rest, **inherited}


def rest_at_once() -> None:
    """Let idle threads of this process sleep at once. A server calls this before it imports
    torch."""
    for name, value in AT_REST.items():
        os.environ.setdefault(name, value)
