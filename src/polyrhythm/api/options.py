"""The list of options is the signature of `polyrhythm.train`: each keyword is annotated with an
`Option`. This module defines what an annotation says, and what follows from the list: the names and
types that are accepted, the options of each command, the fields of the job, and the options that a
job's DEFAULTS may have.

Which options of a job work together is a separate table, because simulated jobs need it too
(`core/combinations.py`).
"""

import copy
import difflib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from typer.models import OptionInfo

from polyrhythm.api.code import Code, find_code
from polyrhythm.api.values import Check, own_options
from polyrhythm.errors import UsageError
from polyrhythm.learn.load import JOBS
from polyrhythm.wire.messages import JobSpec


class Group(Enum):
    """The groups of options, in the order in which the help shows them."""

    JOB = "Job"
    PROCESSES = "Processes"
    SYNCHRONISATION = "Synchronisation"
    RESULTS = "Results"
    NETWORK = "Network"
    TUNING = "Tuning"
    LABORATORY = "Laboratory"
    """Options that only reproduce the papers, or slow processes down on purpose."""


TRAIN = frozenset({"train"})
"""For options that concern the code of a job."""
JOBS_OF_SERVERS = frozenset({"train", "serve"})
RESUMED = frozenset({"train", "serve", "resume"})
"""For options that a job may change when it is resumed, and for those of the command itself."""
WORKERS_HERE = frozenset({"train", "resume"})
"""For options of the workers that a command starts: `serve` starts none."""
FIRST_VERSION = "0.1"


class Option(OptionInfo):
    """What the list says of one option. The class is typer's, because typer finds its annotations by
    their class."""

    def __init__(
        self,
        help: str,  # noqa: A002
        *flags: str,
        group: Group,
        common: bool = False,
        field: str | None = None,
        read: Callable[[Any], Any] | None = None,
        check: Check | None = None,
        commands: frozenset[str] = JOBS_OF_SERVERS,
        goal: bool = False,
        since: str = FIRST_VERSION,
        **of_typer: Any,
    ) -> None:
        """`help`: its first sentence is the text of the short help. `common`: whether the short help
        shows the option. `field`: the field of `JobSpec` that the option sets, or FIELD.KEY for an item
        of a field that is a dict. `read`: makes the field's value from the option's. `check`: refuses
        wrong values. `commands`: the commands that have the option. `goal`: whether it ends the job.
        `since`: the first version with this option; the whole help shows it for later ones."""
        super().__init__(
            default=...,
            param_decls=flags,
            help=help if since == FIRST_VERSION else f"{help} Since version {since}.",
            show_envvar=False,
            **of_typer,
        )
        self.group = group
        self.common = common
        self.field = field
        self.read = read
        self.check = check
        self.commands = commands
        self.goal = goal
        self.since = since

    def resumed(self) -> "Option":
        """This option for a job that has a value already."""
        again = copy.copy(self)
        again.help = f"{self.help} Default: as in the old run."
        return again


@functools.cache
def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The options of a function by the names of its keywords."""
    found = {}
    for name, keyword in inspect.signature(function).parameters.items():
        for each in get_args(annotated(keyword.annotation)):
            if isinstance(each, Option):
                found[name] = each
    return found


def annotated(annotation: Any) -> Any:
    """The annotation that has the option. A keyword that also accepts other Python objects has a union
    as its type, and one member of the union has the option."""
    if get_origin(annotation) is Annotated:
        return annotation
    members = [each for each in get_args(annotation) if get_origin(each) is Annotated]
    return members[0] if members else annotation


def flag_of(name: str) -> str:
    """The flag for a keyword."""
    return f"--{name.replace('_', '-')}"


def words_of(function: Callable[..., Any], given: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give these options. A switch that is off gets no word if it
    is off by default."""
    words: list[str] = []
    for name, option in options_of(function).items():
        value, flag = given.get(name), flag_of(name)
        if isinstance(value, bool):
            off = [part for each in option.param_decls or () for part in each.split("/")[1:]]
            words += [flag] if value else off
        elif isinstance(value, list | tuple):
            words += [word for each in value for word in (flag, str(each))]
        elif value is not None:
            words += [flag, str(value)]
    return words


