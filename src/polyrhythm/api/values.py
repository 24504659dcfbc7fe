"""Values of single options: which values are allowed, and what the job's settings store for them.

A check is a function of the flag and the value; a reader is a function of the value.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from polyrhythm.core.cluster import parse_demands, worker_range
from polyrhythm.core.devices import as_text, parse_devices
from polyrhythm.core.metrics import OBJECTIVE, parse_best, parse_target
from polyrhythm.core.model import MODEL, named
from polyrhythm.core.placement.division import AUTO
from polyrhythm.core.values import parse_duration, parse_size
from polyrhythm.errors import UsageError
from polyrhythm.wire.frames import MEMBER
from polyrhythm.wire.messages import Target

_LEAST_SLICE_NBYTES = 4 * 1024
_MOST_SLICE_NBYTES = MEMBER.payload_nbytes // 2
"""A slice is sent in one frame. If the parameters have half precision, they are also sent as
float32, with twice as many bytes."""
Check = Callable[[str, Any], None]

# -- checks --------------------------------------------------------------------------------------


def at_least(least: int) -> Check:
    def check(flag: str, value: int) -> None:
        if value < least:
            raise UsageError(f"{flag} is {value}: it must be at least {least}")

    return check


def a_change(flag: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise UsageError(f"{flag} is {value}: give a number, such as 0.001")


def a_time(flag: str, value: "Time") -> None:
    try:
        valid = 0 < seconds(value) < math.inf
    except ValueError:
        valid = False
    if not valid:
        shown = repr(value) if isinstance(value, str) else value
        raise UsageError(f"{flag} is {shown}: give seconds, such as 60, or a time such as 5min")


def one_of(known: Sequence[str]) -> Check:
    def check(flag: str, value: str) -> None:
        if value not in known:
            raise UsageError(f"{flag} {value!r} is not known: choose one of {', '.join(known)}")

    return check


def a_port(flag: str, value: int) -> None:
    if not 0 <= value < 65536:
        raise UsageError(f"{flag} is {value}: give one below 65536, or 0 for any free one")


def some_workers(flag: str, value: str | int) -> None:
    if isinstance(value, str) and ".." not in value:
        raise UsageError(f"{flag} is {value!r}: give a number, or two in a text, such as '2..8'")
    worker_range(value)


def some_demands(flag: str, value: "DemandsGiven") -> None:
    parse_demands(flag, demands(value))


def some_devices(flag: str, value: object) -> None:
    parse_devices(as_text(value))


def a_best_metric(flag: str, value: str) -> None:
    if not value:
        return
    try:
        parse_best(value)
    except ValueError as error:
        raise UsageError(f"{flag} is {value!r}: {error}") from None


def an_accuracy(flag: str, value: float) -> None:
    if not 0 < value <= 1:
        raise UsageError(f"{flag} is {value}: give a value above 0 and at most 1")


def an_objective(flag: str, value: float) -> None:
    if not math.isfinite(value):
        raise UsageError(f"{flag} is {value}: give a number, such as 0.3")


# -- readers -------------------------------------------------------------------------------------

Given = Iterable[str] | str | Mapping[str, float]
"""One NAME=VALUE, a list of these, or a dict from names to values."""


DemandsGiven = Iterable[str] | str | Mapping[str, object] | None
"""One demand such as CPU=2,GPU=1, a list of these, or a dict for all processes."""


def demands(given: DemandsGiven) -> tuple[str, ...]:
    """The texts of --resources-per-worker or --resources-per-server."""
    if isinstance(given, Mapping):
        given = ",".join(f"{name}={value}" for name, value in given.items())
    return (given,) if isinstance(given, str) else tuple(given or ())


Time = float | str
"""A number of seconds, or a text with a number and its unit."""


def seconds(given: Time) -> float:
    """The seconds in a number, or in a text such as 60 or 5min. Raises ValueError if the text is
    neither."""
    try:
        return float(given)
    except ValueError:
        return parse_duration(str(given)) / 1e9


def a_number_or_time(given: object) -> Time:
    """Parse the value of such an option on the command line. `a_time` names the flag if the value
    is wrong."""
    try:
        return float(str(given))
    except ValueError:
        return str(given)


def one_or_two_numbers(given: object) -> int | str:
    """The value of --workers on the command line, or in the configuration."""
    text = str(given)
    if ".." in text:
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor two, such as 2..8") from None


def least_workers(given: str | int) -> int:
    """The number of workers with which the job begins."""
    return worker_range(given)[0]


def targets(given: Given) -> tuple[Target, ...]:
    if isinstance(given, Mapping):
        given = [f"{name}={value!r}" for name, value in given.items()]
    return tuple(map(_target, [given] if isinstance(given, str) else given))


def _target(text: str) -> Target:
    try:
        return parse_target(text)
    except ValueError as error:
        raise UsageError(f"--target {text!r} is not understood: {error}") from None


def accuracy_target(value: float) -> tuple[Target, ...]:
    return (Target("accuracy", float(value), True),)


def objective_target(value: float) -> tuple[Target, ...]:
    return (Target(OBJECTIVE, float(value), False),)


def memory(text: str) -> int | None:
    """The value of --migrate-memory in bytes; None for auto."""
    if text == "auto":
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"--migrate-memory {error}") from None


def slice_nbytes(text: str) -> int:
    """The value of --slice-size in bytes."""
    if text == "auto":
        return AUTO
    try:
        nbytes = parse_size(text)
    except ValueError as error:
        raise UsageError(f"--slice-size {error}") from None
    if not _LEAST_SLICE_NBYTES <= nbytes <= _MOST_SLICE_NBYTES:
        raise UsageError(f"--slice-size is {text}: give auto, or a size from 4KiB to 32MiB")
    return nbytes


def items(given: Iterable[str]) -> str:
    """The items of an option that slows down processes (`--slow`), as one text."""
    return ",".join(given)


def initial_model(given: str | Path) -> str:
    """The absolute path of the file that --init names, or of the folder with the files of several
    models. Raises an error if a file cannot be read."""
    from polyrhythm.store.model_open import check_readable

    path = Path(given).expanduser().resolve()
    if not path.is_dir():
        check_readable(path)
        return str(path)
    files = [each for each in sorted(path.iterdir()) if each.name == MODEL or named(each.name)]
    if not files:
        raise UsageError(f"--init {path} is a folder without a model: it has no {MODEL}")
    for file in files:
        check_readable(file)
    return str(path)


def own_options(given: Iterable[str] | Mapping[str, object] | None) -> dict[str, str]:
    """The options for the job's own use, from a dict or from a list of NAME=VALUE."""
    if isinstance(given, Mapping):
        return {str(key): str(value) for key, value in given.items()}
    options = {}
    for pair in given or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {pair!r} is not understood: give NAME=VALUE")
        options[key] = value
    return options
