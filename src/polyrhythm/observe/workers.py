"""The table of workers in the live display, in `status` and in the summary: how fast each worker is,
how it spends its time, and what is unusual about it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from polyrhythm.core.devices import CPU
from polyrhythm.core.values import name_order, shown
from polyrhythm.observe.columns import aligned, cut, width
from polyrhythm.observe.reasons import CUT_OFF, LINK_ENDED, few, parting
from polyrhythm.observe.state import RunState
from polyrhythm.observe.words import counted, grouped, listed, percent
from polyrhythm.observe.work import ObservedWorker, Totals
from polyrhythm.wire.messages.reasons import (
    DONE,
    FAILED,
    HUNG,
    NOT_FINITE,
    STREAM_ENDED,
    UNATTACHED,
)

SLOWER = 1.5
"""A worker is slow if the median of the others needs at most this fraction of its time per
point."""
_ENDS = {
    LINK_ENDED: "died",
    CUT_OFF: "excluded",
    "silent-for": "evicted",
    **dict.fromkeys((FAILED, HUNG, NOT_FINITE, UNATTACHED), "failed"),
}
"""For some codes of a reason, what happened to the worker. Under any other code it has left."""
_NAME_CELLS = 24
_SHORT_NAME_CELLS = 11
_NOTE_CELLS = 40
_TIMES = {"computing": "comp.", "waiting": "wait", "transferring": "link"}
"""What a worker's time is spent on, with the short titles of these columns."""
_TITLES = "titles"
_DROPPED = (
    *("contributions", _TITLES, "device", "passes", "clock"),
    *("transferring", "waiting", "computing", "note"),
)
"""The columns that are dropped, one after the other, until a table fits. `titles`: shorten titles
and names."""


class RowStyle(Enum):
    """The reason to highlight a line of the table, and the style."""

    TITLES = "dim"
    SLOW = "yellow"
    GONE = "red"


class WorkerRow(msgspec.Struct, frozen=True):
    name: str
    contributions: int
    points_per_s: float | None
    """None: the worker is not in the job."""
    shares: tuple[float, float, float] | None
    """The shares of the worker's time spent on computing, waiting and transferring; None if
    unknown."""
    device: str = ""
    clock: int | None = None
    passes: float | None = None
    note: str = ""
    mark: RowStyle | None = None


