"""What a process writes is shown line by line: whole lines, readable, of limited length."""

import pytest

from polyrhythm.observe.output import Lines


def test_a_line_is_shown_when_it_is_complete() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntw") == ["one"]
    assert lines.feed(b"o") == []
    assert lines.feed(b"\n\nthree") == ["two", ""]
    assert lines.end() == ["three"]
    assert lines.end() == []


@pytest.mark.parametrize("cut", range(1, 20))
def test_where_the_bytes_are_cut_changes_nothing(cut: int) -> None:
    data = "schön 1\n\r10%\r20%\r\nend".encode()
    lines = Lines()
    shown = [*lines.feed(data[:cut]), *lines.feed(data[cut:]), *lines.end()]
    assert shown == ["schön 1", "20%", "end"]


def test_bytes_that_are_not_utf_8_are_escaped() -> None:
    assert Lines().feed(b"a\xffb\n") == ["a\\xffb"]


def test_control_characters_are_escaped_and_colours_stay() -> None:
    lines = Lines()
    assert lines.feed(b"a\tb\x00c\n") == ["a       b\\x00c"]
    assert lines.feed(b"\x1b[31mred\x1b[0m\n") == ["\x1b[31mred\x1b[0m\x1b[0m"]
    assert lines.feed(b"\x1b[2J\x1b[5Aup\x1b]0;title\x07\n") == ["up"]


def test_a_long_line_is_cut() -> None:
    (line,) = Lines().feed(b"x" * 5_000 + b"\n")
    assert line == "x" * 1_000 + " … (4000 more characters are in the log)"


def test_an_endless_line_needs_little_memory() -> None:
    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"x" * 65_536) == []
    assert len(lines._held) <= 65_536
    (line,) = lines.feed(b"\nnext")
    assert line.endswith(f" … ({100 * 65_536 - 1_000} more characters are in the log)")
    assert lines.end() == ["next"]


def test_only_the_newest_state_of_a_progress_bar_is_shown() -> None:
    lines = Lines()
    assert lines.redrawn() == []
    for percent in range(50):
        assert lines.feed(f"\r{percent}%|###   |".encode()) == []
    assert lines.redrawn() == ["49%|###   |"]
    assert lines.redrawn() == [], "it has not changed"
    assert lines.feed(b"\r100%|######|\nsaved\n") == ["100%|######|", "saved"]


def test_the_last_state_of_a_progress_bar_is_shown_once() -> None:
    lines = Lines()
    lines.feed(b"\r100%|###|")
    assert lines.redrawn() == ["100%|###|"]
    assert lines.feed(b"\nsaved\n") == ["saved"]
    lines.feed(b"50%\r")
    assert lines.redrawn() == ["50%"]
    assert lines.feed(b"100%\r") == []
    assert lines.redrawn() == ["100%"]
    assert lines.end() == []
