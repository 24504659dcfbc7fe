"""The metrics of a run: their last values, and their values over time."""

from collections.abc import Iterable
from typing import Any

from polyrhythm.core.metrics import OBJECTIVE
from polyrhythm.observe.state import RunState


def last_metrics(state: RunState) -> dict[str, float]:
    """The last objective, and the last value of every metric that workers reported or evaluated."""
    objective = {} if state.objective is None else {OBJECTIVE: state.objective}
    return {**objective, **state.metrics.values()}


_ROWS = {"rounds": "rounds", "passed": "pass", "reported": "report"}
"""The kinds of lines of the journal that become rows of the history, and what the rows are called."""


def history_of(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each line of the journal about rounds (at least once a second while rounds are
    folded), about a full pass, or about values that a worker reported. A row of rounds or of a pass
    has the mean objective of the rounds since the row of rounds before it, or of the pass. A row of a
    report has the worker and its values; its round is the version on which the values were measured,
    if the journal has this version."""
    state, rows = RunState(), []
    for line in lines:
        state.take(line)
        what = _ROWS.get(str(line.get("what")))
        if what is None:
            continue
        row: dict[str, Any] = {
            "at_s": state.at_s,
            "what": what,
            "round": line.get("round", state.round),
            "passes": line.get("passes", state.passes),
            "points": state.points if what == "rounds" else line.get("points", state.points),
        }
        if what == "report":
            row |= {"worker": line["name"], **line["metrics"]}
        else:
            row[OBJECTIVE] = line.get("objective")
        rows.append(row)
    return rows
