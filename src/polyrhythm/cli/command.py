"""The class of all subcommands. The error for an invalid value of an option is written by
polyrhythm, and not by the library that parses the command line."""

from typing import Any

import typer
from typer.core import TyperCommand

from polyrhythm.errors import UsageError

_WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}
"""What the user must give. The key is the first word of the library's error code."""


class Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            fault = fault_of(error)
            if fault is None or error.param is None:
                raise
            raise UsageError(f"{self._called(ctx, error.param)} {fault}") from None

    def _called(self, ctx: Any, param: Any) -> str:
        """The name of a parameter in an error message."""
        flag = str(max(param.opts, key=len))
        return flag if flag.startswith("-") else str(param.metavar or param.name)


def fault_of(error: typer.BadParameter) -> str | None:
    """What is wrong with a value, such as "is 'three': give a whole number". None if the error is not
    about a number or a switch."""
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    wanted = _WANTED.get(found[0]["type"].partition("_")[0]) if found else None
    return None if wanted is None else f"is {found[0]['input']!r}: give {wanted}"
