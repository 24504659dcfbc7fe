"""Durations written as text, such as in options and scenarios."""

import pytest

from polyrhythm.core.values import parse_duration


@pytest.mark.parametrize(
    ("text", "length_ns"),
    [
        ("10ms", 10_000_000),
        ("1.5s", 1_500_000_000),
        ("250us", 250_000),
        ("7ns", 7),
        ("2min", 120 * 10**9),
        ("1h", 3600 * 10**9),
        (" 60s ", 60 * 10**9),
    ],
)
def test_a_number_and_its_unit(text: str, length_ns: int) -> None:
    assert parse_duration(text) == length_ns


@pytest.mark.parametrize(
    "text", ["", "10", "ms", "-3s", "1e3s", "1 s", "10MS", "1.s", "3weeks", "infs"]
)
def test_anything_else_says_what_a_duration_is(text: str) -> None:
    with pytest.raises(ValueError, match="such as 10ms"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0s", "0.1ns", "9999h", "9" * 400 + "s"])
def test_lengths_beyond_the_limit_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at most a year"):
        parse_duration(text)
