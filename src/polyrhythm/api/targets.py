"""The targets of a job, as options give them: `--target val_loss=0.3`, and the two shorthands."""

import math
from collections.abc import Iterable, Mapping

from polyrhythm.core.metrics import OBJECTIVE, parse_target
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import Target

Given = Iterable[str] | str | Mapping[str, float] | None
"""One NAME=VALUE, a list of these, or a dict from names to values."""


def targets_of(
    given: Given, accuracy: float | None = None, objective: float | None = None
) -> tuple[Target, ...]:
    """The targets of a job. `accuracy` and `objective`: the values of --target-accuracy and
    --target-objective. Raises UsageError if a target is wrong, or if two targets name the same
    metric."""
    targets = [_parsed(text) for text in _texts(given)]
    if accuracy is not None:
        if not 0 < accuracy <= 1:
            raise UsageError(f"--target-accuracy is {accuracy}: give a value above 0 and at most 1")
        targets.append(Target("accuracy", float(accuracy), True))
    if objective is not None:
        if not math.isfinite(objective):
            raise UsageError(f"--target-objective is {objective}: give a number, such as 0.3")
        targets.append(Target(OBJECTIVE, float(objective), False))
    names = [target.metric for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"there are {names.count(name)} targets for {name}: give only one")
    return tuple(targets)


def _texts(given: Given) -> list[str]:
    if isinstance(given, Mapping):
        return [f"{name}={value!r}" for name, value in given.items()]
    return [given] if isinstance(given, str) else list(given or ())


def _parsed(text: str) -> Target:
    try:
        return parse_target(text)
    except ValueError as error:
        raise UsageError(f"--target {text!r} is not understood: {error}") from None
