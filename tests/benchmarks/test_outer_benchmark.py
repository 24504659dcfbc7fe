"""The benchmark of the outer optimizer: what it runs, what it compares, and what it reports."""

import json
import subprocess
from typing import Any

import pytest

from benchmarks.outer.__main__ import OUTER, failings, rows, run, table


def results(accuracy: float, nbytes: int, points: int = 100) -> dict[str, list[dict[str, Any]]]:
    return {
        "bsp": [{"accuracy": 0.90, "bytes": 50_000, "points": 100, "rounds": 50}],
        "average": [{"accuracy": 0.80, "bytes": 1_000, "points": 100, "rounds": 1}],
        "outer": [{"accuracy": accuracy, "bytes": nbytes, "points": points, "rounds": 1}],
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (results(0.895, 1_000), []),
        (results(0.885, 1_000), ["more than 1% below"]),
        (results(0.895, 1_300), ["0.0260 of bsp's bytes, more than 1/50"]),
        (results(0.895, 1_000, points=90), ["different numbers of training points"]),
    ],
)
def test_what_is_not_reached_is_named(given: dict[str, Any], words: list[str]) -> None:
    found = failings(given, 50)
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


def test_the_table_compares_bytes_with_those_of_bsp() -> None:
    assert "| outer | 89.50% | 1 | 0.0 | 0.0200 |" in table(results(0.895, 1_000))


def test_rows_differ_only_in_how_workers_exchange() -> None:
    seen: list[list[str]] = []

    def runner(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        result = {"accuracy": 0.5, "points": 7, "rounds": 2, "bytes_pushed": 3, "bytes_pulled": 4}
        return subprocess.CompletedProcess(command, 0, json.dumps(result), "")

    for flags in rows(50).values():
        done = run("digits", 2, flags, 3, seed=1, runner=runner)
        assert done == {"accuracy": 0.5, "points": 7, "rounds": 2, "bytes": 7}
    assert all({"--epochs", "--seed"} <= set(command) for command in seen)
    assert ["--outer" in command for command in seen] == [False, False, True]
    assert OUTER in seen[2]
    assert ["50" in command for command in seen] == [False, True, True]
