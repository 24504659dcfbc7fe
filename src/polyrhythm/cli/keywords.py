"""Makes the flags of a command from the keywords of the function that the command calls."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

Command = Callable[..., None]


def flags_from(function: Callable[..., Any]) -> Callable[[Command], Command]:
    """A decorator: the command gets every keyword of `function` as a flag, before its own flags.
    The command receives the values of these flags in its `**options`."""

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command).parameters.values())
        keywords = [each for each in own if each.kind is each.KEYWORD_ONLY]
        arguments = [each for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
        options = inspect.signature(function).parameters.values()
        made = [_flag(each) for each in options if each.kind is each.KEYWORD_ONLY]
        parameters = [*arguments, *made, *keywords]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _flag(option: inspect.Parameter) -> inspect.Parameter:
    """Return the flag for a keyword. A keyword that also accepts other Python objects has a union
    as its type; the flag gets the annotated member of the union."""
    if get_origin(option.annotation) is Annotated:
        return option
    annotated = [each for each in get_args(option.annotation) if get_origin(each) is Annotated]
    return option.replace(annotation=annotated[0])
