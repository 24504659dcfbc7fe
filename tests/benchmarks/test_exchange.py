"""The tables that the exchange benchmark makes from its runs."""

from typing import Any

import pytest

from benchmarks import readme
from benchmarks.exchange.__main__ import (
    LIMITS,
    LIMITS_DOCUMENT,
    SYSTEMS,
    limits_table,
    table,
)

MEDIANS = dict.fromkeys(SYSTEMS, 100.0) | dict.fromkeys(LIMITS, 400.0)
RESULT: dict[str, Any] = {
    "machine": "a machine",
    "workers": 4,
    "repeat": 5,
    "medians": {"4MB": MEDIANS | {"local": 1234.5}},
}


def test_the_first_table_has_a_row_for_every_system_and_no_bare_loop() -> None:
    made = table(RESULT)
    assert "medians of 5 (a machine)" in made
    assert "| **polyrhythm, local links** | 1,234.5 |" in made
    assert len(made.splitlines()) == 4 + len(SYSTEMS)


def test_the_second_table_compares_each_bare_loop_with_its_system() -> None:
    made = limits_table(RESULT)
    assert "| shared memory, copied in and out | 400.0 (309%) |" in made
    assert "| TCP, digest none | 400.0 (25%) |" in made


@pytest.mark.parametrize(
    ("name", "document"),
    [("exchange", readme.README), ("stragglers", readme.README), ("limits", LIMITS_DOCUMENT)],
)
def test_the_documents_have_a_place_for_every_table_of_make_bench(name: str, document: Any) -> None:
    text = document.read_text()
    assert text.index(f"<!-- {name}:begin -->") < text.index(f"<!-- {name}:end -->")
