"""The help of commands with many options: the common ones with `--help`, all with `--help-all`."""

import re
from collections.abc import Callable

import pytest
from typer.testing import Result

from polyrhythm.api.options import Group, flag_of, options_of
from polyrhythm.api.training import train
from polyrhythm.cli.help import _in_colour
from polyrhythm.cli.main import COMMANDS

Call = Callable[..., Result]
SHORT = ["Job", "Processes", "Synchronisation", "Results", "Network"]
LISTED = options_of(train)


def help_of(call: Call, command: str, flag: str = "--help", columns: int = 80) -> str:
    result = call(command, flag, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout


def headings(text: str) -> list[str]:
    return re.findall(r"^(\w+):$", text, re.MULTILINE)


def entries(text: str) -> dict[str, int]:
    """The options that the help describes, and how many lines each has."""
    found: dict[str, int] = {}
    flag = None
    for line in text.splitlines():
        if match := re.match(r"  (--[\w-]+)", line):
            flag = match[1]
            found[flag] = 0
        elif not line.startswith("      "):
            flag = None
        if flag is not None:
            found[flag] += 1
    return found


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_train_shows_common_options_in_five_groups(call: Call, columns: int) -> None:
    text = help_of(call, "train", columns=columns)
    assert headings(text) == ["Arguments", *SHORT, "Examples"]
    lines = entries(text)
    assert 25 <= len(lines) <= 35
    assert [flag for flag, count in lines.items() if count > 2] == []
    assert max(map(len, text.splitlines())) <= columns
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) == 4
    assert text.rstrip().endswith(
        "polyrhythm train --help-all shows all options, and more about each."
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_all_options_are_in_groups_and_the_last_are_tuning_and_laboratory(
    call: Call, columns: int
) -> None:
    text = help_of(call, "train", "--help-all", columns)
    assert headings(text) == ["Arguments", *(group.value for group in Group), "Examples"]
    assert headings(text)[-3:-1] == ["Tuning", "Laboratory"]
    shown = entries(text).keys()
    assert {flag_of(name) for name, each in LISTED.items() if not each.hidden} <= shown
    assert max(map(len, text.splitlines())) <= columns


def test_an_option_that_only_says_what_another_says_is_named_in_the_text_of_that_one(
    call: Call,
) -> None:
    text = help_of(call, "train", "--help-all")
    aliases = {flag_of(name) for name, each in LISTED.items() if each.hidden}
    assert aliases == {"--target-accuracy", "--target-objective", "--global-batch"}
    for alias in aliases:
        assert alias not in entries(text) and alias in text
    arguments = ("--global-batch", 8, "--target-accuracy", 0.9, "--show-config", "--json")
    assert call("train", *arguments).exit_code == 0


def test_every_group_of_an_option_in_the_short_help_is_one_of_five() -> None:
    hidden = {each.group for each in LISTED.values() if not each.common}
    assert {Group.TUNING, Group.LABORATORY} <= hidden
    assert {each.group.value for each in LISTED.values() if each.common} == set(SHORT)


@pytest.mark.parametrize("command", ["serve", "resume"])
def test_other_commands_that_start_a_job_have_the_same_groups(call: Call, command: str) -> None:
    short, whole = help_of(call, command), help_of(call, command, "--help-all")
    assert [name for name in headings(short) if name in SHORT] == SHORT
    assert entries(short).keys() < entries(whole).keys()
    assert f"polyrhythm {command}" in short.partition("Examples:\n")[2]


def test_no_line_ends_within_the_name_of_an_option(call: Call) -> None:
    for columns in (60, 80, 100, 120):
        text = help_of(call, "train", "--help-all", columns)
        assert not re.findall(r"-$", text, re.MULTILINE)
        assert "\u2011" not in text and "\u00a0" not in text


def test_a_terminal_shows_the_same_text_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Job:\n  --workers N  Number of workers, as in [1].\n"
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert _in_colour(text) == text, "stdout is no terminal"
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = _in_colour(text)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in _in_colour(text)


def test_the_list_of_commands_has_a_whole_line_for_each_at_80_columns(call: Call) -> None:
    text = call("--help", env={"COLUMNS": "80"}).stdout
    rows = text.partition("Commands:\n")[2].splitlines()
    assert [row.split()[0] for row in rows] == list(COMMANDS)
    assert all(row.endswith(".") and not row.endswith("...") for row in rows), text
    assert text.isascii(), "no boxes"


@pytest.mark.parametrize("command", ["checkpoints", "data", "bench"])
def test_groups_of_commands_have_a_whole_line_for_each_too(call: Call, command: str) -> None:
    rows = call(command, "--help", env={"COLUMNS": "80"}).stdout.partition("Commands:\n")[2]
    assert rows and all(not row.endswith("...") for row in rows.splitlines()), rows


@pytest.mark.parametrize(("typed", "meant"), [("--worker", "--workers"), ("--epoch", "--epochs")])
def test_an_unknown_option_is_answered_by_the_nearest_one_alone(
    call: Call, typed: str, meant: str
) -> None:
    refused = call("train", "digits", typed, "3")
    assert refused.exit_code == 2
    assert refused.output.rstrip().endswith(f"No such option: {typed} (Possible options: {meant})")