def times_slower(work: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """How many times slower each slow worker is than the median of the others. `work`: per worker,
    the visited points and the seconds of computing."""
    per_point = {name: seconds / points for name, (points, seconds) in work.items() if points}
    ranked = sorted(per_point, key=lambda name: per_point[name])
    slow = {}
    for place, name in enumerate(ranked):
        usual = _median_without(place, ranked, per_point)
        if usual and per_point[name] >= SLOWER * usual:
            slow[name] = per_point[name] / usual
    return slow


def _median_without(place: int, ranked: Sequence[str], values: Mapping[str, float]) -> float:
    """The median of all values except the one at this position. It avoids a loop, because a job may
    have thousands of workers."""
    others = len(ranked) - 1
    middle = {others // 2, (others - 1) // 2} if others else set()
    chosen = [values[ranked[at + (at >= place)]] for at in middle]
    return sum(chosen) / len(chosen) if chosen else 0.0


def slow_workers(state: RunState) -> dict[str, float]:
    """How many times slower each slow worker is than the others, in the last seconds. After the end
    of a run: in the whole run."""
    return _slow_in({worker.name: _work(worker, state) for worker in _at_work(state)})


def _slow_in(work: Mapping[str, Totals]) -> dict[str, float]:
    return times_slower({name: (each.points, each.compute_s) for name, each in work.items()})


def _at_work(state: RunState) -> Iterable[ObservedWorker]:
    return state.present if state.ended is None else state.workers.values()


def _work(worker: ObservedWorker, state: RunState) -> Totals:
    return worker.recent if state.ended is None else worker.totals


def slow_in_words(slow: Mapping[str, float]) -> str | None:
    """The slowest worker, and how many are slow. None if no worker is slow."""
    if not slow:
        return None
    slowest = max(slow, key=lambda name: slow[name])
    if len(slow) == 1:
        return f"{slowest} is {slow[slowest]:.1f}x slower than the others"
    times = f"{slow[slowest]:.1f}x slower than the others"
    return f"{len(slow)} workers are slow; the slowest is {slowest} ({times})"


def worker_rows(state: RunState) -> list[WorkerRow]:
    """The rows of all workers, except those that left after they were done. Speeds and shares of
    time cover the last seconds or, after the end of a run, the whole run."""
    work = {worker.name: _work(worker, state) for worker in _at_work(state)}
    slow = _slow_in(work)
    ended = state.ended is not None
    workers = [each for each in state.workers.values() if ended or not _is_done(each)]
    workers.sort(key=lambda each: name_order(each.name))
    return [_row(each, state, slow.get(each.name), work.get(each.name)) for each in workers]


def gone_in_words(workers: Iterable[ObservedWorker], state: RunState) -> list[str]:
    """Lines about workers that have left the job before they were done: when, and why. Workers that
    left for the same reason share a line."""
    gone: dict[str, list[str]] = {}
    for worker in workers:
        if worker.left is not None and (short := left_in_short(worker)) is not None:
            why = parting(worker.left, state.name_of)
            gone.setdefault(why, []).append(f"{worker.name} ({short})")
    return [f"{few(names)}: {why}" for why, names in gone.items()]


def left_in_short(worker: ObservedWorker) -> str | None:
    """How and when a worker left before it was done: `died at 3.2 s`. None: it is in the job, or
    was done."""
    if worker.left is None or _is_done(worker):
        return None
    return f"{_ENDS.get(worker.left.code, 'left')} at {worker.left_s or 0.0:.1f} s"


def _is_done(worker: ObservedWorker) -> bool:
    return worker.left is not None and worker.left.code in (DONE.code, STREAM_ENDED.code)


def _row(
    worker: ObservedWorker, state: RunState, slower: float | None, work: Totals | None
) -> WorkerRow:
    """`slower`: how many times slower the worker is than the others, if it is slow. `work`: its
    work in the last seconds, or in a whole run that has ended; None if it has left."""
    mark = None
    notes = []
    if (left := left_in_short(worker)) is not None:
        notes.append(left)
        mark = RowStyle.GONE
    elif servers := state.cut_off_from(worker.worker):
        notes.append(f"cut off from {listed(servers)}")
        mark = RowStyle.GONE
    elif slower is not None:
        notes.append(f"{slower:.1f}x slower")
        mark = RowStyle.SLOW
    elif worker.present and worker.no_points:
        notes.append("no points to visit")
    seconds = worker.recent_s if state.ended is None else state.trained_s(worker)
    points_per_s = None
    if work is not None:
        points_per_s = work.points / seconds if seconds else 0.0
    totals = worker.totals
    return WorkerRow(
        name=worker.name,
        contributions=totals.contributions,
        points_per_s=points_per_s,
        shares=(work.shares if work is not None else None) or totals.shares,
        device=worker.device,
        clock=worker.clock,
        passes=worker.passes,
        note=", ".join(notes),
        mark=mark,
    )


def table(
    rows: Sequence[WorkerRow], columns: int, most: int | None = None
) -> list[tuple[str, RowStyle | None]]:
    """The lines of the table, each with its mark, in at most `columns` columns of the terminal.
    Columns that do not fit are dropped (`_DROPPED`). `most`: the most rows: first the workers that
    need attention, then those for which the others wait."""
    chosen, others = _chosen(rows, most)
    dropped: set[str] = set()
    for name in ("", *_DROPPED):
        dropped.add(name)
        every = _columns(chosen, rows, short=_TITLES in dropped)
        kept = [each for each in every if each.name not in dropped]
        if width(_cells(kept)) <= columns:
            break
    lines = aligned(_cells(kept), [each.right for each in kept])
    marks = [RowStyle.TITLES, *(row.mark for row in chosen)]
    drawn = [*zip(lines, marks, strict=True), *((line, None) for line in _others(others))]
    return [(cut(line, columns), mark) for line, mark in drawn]


def _chosen(rows: Sequence[WorkerRow], most: int | None) -> tuple[list[WorkerRow], list[WorkerRow]]:
    if most is None or len(rows) <= most:
        return list(rows), []
    ranked = sorted(range(len(rows)), key=lambda at: _urgency(rows[at]), reverse=True)
    first = sorted(ranked[: max(1, most - 1)])
    others = sorted(set(range(len(rows))) - set(first))
    return [rows[at] for at in first], [rows[at] for at in others]


def _urgency(row: WorkerRow) -> tuple[bool, float]:
    """Sort the rows: those with a mark come first, then the workers that compute for the largest
    share of their time, because the others wait for them."""
    return row.mark is not None, row.shares[0] if row.shares else 0.0


def _others(rows: Sequence[WorkerRow]) -> list[str]:
    if not rows:
        return []
    text = f"and {counted(len(rows), 'other')}"
    parts = []
    if speeds := [row.points_per_s for row in rows if row.points_per_s is not None]:
        parts.append(f"{_range(grouped(min(speeds)), grouped(max(speeds)))} points/s")
    if shares := [row.shares[0] for row in rows if row.shares]:
        parts.append(f"computing {_range(percent(min(shares)), percent(max(shares)))}")
    return [f"{text}: {', '.join(parts)}" if parts else text]


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


class _Column(msgspec.Struct, frozen=True):
    name: str
    title: str
    cells: list[str]
    right: bool = True
    """Whether the cells are aligned to the right."""


def _columns(
    rows: Sequence[WorkerRow], all_rows: Sequence[WorkerRow], *, short: bool
) -> list[_Column]:
    """The columns of these rows, without columns that are empty in every row."""
    longest = _SHORT_NAME_CELLS if short else _NAME_CELLS
    names = [cut(shown(row.name), longest) for row in rows]
    columns = [_Column("worker", "worker", names, right=False)]
    if any(row.device not in ("", CPU) for row in all_rows):
        devices = [row.device or "-" for row in rows]
        columns.append(_Column("device", "device", devices, right=False))
    if any(row.clock is not None for row in all_rows):
        clocks = [_or_dash(row.clock, grouped) for row in rows]
        columns.append(_Column("clock", "clock", clocks))
    speeds = [_or_dash(row.points_per_s, grouped) for row in rows]
    columns.append(_Column("points/s", "points/s", speeds))
    for place, (name, title) in enumerate(_TIMES.items()):
        shares = [None if row.shares is None else row.shares[place] for row in rows]
        cells = [_or_dash(share, percent) for share in shares]
        columns.append(_Column(name, title if short else name, cells))
    counts = [grouped(row.contributions) for row in rows]
    columns.append(_Column("contributions", "contributions", counts))
    if any(row.passes is not None for row in all_rows):
        passes = [_or_dash(row.passes, lambda value: f"{value:.1f}") for row in rows]
        columns.append(_Column("passes", "passes", passes))
    notes = [cut(row.note, _NOTE_CELLS) for row in rows]
    return [*columns, _Column("note", "", notes, right=False)]


def _cells(columns: Sequence[_Column]) -> list[list[str]]:
    by_row = zip(*(column.cells for column in columns), strict=True)
    return [[column.title for column in columns], *map(list, by_row)]


_T = TypeVar("_T")


def _or_dash(value: _T | None, in_words: Callable[[_T], str]) -> str:
    return "-" if value is None else in_words(value)
