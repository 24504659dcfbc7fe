"""Options of the jobs that read a table of points: `--set data=higgs.csv --set k=10`. A job's
`DEFAULTS` lists the options that the job knows. Options are checked before any process starts."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from polyrhythm.errors import UsageError

_WHOLE = ("k", "batch")
_POSITIVE = ("rate", "m")
_TOL = "tol"
_CHOICES = {
    "covariance": ("diag", "full"),
    "form": ("ratings", "table"),
    "observed": ("yes", "no"),
}
DATA = "data"
LAST = -1
"""The last column: it is the label in a job that learns labels, unless the user names another
column."""


def check_point_options(
    job: str, options: Mapping[str, str], known: Sequence[str]
) -> dict[str, str]:
    """Return the options, with the absolute path of the data. Raises an error that says which
    option is wrong and why."""
    for name in options:
        if name not in known:
            raise UsageError(
                f"--set {name}={options[name]} is not known to the job {job}: this job takes"
                f" {', '.join(known)}"
            )
    if not options.get(DATA):
        raise UsageError(
            f"the job {job} needs its points: --set data=FILE (.csv, .parquet or .npy)"
        )
    path = Path(options[DATA]).expanduser().resolve()
    if not path.exists():
        raise UsageError(f"--set data={options[DATA]}: there is no such file")
    for name in options:
        if name in _WHOLE:
            positive_integer(options, name, 1)
        if name in _POSITIVE:
            number(options, name, 1.0)
        if name == _TOL:
            tolerance(options, 1.0)
        if name in _CHOICES and options[name] not in _CHOICES[name]:
            raise UsageError(
                f"--set {name}={options[name]} is not understood: give"
                f" {' or '.join(_CHOICES[name])}"
            )
    from polyrhythm.learn.data.tables import check_table

    ratings = "form" in known and options.get("form") != "table"
    column = label(options)
    if column is None and "rate" in known:
        column = LAST  # the user names no label, and the job needs one: take the last column
    check_table(path, None if ratings else column, (0, 1, 2) if ratings else None)
    return {**options, DATA: str(path)}


def positive_integer(options: Mapping[str, str], name: str, default: int) -> int:
    """The value of this option, a whole number above 0."""
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--set {name}={text} is not understood: give a whole number above 0")
    return int(text)


def number(options: Mapping[str, str], name: str, default: float) -> float:
    """The value of this option, a number above 0."""
    text = options.get(name, str(default))
    value = _parsed(text)
    if not 0.0 < value < inf:
        raise UsageError(f"--set {name}={text} is not understood: give a number above 0")
    return value


def tolerance(options: Mapping[str, str], default: float) -> float:
    """The number of `--set tol`. With 0 the job ends when nothing changes any more."""
    text = options.get(_TOL, str(default))
    value = _parsed(text)
    if not 0.0 <= value < inf:
        raise UsageError(f"--set {_TOL}={text} is not understood: give 0 or a number above 0")
    return value


def _parsed(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def label(options: Mapping[str, str]) -> str | int | None:
    """The column of the label: its name, or its number; None if it was not given."""
    text = options.get("label")
    if text is None:
        return None
    return int(text) if text.lstrip("-").isdigit() else text
