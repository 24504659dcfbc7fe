"""The metrics of a run: their last values, and their values over time."""

from collections.abc import Iterable
from typing import Any

from polyrhythm.core.metrics import OBJECTIVE
from polyrhythm.observe.state import RunState


def last_metrics(state: RunState) -> dict[str, float]:
    """The last objective, and the last value of every metric that workers reported or evaluated."""
    objective = {} if state.objective is None else {OBJECTIVE: state.objective}
    return {**objective, **state.metrics.values()}


def history_of(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record for each line of the journal about rounds or about values that a worker reported.
    A record of rounds has the objective. A record of a report has the worker and its values; its
    round is the version on which the values were measured, if the journal has this version."""
    state, records = RunState(), []
    for line in lines:
        state.take(line)
        if line.get("what") not in ("rounds", "reported"):
            continue
        record: dict[str, Any] = {
            "at_s": state.at_s,
            "round": state.round,
            "passes": state.passes,
            "points": state.points,
        }
        if line["what"] == "rounds":
            record[OBJECTIVE] = line.get("objective")
        else:
            record["round"] = line.get("round", state.round)
            record |= {"worker": line["name"], **line["metrics"]}
        records.append(record)
    return records
