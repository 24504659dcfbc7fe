"""Whatever docs/guarantees.md promises is shown by something that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_everything_that_is_named_exists() -> None:
    page = ROOT / "docs" / "guarantees.md"
    text = page.read_text()
    promises, _, rest = text.partition("## What is not promised")
    assert rest, "the page says what is not"
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    for row in rows:
        named = re.findall(r"`((?:tests|tools)/[\w/]+\.py)`", row)
        assert named, f"nothing shows: {row}"
        assert [path for path in named if not (ROOT / path).exists()] == []
    pictures = re.findall(r"\]\((pictures/[^)]+)\)", text)
    assert pictures and all((page.parent / picture).exists() for picture in pictures)
