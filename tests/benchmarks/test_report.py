"""The description of the machine in the report of a benchmark."""

import re
from pathlib import Path

import pytest

from benchmarks import report


def test_the_report_shows_the_stolen_time_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 20 300 5 0 1 40 0 0\ncpu0 50 0 10 150 2 0 1 20 0 0\n")
    assert report._core_times(stat) == (40, 466)
    monkeypatch.setattr(report, "_BEGAN", (40, 466))
    monkeypatch.setattr(report, "_core_times", lambda: (65, 566))
    assert re.search(r"cores, 25% of their time taken by others$", report.machine())


def test_the_report_omits_the_stolen_time_if_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert report._core_times(tmp_path / "none") == (0, 0)
    monkeypatch.setattr(report, "_BEGAN", (0, 0))
    monkeypatch.setattr(report, "_core_times", lambda: (0, 0))
    assert report.machine().endswith("cores")
