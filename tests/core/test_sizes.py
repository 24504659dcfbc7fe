"""Sizes as users write them."""

import pytest

from polyrhythm.api.policies import memory_of
from polyrhythm.core.sizes import parse_size
from polyrhythm.errors import UsageError


def test_sizes_have_a_number_and_a_unit() -> None:
    assert parse_size("0") == 0
    assert [parse_size(text) for text in ("0B", "500MB", "1.5 GiB")] == [0, 5 * 10**8, 3 * 2**29]


@pytest.mark.parametrize("text", ["", "5", "GB", "-1MB", "5 bytes", "1e3MB"])
def test_other_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="--migrate-memory .* is not a size: give a number"):
        memory_of(text)


@pytest.mark.parametrize("text", ["99999999999999GB", "9" * 400 + "TB"])
def test_a_size_that_no_message_can_hold_is_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match="--migrate-memory .* is too large: give at most 1048576TiB"
    ):
        memory_of(text)


def test_auto_is_no_size() -> None:
    assert memory_of("auto") is None
