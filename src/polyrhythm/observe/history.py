"""The metrics of a run: their last values, and their values over time."""

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from polyrhythm.observe.state import RunState


def last_metrics(state: RunState) -> dict[str, float]:
    """The last objective, and the mean over all workers of the last value that each reported."""
    values: dict[str, list[float]] = {}
    for worker in state.workers.values():
        for name, value in worker.reports.items():
            values.setdefault(name, []).append(value)
    objective = {} if state.objective is None else {"objective": state.objective}
    return {**objective, **{name: fmean(each) for name, each in sorted(values.items())}}


def history_of(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record for each line of the journal about rounds or about values that a worker reported.
    A record of rounds has the objective. A record of a report has the worker and its values."""
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
            record["objective"] = line.get("objective")
        else:
            record |= {"worker": line["name"], **line["metrics"]}
        records.append(record)
    return records
