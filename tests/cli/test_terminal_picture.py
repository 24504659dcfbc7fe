"""The picture of a terminal shows its lines after all control sequences were applied."""

import sys

import pytest

from tools.terminal_picture import Screen, picture, record


def test_erased_text_is_not_in_the_picture() -> None:
    screen = Screen()
    screen.feed("one\r\ntwo\r\n\x1b[1A\x1b[2Kthree\r\n")
    assert screen.lines == ["one", "three", ""]


def test_a_command_is_run_in_a_terminal() -> None:
    program = "import sys; print(sys.stdout.isatty()); print('\\033[31mred\\033[0m')"
    lines = record([sys.executable, "-c", program], 80, 24, None)
    assert lines[0] == "True"
    svg = picture(lines, "title", 80)
    assert "title" in svg
    assert "red" in svg
    assert "\x1b" not in svg


def test_a_command_that_fails_gives_no_picture() -> None:
    with pytest.raises(SystemExit, match="the command failed"):
        record(["sh", "-c", "echo oh no; exit 3"], 40, 10, None)
