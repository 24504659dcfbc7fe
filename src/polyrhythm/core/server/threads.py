"""Chooses how many threads a server uses, by the number of bytes that it works on.

Waking several threads and waiting for them takes as long as one thread needs for some hundred
kilobytes, and longer if workers use the cores. *So a thread is added only if it gets enough bytes,
and never more threads than the user, the launcher or the system allows.* Decision 026 has the
measurements.
"""

SMALL_NBYTES = 256 * 1024
"""If a server's slices have at most this size, the thread that receives a slice also adds and folds
it."""
_THREAD_NBYTES = 1024 * 1024
"""The least number of bytes for each thread that takes part in a step."""
_MOST_THREADS = 8
"""The most threads for one step. More of them would wait for the memory instead of a core."""
_ADDERS_NBYTES = 2 * 2**20
"""With rounds: if the slices of a server have at most this size, it has no adders, and the thread
that receives a slice adds it. A larger model usually has several slices, which adders add in
parallel."""
_FEW_CORES, _ADDERS_NBYTES_ON_FEW = 2, 8 * 2**20
"""The limit is 8 MiB instead of `_ADDERS_NBYTES` on at most two cores. There, threads lose as much
time in waiting for the interpreter's lock as they gain by working in parallel."""
_MOST_ADDERS = 8
"""The most adder threads of a server. More of them would be slower, because they wait for the
interpreter's lock."""


def threads_for(nbytes: int, cores: int, limit: int) -> int:
    """The number of torch threads for a step that works on this many bytes of parameters at a time.
    `limit`: the most threads that the user or the launcher allows."""
    return max(1, min(nbytes // _THREAD_NBYTES, cores, limit, _MOST_THREADS))


def adders_for(nbytes: int, cores: int, limit: int) -> int:
    """With rounds: the number of adder threads of a server whose slices have this total size; 0 if
    the threads that receive slices add them."""
    if nbytes <= (_ADDERS_NBYTES_ON_FEW if cores <= _FEW_CORES else _ADDERS_NBYTES):
        return 0
    return max(1, min(cores, limit, _MOST_ADDERS))
