"""The words for moves of points from worker to worker."""

from collections.abc import Callable
from typing import Any

from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.state import reason_of
from polyrhythm.observe.words import counted


def moved(line: dict[str, Any], name_of: Callable[[int], str]) -> str:
    """Points have arrived at their new worker."""
    chunks, free = line.get("chunks", 0), line.get("free", 0)
    text = f"{counted(line.get('points', 0), 'point')} ({counted(chunks, 'chunk')}) have moved"
    text += f" from {name_of(line['worker'])} to {name_of(line['target'])}"
    if free:
        text += f"; {free} of the chunks had a copy there, so their points were not sent"
    return text


def kept(line: dict[str, Any], name_of: Callable[[int], str]) -> str:
    """Points stay with their worker, although a move had begun."""
    points = counted(line.get("points", 0), "point")
    stay = f"{points} ({counted(line.get('chunks', 0), 'chunk')}) stay with"
    return f"{stay} {name_of(line['worker'])}: {in_words(reason_of(line), name_of)}"
