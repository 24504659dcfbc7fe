"""The benchmark of quantised pushes: what it runs, what it compares, and what it reports."""

import json
import subprocess
from typing import Any

import pytest

from benchmarks.push_bytes.__main__ import PUSHES, failings, run, table

FAST = {"1gbit": {"exact": 0.4, "int8": 0.25}}


def results(accuracy: float, nbytes: int, points: int = 100) -> dict[str, list[dict[str, Any]]]:
    common = {"contributions": 10, "bytes_pulled": 4_000}
    return {
        "exact": [{"accuracy": 0.90, "bytes_pushed": 4_000, "points": 100, **common}],
        "int8": [{"accuracy": accuracy, "bytes_pushed": nbytes, "points": points, **common}],
    }


@pytest.mark.parametrize(
    ("given", "speed", "words"),
    [
        (results(0.897, 1_016), FAST, []),
        (results(0.894, 1_016), FAST, ["more than 0.5% below"]),
        (results(0.897, 1_100), FAST, ["0.2750 of the bytes"]),
        (results(0.897, 1_016, points=90), FAST, ["different numbers of training points"]),
        (results(0.897, 1_016), {"1gbit": {"exact": 0.4, "int8": 0.39}}, ["at 1gbit", "0.97"]),
    ],
)
def test_what_is_not_reached_is_named(
    given: dict[str, Any], speed: dict[str, Any], words: list[str]
) -> None:
    found = failings(given, speed)
    assert len(found) == bool(words)
    assert all(word in found[0] for word in words)


def test_the_table_has_the_share_of_the_bytes_and_the_times() -> None:
    text = table(results(0.897, 1_016), FAST)
    assert "| int8 | 89.70% | 89.70% | 0.0 | 0.2540 |" in text
    assert "| 1gbit | 0.400 s | 0.250 s | 1.60 |" in text


def test_runs_differ_only_in_the_push() -> None:
    seen: list[list[str]] = []

    def runner(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        result = {"accuracy": 0.5, "points": 7, "contributions": 2}
        result |= {"bytes_pushed": 3, "bytes_pulled": 4}
        return subprocess.CompletedProcess(command, 0, json.dumps(result), "")

    for push in PUSHES:
        assert run("digits", 2, push, 3, seed=1, runner=runner)["accuracy"] == 0.5
    with_folder = [[word for word in command if "/tmp" not in word] for command in seen]
    assert [word for word in with_folder[0] if word not in with_folder[1]] == ["exact"]
    assert [word for word in with_folder[1] if word not in with_folder[0]] == ["int8"]
