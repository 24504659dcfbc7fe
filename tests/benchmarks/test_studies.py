"""The tables and pictures that the studies of unequal machines make from their runs."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import readme
from benchmarks.stragglers import studies
from benchmarks.stragglers.studies import STUDIES, Setting, middle, picture, table, write_docs

GOOD = {"seconds": 4.0, "usage": 0.9, "possible": 0.85, "spread_ms": 2.0, "curve": [(1.0, 2.0)]}
LATE = {**GOOD, "seconds": None}
FAILED = {"failed": "it was not done"}


def result(*settings: str) -> dict[str, Any]:
    runs = {name: {"bsp": [GOOD], "psp": [FAILED]} for name in settings}
    return {"study": "skew", "machine": "a machine", "job": "digits", "reps": 1, "runs": runs}


def test_a_setting_names_the_slow_workers_and_the_highest_rate() -> None:
    setting = Setting("1:2:4", (1, 2, 4))
    assert setting.flags == ["--slow", "1=2x", "--slow", "2=4x"]
    assert setting.most_per_s == pytest.approx(175)


def test_the_studies_are_those_of_the_papers() -> None:
    assert [s.factors for s in STUDIES["speeds-3"].settings] == [(1, 2, 3)]
    assert [s.factors for s in STUDIES["speeds-6"].settings] == [(1, 1, 2, 2, 3, 3)]
    assert [max(s.factors) for s in STUDIES["skew"].settings] == [1, 2, 4, 8]
    assert [s.factors.count(4) for s in STUDIES["slow"].settings] == [1, 2, 3]


@pytest.mark.parametrize(
    ("runs", "seconds"),
    [([GOOD], 4.0), ([GOOD, GOOD, LATE], 4.0), ([GOOD, LATE, FAILED], None), ([FAILED], None)],
)
def test_a_run_that_misses_the_target_counts_as_infinitely_long(
    runs: list[dict[str, Any]], seconds: float | None
) -> None:
    assert middle(runs, "seconds") == seconds


def test_the_table_has_its_command_and_every_repetition() -> None:
    text = table(result("2x"))
    assert "benchmarks.stragglers.studies skew --reps 1 --docs" in text
    assert "| 2x | bsp | 4.0 | 4.0 | 90% | 85% | 2.0 ms |" in text
    assert "| 2x | psp | over 30 | over 30 | - | - | - |" in text


def test_a_study_with_one_setting_has_curves_and_with_several_has_bars() -> None:
    assert "polyline" in picture(result("2x")) and "rect" not in picture(result("2x"))
    bars = picture(result("2x", "4x"))
    assert "rect" in bars and "over 30 s" in bars


def test_docs_are_written_between_the_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "stragglers.md"
    page.write_text("above\n<!-- skew:begin -->\nold\n<!-- skew:end -->\nbelow\n")
    (tmp_path / "pictures").mkdir()
    monkeypatch.setattr(studies, "DOCS", page)
    write_docs(result("2x"))
    text = page.read_text()
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert (tmp_path / "pictures" / "stragglers-skew.svg").exists()
    with pytest.raises(SystemExit, match=r"stragglers\.md has no place"):
        readme.write("other", "text", page)
