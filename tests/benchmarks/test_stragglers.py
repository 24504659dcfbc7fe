"""The tables and pictures that the stragglers benchmark makes from its runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stragglers.__main__ import _medians, rates_table, table
from benchmarks.stragglers.picture import draw
from benchmarks.stragglers.task import Numbers, Task, answer

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
def test_a_run_that_misses_the_target_counts_as_infinitely_long(
    runs: list[dict[str, Any]], medians: tuple[float | None, ...]
) -> None:
    assert tuple(_medians(runs).values()) == medians


def test_table_and_picture_name_every_system() -> None:
    result = {
        "job": "digits",
        "batch": 32,
        "target": 0.92,
        "reps": 1,
        "machine": "a machine",
        "medians": {"polyrhythm, asp": _medians([REACHED]), "other": _medians([FAILED])},
    }
    assert "| **polyrhythm, asp** | 4.0 | 200 | 62% |" in table(result)
    assert "| other | over 90 | - | - |" in table(result)
    svg = draw(result, 90.0, 325)
    assert "polyrhythm, asp" in svg and "over 90" in svg


def test_every_worker_has_its_own_points(tmp_path: Path) -> None:
    task = Task("digits", 0, 0.92, tmp_path / "verdict", Numbers.of("digits"))
    images = task.images()
    seen = set()
    for rank in range(4):
        batches = task.batches(images, rank)
        share = [tuple(x.tolist()) for _ in range(3) for x in next(batches)[0]]
        assert not seen & set(share)
        seen |= set(share)
    assert json.loads(answer(task, 0, 7))["seconds_to_target"] is None


def test_all_systems_get_the_same_rate_and_batch_size() -> None:
    own = Numbers.of("digits")
    assert own.rate is None and own.flags[1] == f"batch={own.batch_size}"
    said = Numbers.of("mnist-lr", 0.25, 7)
    assert said.flags == ("--set", "rate=0.25", "--set", "batch=7")
    assert said.words == ("--rate", "0.25", "--batch", "7")


def test_the_table_of_rates_compares_every_system_with_the_first() -> None:
    medians = {"a": _medians([REACHED]), "b": {**_medians([REACHED]), "seconds_to_target": 10.0}}
    result = {
        "job": "digits",
        "rate": 0.1,
        "batch": 32,
        "target": 0.92,
        "reps": 1,
        "machine": "a machine",
        "medians": {**medians, "c": _medians([NEVER])},
    }
    assert "| 0.1 | 32 | 4.0 | 10.0 (2.5x) | over 90 |" in rates_table([result])
