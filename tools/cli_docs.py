"""Makes `docs/cli.md` from the help texts of the program: `python -m tools.cli_docs` writes the
page, and `--check` compares it with the help texts.

The help texts are plain text of a fixed width, so the page does not depend on the terminal.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from polyrhythm.cli.help import show_all
from polyrhythm.cli.main import make_app

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "cli.md"
_WIDTH = 100
_TOP = """# The command line

This page is made from the program: `make docs` writes it, and a test fails when it is outdated.
"""


def page() -> str:
    parts = [_TOP]
    for words, command in _commands(["polyrhythm"], get_command(make_app())):
        parts.append(f"## {words}\n\n```text\n{_help(words, command)}\n```\n")
    return "\n".join(parts)


def _commands(words: list[str], command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the command and all its subcommands."""
    yield " ".join(words), command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands([*words, name], below)


def _help(words: str, command: Any) -> str:
    command.rich_markup_mode = None
    context = command.make_context(words, [], resilient_parsing=True, terminal_width=_WIDTH)
    lines = command.get_help(show_all(context)).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()


def write_or_check(path: Path, text: str) -> None:
    """Write a page that is made from the program. With the flag --check, end with an error if the page
    has another text."""
    if "--check" not in sys.argv[1:]:
        path.write_text(text)
    elif not path.is_file() or path.read_text() != text:
        sys.exit(f"{path.relative_to(_ROOT)} is outdated: run 'make docs'")


if __name__ == "__main__":
    write_or_check(PAGE, page())