ALIKE = 0.8
"""How like a known name another name must be to count as a misspelling of it (`nearest`)."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.0) -> str | None:
    """The known name that is most similar to this one; None if the similarity of all is below
    `cutoff`."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def check_values(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise UsageError if an option has a value that it cannot have."""
    for name, option in options_of(function).items():
        if option.check is not None and given.get(name) is not None:
            option.check(flag_of(name), given[name])


def fields_of(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the job that these options set. Options without a value set no field. If several
    options set the same field, their tuples are joined."""
    fields: dict[str, Any] = {}
    for name, option in options_of(function).items():
        value = given.get(name)
        if option.field is None or value is None or value == []:
            continue
        if option.read is not None:
            value = option.read(value)
        field, _, key = option.field.partition(".")
        if key:
            fields.setdefault(field, {})[key] = value
        elif isinstance(value, tuple):
            fields[field] = fields.get(field, ()) + value
        else:
            fields[field] = value
    return fields


def has_goal(function: Callable[..., Any], job: JobSpec) -> bool:
    """Whether an option ends this job."""
    goals = [each.field for each in options_of(function).values() if each.goal and each.field]
    return any(getattr(job, field) not in (None, ()) for field in goals)


# -- what the user gives -------------------------------------------------------------------------

DATA = "data"
"""The key of DEFAULTS that lists the data sets that the job needs."""
OF_SET = "options"
"""The key in a built-in job's DEFAULTS under which it lists the names that it accepts with
`--set`."""

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
    """The options that the user has given; the rest comes from the DEFAULTS of the job. An option
    that is None is not given. If the user gives a goal, the goals in DEFAULTS do not apply. Raises
    UsageError if a key of DEFAULTS is neither an option of `function` nor `data`, or has a value
    that the option cannot have."""
    names = _names(function)
    known = [*names, DATA, *([OF_SET] if code.name in JOBS else [])]
    defaults: dict[str, Any] = {}
    for key, value in code.defaults.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UsageError(_unknown_default(code.name, str(key), value, known))
        if name in names:
            defaults[name] = value
    chosen = {name: value for name, value in given.items() if value is not None}
    goals = {name for name, option in options_of(function).items() if option.goal}
    if goals & chosen.keys():
        defaults = {name: value for name, value in defaults.items() if name not in goals}
    used = {name: value for name, value in defaults.items() if name not in chosen}
    try:
        _check_types(function, used)
        check_values(function, used)
    except UsageError as error:
        raise UsageError(f"{code.name}: DEFAULTS: {error}") from None
    if isinstance(defaults.get("set"), list | Mapping) and "set" in chosen:
        chosen["set"] = own_options(defaults["set"]) | own_options(chosen["set"])
    return {**given, **defaults, **chosen}


def _unknown_default(file: str, key: str, value: object, known: Iterable[str]) -> str:
    """Why DEFAULTS cannot have this key: it is a misspelt option, or an option that only the user
    may give."""
    what = f"{file}: DEFAULTS has no key {key!r}"
    near = nearest(key.replace("-", "_"), known, ALIKE)
    if near is not None:
        return f"{what}: the nearest is {near!r}"
    own = f'DEFAULTS = {{"set": {{{key!r}: {value!r}}}}}'
    return (
        f"{what}, because its keys are the options of pr.train(); give your own option as"
        f" {own} or --set {key}={value}, and read it from worker.options[{key!r}]"
    )


def _names(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def check_options(
    function: Callable[..., Any], given: Mapping[str, object], unknown: Iterable[str]
) -> None:
    """Raise UsageError if an option is not known, naming the nearest known one, or if it has a value
    or a type that it cannot have."""
    names = _names(function)
    for name in unknown:
        near = nearest(name, names)
        raise UsageError(f"{function.__name__} has no option {name!r}: the nearest is {near!r}")
    _check_types(function, {name: given[name] for name in names})
    check_values(function, given)


def _check_types(function: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Raise UsageError if an option has a value of a type that it cannot have."""
    known = inspect.signature(function).parameters
    for name, value in given.items():
        accepted = tuple(_classes(known[name].annotation))
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
