"""Checks the rows of statistics of a slice: *in every version, on every server, the sum of the rows is
the sum over the memory of all points of all members, and no point is in two rows.*

A worker that is not a member any more may have a row until the next fold. If a server died during the
fold, such a row may lack the worker's last contribution (decision 071).
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from polyrhythm.core.server.worker_rows import Key
from polyrhythm.errors import InvariantBroken
from polyrhythm.sim.model.statistics import ZERO, PointNumbers, Statistics, plus
from polyrhythm.sim.server.rows_store import SimRow, SimRowsSliceStore


def check_rows(
    store: SimRowsSliceStore, server: int, slice_: int, is_member: Callable[[int, int], bool]
) -> None:
    rows, named = store.rows[slice_].rows, store.live[slice_]
    where = f"slice {slice_} of s{server}"
    last = {(row.worker, row.incarnation): row.sequence for row in named}
    total = ZERO
    for key, row in rows.items():
        if key not in last:
            raise InvariantBroken(
                f"{where} has a row of {_named(key)}, but the last fold did not name this worker"
            )
        if row.sequence > last[key] or (row.sequence < last[key] and is_member(*key)):
            raise InvariantBroken(
                f"{where}: contribution {row.sequence} is the last one in the row of {_named(key)},"
                f" but the fold has named contribution {last[key]}"
            )
        total = plus(total, row.total)
    recomputed = _sum_of(tuple(row.memory for row in rows.values()))
    if recomputed is None:
        raise InvariantBroken(f"{where}: {_in_two_rows(rows)}")
    if total != recomputed:
        raise InvariantBroken(
            f"{where}: the sum of the rows is {total}, but the memory of the workers' points adds up"
            f" to {recomputed}"
        )
    for key in last.keys() - rows.keys():
        if last[key] and is_member(*key):
            raise InvariantBroken(f"{where} has no row of {_named(key)}, which is a member")


def _named(key: Key) -> str:
    worker, incarnation = key
    return f"worker {worker} (incarnation {incarnation})"


@lru_cache(maxsize=16)
def _sum_of(memories: tuple[PointNumbers, ...]) -> Statistics | None:
    """The sum over all points of these memories, or None if two of them have the same point. Most
    slices of a version have the same memories, so most answers are in the cache."""
    count = sum(map(len, memories))
    if len(set[int]().union(*memories)) != count:
        return None
    return float(sum(sum(memory.values()) for memory in memories)), float(count)


def _in_two_rows(rows: Mapping[Key, SimRow]) -> str:
    """Say which point is in two rows."""
    holders: dict[int, Key] = {}
    for key, row in rows.items():
        for point in row.memory:
            if point in holders:
                return f"point {point} is in the rows of {holders[point]} and {key}"
            holders[point] = key
    return ""
