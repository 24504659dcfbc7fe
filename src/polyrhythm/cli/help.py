"""The help of commands with many options, by the groups of the list (`api/options.py`).

*`--help` shows the common options, each with the first sentence of its text; `--help-all` shows all
options with their whole texts.* Both end with the examples of the command.
"""

import copy
import re
from typing import Annotated, Any

import typer

from polyrhythm.api.options import Group, Option, nearest, options_of
from polyrhythm.cli.command import Command

MOST_WIDTH = 120
_ALL = "polyrhythm.help-all"
"""The key under which a context keeps whether its help shows all options."""
_MOST_COLUMN = 26
"""The width of the column of flags. A longer flag has a line for itself."""
_NO_BREAK, _NO_BREAK_HYPHEN = "\u00a0", "\u2011"


class GroupedCommand(Command):
    """A command whose help shows its options in groups."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings.setdefault("max_content_width", MOST_WIDTH)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if similar := getattr(error, "possibilities", None):
                error.possibilities = [nearest(error.option_name, similar)]  # type: ignore[attr-defined]
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        page = ctx.make_formatter()
        self.format_usage(ctx, page)
        prose, examples = _split(self.help or "")
        whole = shows_all(ctx)
        with page.indentation():
            for text in prose if whole else prose[:1]:
                page.write_paragraph()
                page.write_text(_unbroken(text))
        self._write_options(ctx, page, whole)
        with page.section("Examples"):
            for example in examples:
                page.write(f"{'':{page.current_indent}}{example}\n")
        page.write_paragraph()
        other = (
            f"{ctx.command_path} --help shows only the common options."
            if whole
            else f"{ctx.command_path} --help-all shows all options, and more about each."
        )
        page.write(f"{other}\n")
        formatter.write(_in_colour(_with_breaks(page.getvalue())))

    def _listed(self) -> dict[str, Option]:
        """The options that the help shows, by their names."""
        return options_of(self.callback) if self.callback else {}

    def _write_options(self, ctx: Any, page: Any, whole: bool) -> None:
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        rows = {"Arguments": [_row(each, ctx, whole) for each in arguments]}
        listed = self._listed()
        for group in Group:
            shown = (
                param
                for param in self.params
                if (option := listed.get(str(param.name))) is not None
                and option.group is group
                and not option.hidden
                and (whole or option.common)
            )
            rows[group.value] = [_row(each, ctx, whole) for each in shown]
        longest = max(len(left) for group in rows.values() for left, _ in group)
        column = min(longest, _MOST_COLUMN)
        for name, group_rows in rows.items():
            if group_rows:
                with page.section(name):
                    page.write_dl([(f"{left:{column}}", text) for left, text in group_rows], column)


def shows_all(ctx: Any) -> bool:
    return bool(ctx.meta.get(_ALL))


def show_all(ctx: Any) -> Any:
    """Make the help of this context show all options."""
    ctx.meta[_ALL] = True
    return ctx


def _on_help_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        typer.echo(show_all(ctx).get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    Option(
        "Show all options.",
        "--help-all",
        group=Group.JOB,
        hidden=True,
        is_eager=True,
        callback=_on_help_all,
    ),
]


def _row(param: Any, ctx: Any, whole: bool) -> tuple[str, str]:
    shown = copy.copy(param)
    if not whole:
        shown.help = _first_sentence(param.help or "")
    left, text = shown.get_help_record(ctx)
    if param.param_type_name == "argument":
        left = param.metavar or param.name
    return left, _unbroken(text)


def _unbroken(text: str) -> str:
    """Mark the text, so that no line breaks within the name of an option or before a default."""
    text = re.sub(r"(?<=[\w-])-(?=[\w-])|(?<!\w)-(?=-)|(?<=-)-(?=\w)", _NO_BREAK_HYPHEN, text)
    return text.replace("[default: ", f"[default:{_NO_BREAK}")


def _with_breaks(text: str) -> str:
    return text.replace(_NO_BREAK, " ").replace(_NO_BREAK_HYPHEN, "-")


def _first_sentence(text: str) -> str:
    first, more, _ = text.partition(". ")
    return f"{first}." if more else first


def _split(text: str) -> tuple[list[str], list[str]]:
    """The paragraphs of a docstring, and its examples, which are indented."""
    paragraphs = [each for each in text.split("\n\n") if each != "Examples:"]
    examples = [each.strip() for each in paragraphs if each.startswith("  ")]
    return [each for each in paragraphs if not each.startswith("  ")], examples


def _in_colour(text: str) -> str:
    """The text with colours if stdout is a terminal that shows them."""
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    styled.highlight_regex(r"(?m)^[A-Z]\w+:$", "bold")
    styled.highlight_regex(r"(?m)^  --[\w-]+(?: / --[\w-]+)?", "cyan")
    console = Console(highlight=False, soft_wrap=True)
    with console.capture() as capture:
        console.print(styled, end="")
    return capture.get()
