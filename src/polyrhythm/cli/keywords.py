"""Makes the flags of a command from the list of options (`api/options.py`)."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_args

from polyrhythm.api.options import annotated, options_of
from polyrhythm.api.training import train

Command = Callable[..., None]


def flags_from(function: Callable[..., Any]) -> Callable[[Command], Command]:
    """A decorator: the command gets every keyword of `function` as a flag, before its own flags.
    The command receives the values of these flags in its `**options`. A keyword without its own
    annotation has that of `train`."""
    listed = inspect.signature(train).parameters

    def flag(keyword: inspect.Parameter) -> inspect.Parameter:
        described = keyword.name in options_of(function)
        source = keyword if described else listed[keyword.name]
        return keyword.replace(annotation=annotated(source.annotation))

    return _with_flags(map(flag, _keywords(function)))


def flags_again(name: str) -> Callable[[Command], Command]:
    """A decorator for a command that starts a job which has its settings already: the command gets the
    options of `train` that the list gives to the command `name`. An option that the user does not give
    is None, and the job keeps its setting."""

    def flag(keyword: inspect.Parameter) -> inspect.Parameter:
        option, shown = options_of(train)[keyword.name], annotated(keyword.annotation)
        if option.field is None:
            return keyword.replace(annotation=shown)
        accepted = get_args(shown)[0] | None
        return keyword.replace(annotation=Annotated[accepted, option.resumed()], default=None)

    chosen = [each for each in _keywords(train) if name in options_of(train)[each.name].commands]
    return _with_flags(map(flag, chosen))


def _keywords(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.kind is each.KEYWORD_ONLY]


def _with_flags(flags: Iterable[inspect.Parameter]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        own = inspect.signature(command).parameters.values()
        arguments = [each for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
        parameters = [*arguments, *flags, *_keywords(command)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate
