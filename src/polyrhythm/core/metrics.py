"""The metrics that the user's code reports, such as an accuracy. This module decides whether higher
or lower values are better, which value a metric has when several workers report it, and how a
target is written.

*Lower values are better if the name of the metric contains one of the words in `_WORDS`, or if a
part of its name is one of the abbreviations in `_PARTS`. For every other metric, higher values are
better. `NAME>=VALUE` and `NAME<=VALUE` state the direction explicitly.*

*An evaluation is about the model that all workers share, so it replaces the earlier values of all
workers. A report is about one worker, so the value of the metric is the mean of the last reports of
all workers.*
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from polyrhythm.wire.messages.fields import METRIC_NAME, MOST_METRIC_NAME, MOST_NUMBER
from polyrhythm.wire.messages.job import Target

OBJECTIVE = "objective"
"""The name of the mean loss of all workers. Users' code does not report the loss, but passes it to
`step()`."""
RESERVED = frozenset({OBJECTIVE, "at_s", "round", "passes", "points", "worker"})
"""Names that no metric may have, because they are the names of other columns in the history of a
run."""
MOST_NAMES = 500
"""The most names of metrics in one job."""
LOWEST, HIGHEST = "lowest", "highest"
_WORDS = ("loss", "error", "perplexity", "cost", "distance", "divergence")
_PARTS = frozenset({"err", "mse", "rmse", "mae", "mape", "nll", "ppl", "bpc", "fid", "wer", "cer"})
_NAME = re.compile(METRIC_NAME)
_TARGET = re.compile(r"\s*([^<>=]*?)\s*(=|>=|<=)\s*([^<>=]*?)\s*")


def name_fault(name: str) -> str | None:
    """Why this cannot be the name of a metric; None if it can."""
    if len(name) > MOST_METRIC_NAME:
        return f"it has {len(name)} characters, and at most {MOST_METRIC_NAME} are accepted"
    if _NAME.search(name) is None:
        return "a name has letters, digits and _ . / - only, and begins with a letter"
    return None


def lower_is_better(name: str) -> bool:
    if name == OBJECTIVE:
        return True
    name = name.lower()
    parts = re.split(r"[\W_]+", name)
    return any(word in name for word in _WORDS) or not _PARTS.isdisjoint(parts)


def parse_target(text: str) -> Target:
    """The target that a user wrote as NAME=VALUE, NAME>=VALUE or NAME<=VALUE. Raises a ValueError
    whose text says what is wrong."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ValueError("give NAME=VALUE, such as val_loss=0.3, or NAME>=VALUE or NAME<=VALUE")
    name, relation, number = match.groups()
    if (fault := name_fault(name)) is not None:
        raise ValueError(f"{name!r} is not the name of a metric: {fault}")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not abs(value) <= MOST_NUMBER:
        raise ValueError(f"{number!r} is not a number: give NAME=VALUE, such as val_loss=0.3")
    at_least = not lower_is_better(name) if relation == "=" else relation == ">="
    return Target(name, value, at_least)


def parse_best(text: str, targets: Iterable[Target] = ()) -> tuple[str, bool]:
    """The metric by which the best model is chosen, and whether lower values are better. Without
    `lowest:` or `highest:`, a target of the job for the same metric states the direction. Raises a
    ValueError whose text says what is wrong."""
    before, colon, name = text.rpartition(":")
    if (colon and before not in (LOWEST, HIGHEST)) or (name in RESERVED):
        raise ValueError(
            "give a metric that workers report, such as accuracy or val_loss, or lowest:NAME or"
            " highest:NAME"
        )
    if (fault := name_fault(name)) is not None:
        raise ValueError(f"{name!r} is not the name of a metric: {fault}")
    if colon:
        return name, before == LOWEST
    stated = [not target.at_least for target in targets if target.metric == name]
    return name, stated[0] if stated else lower_is_better(name)


@dataclass(slots=True)
class Reported:
    """The present values of the metrics of a job."""

    _values: dict[str, dict[int, float]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        return sorted(self._values)

    def has_room_for(self, metrics: Iterable[str]) -> bool:
        """Whether the job may have these metrics too: the number of names is limited, because each name
        takes memory and a column of the history."""
        new = [name for name in metrics if name not in self._values]
        return not new or len(self._values) + len(new) <= MOST_NAMES

    def take(self, worker: int, metrics: Mapping[str, float], *, evaluated: bool) -> None:
        for name, value in metrics.items():
            if evaluated:
                self._values[name] = {worker: value}
            else:
                self._values.setdefault(name, {})[worker] = value

    def left(self, worker: int) -> None:
        """Forget the values of a worker that has left. The names of its metrics stay known."""
        for values in self._values.values():
            values.pop(worker, None)

    def value(self, name: str) -> float | None:
        """The mean of the last values of the workers; None if there is none."""
        values = self._values.get(name)
        return math.fsum(values.values()) / len(values) if values else None

    def means(self) -> dict[str, float]:
        """The value of every metric, by name."""
        found = ((name, self.value(name)) for name in self.names)
        return {name: value for name, value in found if value is not None}
