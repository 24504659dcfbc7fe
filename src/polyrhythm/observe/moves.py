"""The words for moves of points from worker to worker."""

from collections.abc import Callable
from typing import Any

from polyrhythm.observe.reasons import few, in_words
from polyrhythm.observe.state import RunState, reason_of
from polyrhythm.observe.words import counted


def begun(line: dict[str, Any], name_of: Callable[[int], str]) -> tuple[str, list[int]]:
    """Describe the beginning of a move. Returns the words, and the workers that they name."""
    reason = reason_of(line)
    sources, targets = (reason.fields.get(key) or [] for key in ("workers", "targets"))
    assert isinstance(sources, list) and isinstance(targets, list)
    names = [few([name_of(each) for each in side]) for side in (sources, targets)]
    moving = f"{counted(line.get('points', 0), 'point')} ({counted(line.get('moved', 0), 'chunk')})"
    why = in_words(reason, name_of)
    return f"{moving} move from {names[0]} to {names[1]}: {why}", [*sources, *targets]


def moves_in_words(state: RunState) -> list[str]:
    """Lines about the points that moved from worker to worker: how many, when and why the last ones
    moved, and why the job moves points in this way."""
    if not state.moves:
        return []
    total = f"{counted(state.moved_points, 'point')} ({counted(state.moved_chunks, 'chunk')})"
    # while the job runs, or after it was killed, some moves may be incomplete
    have = "began to move" if state.ended is None else "moved"
    at_s = float(state.moves[-1].get("at_s", 0.0))
    last, _ = begun(state.moves[-1], state.name_of)
    rows = [f"{total} {have} between workers", f"the last time after {at_s:.1f} s: {last}"]
    if state.migration is not None:
        rows.append(in_words(state.migration, state.name_of))
    return rows


def losses_in_words(state: RunState) -> list[str]:
    """Lines about points that are lost, and about versions without new parameters because points were
    missing."""
    rows = [
        f"the {counted(points, 'point')} of {name} are lost: no pass includes them"
        for name, points in state.lost_points.items()
    ]
    if state.held_versions:
        versions = counted(state.held_versions, "version")
        rows.append(f"{versions} without new parameters, because points were missing from the sum")
    if state.hold is not None:
        rows.append(in_words(state.hold, state.name_of))
    return rows


def last_move(state: RunState) -> dict[str, Any] | None:
    """The fields of the last move; None if nothing has moved."""
    if not state.moves:
        return None
    line = state.moves[-1]
    words, _ = begun(line, state.name_of)
    numbers = {"points": line.get("points", 0), "chunks": line.get("moved", 0)}
    return {"at_s": line.get("at_s"), **numbers, "reason": line.get("reason"), "words": words}


def moved(line: dict[str, Any], name_of: Callable[[int], str]) -> str:
    """Describe points that have arrived at their new worker."""
    chunks, free = line.get("chunks", 0), line.get("free", 0)
    text = f"{counted(line.get('points', 0), 'point')} ({counted(chunks, 'chunk')}) have moved"
    text += f" from {name_of(line['worker'])} to {name_of(line['target'])}"
    if free:
        text += f"; the target had copies of {free} of the chunks, so their points were not sent"
    return text


def kept(line: dict[str, Any], name_of: Callable[[int], str]) -> str:
    """Describe a move that began and was not completed. The worker that had the points may be
    gone."""
    points = counted(line.get("points", 0), "point")
    ends = f"from {name_of(line['worker'])} to {name_of(line['target'])}"
    why = in_words(reason_of(line), name_of)
    return (
        f"{points} ({counted(line.get('chunks', 0), 'chunk')}) do not move {ends} after all: {why}"
    )
