"""Makes `docs/reference/options.md` from the list of options (`polyrhythm/api/options.py`): `python -m
tools.option_docs` writes the page, and `--check` compares it with the list.

The options have the groups and the order of `polyrhythm train --help-all`.
"""

import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from polyrhythm.api.options import Group, Option, options_of
from polyrhythm.api.training import train
from tools.cli_docs import write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"
_TOP = """# Options

This page is made from the program: `make docs` writes it, and a test fails when it is outdated.

These are the options of [`polyrhythm.train`](training.md#training). Each is a keyword in Python and a
flag on the command line: `local_steps=8` is `--local-steps 8`. The texts name options by their flags.
The last column says which of the commands `train`, `serve` and `resume` have the option;
`polyrhythm.serve` has those of `serve`.
"""
_OF_GROUP = {
    Group.TUNING: "For jobs whose defaults are known to be wrong.",
    Group.LABORATORY: "These only reproduce the papers, or stage a slow machine.",
}
_FLAG = re.compile(r"(?<![\w`-])--[a-z][\w-]*")


def page() -> str:
    listed = options_of(train)
    parts = [_TOP]
    for group in Group:
        rows = [_row(name, each) for name, each in listed.items() if each.group is group]
        intro = f"{_OF_GROUP[group]}\n\n" if group in _OF_GROUP else ""
        head = "| keyword | meaning | commands |\n|---|---|---|"
        parts.append(f"## {group.value}\n\n{intro}{head}\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(name: str, option: Option) -> str:
    keyword = inspect.signature(train).parameters[name]
    kinds = " or ".join(dict.fromkeys(_types(keyword.annotation)))
    default = "" if keyword.default is None else f" = `{_shown(keyword.default)}`"
    text = _FLAG.sub(lambda flag: f"`{flag[0]}`", str(option.help))
    commands = ", ".join(each for each in ("train", "serve", "resume") if each in option.commands)
    cells = (f"`{name}`: {kinds}{default}", text, commands)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _shown(default: object) -> str:
    return repr(str(default) if isinstance(default, Path) else default)


def _types(annotation: Any) -> Iterator[str]:
    """The names of the types of an option, without None, which means that it is not given."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _types(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _types(member)
    elif origin is not None:
        yield {"Mapping": "dict"}.get(origin.__name__, origin.__name__)
    elif annotation is not type(None):
        yield annotation.__name__


if __name__ == "__main__":
    write_or_check(PAGE, page())
