"""The options of a job before it does anything: the job's own DEFAULTS are added to those that the
user gives, and the names and types of all are checked.

Checks two options and converts them for the job: `--init`, the initial model, and `--set`, options of
the job's own code.

The targets of a job, as options give them: `--target val_loss=0.3`, and the two shorthands.
"""

import difflib
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from polyrhythm.api.code import Code, find_code
from polyrhythm.core.metrics import OBJECTIVE, parse_target
from polyrhythm.core.model import MODEL, named
from polyrhythm.errors import UsageError
from polyrhythm.learn.load import JOBS
from polyrhythm.wire.messages import Target


def checked_init(path: Path) -> Path:
    """The absolute path of the file that --init names, or of the folder with the files of several
    models. Raises an error if a file cannot be read."""
    from polyrhythm.store.model_open import check_readable

    path = path.expanduser().resolve()
    if not path.is_dir():
        check_readable(path)
        return path
    files = [each for each in sorted(path.iterdir()) if each.name == MODEL or named(each.name)]
    if not files:
        raise UsageError(f"--init {path} is a folder without a model: it has no {MODEL}")
    for file in files:
        check_readable(file)
    return path


def own_options(given: list[str] | Mapping[str, object] | None) -> dict[str, str]:
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


GOALS = frozenset(
    {
        *("rounds", "epochs", "points", "max_seconds", "target", "target_accuracy"),
        *("target_objective", "target_change"),
    }
)
"""The options that end a job. If the user gives any of them, those in DEFAULTS do not apply."""
DATA = "data"
"""The key of DEFAULTS for the data sets that the job needs."""
OF_SET = "options"
"""The key of a built-in job's DEFAULTS for the names that the job accepts with `--set`."""

Function = TypeVar("Function", bound=Callable[..., Any])


def with_job_defaults(function: Function) -> Function:
    """A decorator for a function whose first argument is the code of a job: the options in the job's
    DEFAULTS take the place of the function's own defaults."""

    @functools.wraps(function)
    def with_defaults(main: Any, **given: Any) -> Any:
        code = find_code(main)
        return function(code, **with_defaults_of(code, function, given))

    return cast("Function", with_defaults)


def with_defaults_of(
    code: Code, function: Callable[..., Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The options that the user has given, and those in the DEFAULTS of the job for the rest. An
    option that is None is not given. Raises UsageError if a key of DEFAULTS is neither an option of
    `function` nor `data`."""
    names = _names(function)
    known = [*names, DATA, *([OF_SET] if code.name in JOBS else [])]
    defaults: dict[str, Any] = {}
    for key, value in code.defaults.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UsageError(
                f"{code.name}: DEFAULTS has no key {key!r}: the nearest is {_nearest(name, known)!r}"
            )
        if name in names:
            defaults[name] = value
    chosen = {name: value for name, value in given.items() if value is not None}
    if GOALS & chosen.keys():
        defaults = {name: value for name, value in defaults.items() if name not in GOALS}
    if isinstance(defaults.get("set"), list | Mapping) and "set" in chosen:
        chosen["set"] = own_options(defaults["set"]) | own_options(chosen["set"])
    return {**given, **defaults, **chosen}


def _names(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]


def check_options(
    function: Callable[..., Any], given: Mapping[str, object], unknown: Iterable[str]
) -> None:
    """Raise UsageError if an option is not known, naming the nearest known one, or if its value has
    a type that the function does not accept."""
    known, names = inspect.signature(function).parameters, _names(function)
    for name in unknown:
        near = _nearest(name, names)
        raise UsageError(f"{function.__name__} has no option {name!r}: the nearest is {near!r}")
    for name in names:
        accepted = tuple(_classes(known[name].annotation))
        value = given[name]
        fits = isinstance(value, accepted) or (isinstance(value, int) and float in accepted)
        if not fits or (isinstance(value, bool) and bool not in accepted):
            words = " or ".join(each.__name__ for each in accepted if each is not type(None))
            raise UsageError(f"{name} is {value!r}: it must be of type {words}")


def _classes(annotation: Any) -> Iterable[type]:
    """The classes of which a value may be an instance."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _classes(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _classes(member)
    elif origin is not None:
        yield origin
    else:
        yield type(None) if annotation is None else annotation


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
