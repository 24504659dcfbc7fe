"""What the stragglers benchmark makes of its runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stragglers.__main__ import _medians, table
from benchmarks.stragglers.picture import draw
from benchmarks.stragglers.task import Task, answer

REACHED = {"seconds_to_target": 4.0, "contributions_per_s": 100.0, "batches_per_s": 200.0}
NEVER = {"seconds_to_target": None, "contributions_per_s": 80.0, "batches_per_s": 80.0}
FAILED = {"failed": "it was not done"}


@pytest.mark.parametrize(
    ("runs", "medians"),
    [
        ([REACHED, REACHED, NEVER], (4.0, 100.0, 200.0)),
        ([REACHED, NEVER, FAILED], (None, 90.0, 140.0)),
        ([FAILED], (None, None, None)),
    ],
)
def test_who_does_not_arrive_took_for_ever(
    runs: list[dict[str, Any]], medians: tuple[float | None, ...]
) -> None:
    assert tuple(_medians(runs).values()) == medians


def test_table_and_picture_name_everybody() -> None:
    result = {
        "job": "digits",
        "target": 0.92,
        "reps": 1,
        "machine": "a machine",
        "medians": {"polyrhythm, asp": _medians([REACHED]), "other": _medians([FAILED])},
    }
    assert "| **polyrhythm, asp** | 4.0 | 100 | 200 | 62% |" in table(result)
    assert "| other | over 90 | - | - | - |" in table(result)
    svg = draw(result, 90.0, 325)
    assert "polyrhythm, asp" in svg and "over 90" in svg


def test_every_worker_has_its_own_points(tmp_path: Path) -> None:
    task = Task("digits", 0, 0.92, tmp_path / "verdict")
    images = task.images()
    seen = set()
    for rank in range(4):
        batches = task.batches(images, rank)
        share = [tuple(x.tolist()) for _ in range(3) for x in next(batches)[0]]
        assert not seen & set(share)
        seen |= set(share)
    assert json.loads(answer(task, 0, 7))["seconds_to_target"] is None
