"""Computing over blocks of rows that fit into the cache of a core, on one thread or several.

numpy releases the lock of the interpreter while it computes, so threads run at the same time. Each
thread takes one contiguous range of rows. *The results are added in the order of the rows, so a
repetition with the same number of threads computes the same bits.*
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

State = TypeVar("State")

BLOCK_BYTES = 1024 * 1024
"""The size of the rows of one block in bytes: about the size of a core's second-level cache."""


def block_rows(row_nbytes: int, largest: int = 8192) -> int:
    """How many rows a block has, if a row and its intermediate results have this many bytes."""
    return max(64, min(largest, BLOCK_BYTES // max(1, row_nbytes)))


def blocks(first: int, last: int, rows: int) -> Iterator[slice]:
    """Blocks of at most this many rows, of about equal size."""
    count = -(-(last - first) // rows)
    for number in range(count):
        start = first + (last - first) * number // count
        yield slice(start, first + (last - first) * (number + 1) // count)


def over_blocks(
    count: int,
    rows: int,
    threads: int,
    begin: Callable[[], State],
    work: Callable[[State, slice], None],
) -> list[State]:
    """Call `work(state, block)` for all blocks of `count` rows. Each thread has its own state,
    which `begin` makes. Returns the states in the order of the rows."""
    threads = max(1, min(threads, count // (2 * rows)))
    edges = [count * part // threads for part in range(threads + 1)]

    def run(part: int) -> State:
        state = begin()
        for block in blocks(edges[part], edges[part + 1], rows):
            work(state, block)
        return state

    with one_blas_thread():
        if threads == 1:
            return [run(0)]
        return list(_pool(threads).map(run, range(threads)))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="points")


@cache
def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()


_limited = threading.local()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let each of our threads multiply matrices with one thread, because threads of BLAS would
    compete with ours. The limit holds for BLAS in the whole process. Without threadpoolctl (it
    comes with scikit-learn) there is no limit. A thread that is already inside this context does
    not set the limit again, because that takes time."""
    controller = _controller()
    if controller is None or getattr(_limited, "inside", False):
        yield
        return
    _limited.inside = True
    try:
        with controller.limit(limits=1, user_api="blas"):
            yield
    finally:
        _limited.inside = False
