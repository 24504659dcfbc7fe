"""Sizes as users write them."""

import re

import pytest

from polyrhythm.api.values import memory, slice_nbytes
from polyrhythm.core.values import parse_size
from polyrhythm.errors import UsageError


def test_sizes_have_a_number_and_a_unit() -> None:
    assert parse_size("0") == 0
    assert [parse_size(text) for text in ("0B", "500MB", "1.5 GiB")] == [0, 5 * 10**8, 3 * 2**29]


@pytest.mark.parametrize(
    ("spellings", "nbytes"),
    [
        (("1B", "1b"), 1),
        (("1kB", "1KB", "1kb", "1K", "1k", "1 KB"), 10**3),
        (("1MB", "1mb", "1M", "1m"), 10**6),
        (("1GB", "1gb", "1gB", "1G"), 10**9),
        (("1TB", "1tb", "1T"), 10**12),
        (("1KiB", "1kiB", "1kib", "1KIB", "1Ki", "1ki"), 2**10),
        (("1MiB", "1mib", "1Mi"), 2**20),
        (("1GiB", "1gib", "1Gi"), 2**30),
        (("1TiB", "1tib", "1Ti"), 2**40),
    ],
)
def test_usual_spellings_of_a_unit_mean_the_same(spellings: tuple[str, ...], nbytes: int) -> None:
    assert {text: memory(text) for text in spellings} == dict.fromkeys(spellings, nbytes)


@pytest.mark.parametrize("text", ["1Kb", "1Mb", "1Gib", "1KIb", "1Mbit", "1bit"])
def test_a_unit_that_may_mean_bits_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        memory(text)


def test_the_error_lists_the_units() -> None:
    with pytest.raises(UsageError) as error:
        memory("1PB")
    said = str(error.value)
    units = ("B", "KB", "MB", "GB", "TB", "K", "M", "G", "T")
    units += ("KiB", "MiB", "GiB", "TiB", "Ki", "Mi", "Gi", "Ti")
    assert set(units) <= set(re.findall(r"\w+", said)), said
    assert all(parse_size(f"1{unit}") for unit in units)


@pytest.mark.parametrize("text", ["", "5", "GB", "-1MB", "5 bytes", "1e3MB", "1i", "1ib", "1iB"])
def test_other_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="--migrate-memory .* is not a size: give a number"):
        memory(text)


@pytest.mark.parametrize("text", ["99999999999999GB", "9" * 400 + "TB"])
def test_a_size_that_no_message_can_hold_is_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match="--migrate-memory .* is too large: give at most 1048576TiB"
    ):
        memory(text)


def test_auto_is_no_size() -> None:
    assert memory("auto") is None


def test_slice_sizes() -> None:
    assert slice_nbytes("auto") == 0
    assert slice_nbytes("4KiB") == 4096 and slice_nbytes("1MB") == 10**6
    for text in ("0", "4095B", "65MiB", "1TB"):
        with pytest.raises(UsageError, match=f"--slice-size is {text}: give auto, or a size from"):
            slice_nbytes(text)
    for text in ("much", "-5MB", ""):
        with pytest.raises(UsageError, match="--slice-size .* is not a size: give a number"):
            slice_nbytes(text)
