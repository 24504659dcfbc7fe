"""The tables and the picture that the Ray benchmark makes of its figures."""

from typing import Any

import pytest

pytest.importorskip("ray")

from benchmarks.ray.__main__ import rayps_table, table
from benchmarks.ray.picture import draw

RUNS = {count: {"seconds": 8.0 / count, "accuracy": 0.9} for count in (1, 2, 4, 8)}
RAYPS: dict[str, Any] = {
    **{"steps": 400, "batch": 128, "pace_ms": 20},
    "workers, polyrhythm, sync": RUNS,
    "workers, Ray, async": RUNS,
    "servers, polyrhythm, sync": RUNS,
    "8 workers over 2": [0.25, 0.3],
}


def test_the_table_shows_what_was_measured() -> None:
    found = {
        "repeat": 3,
        "machine": "a machine",
        "exchange": {"102MB": {"local": 10.0, "ray": 9.8, "ratio": 0.98}},
        "starting": {
            "workers": 4,
            "job_s": 5.0,
            "actors_s": 3.5,
            "optimizers_s": 4.5,
            "more_s": 1.5,
        },
    }
    lines = table(found).splitlines()
    assert "| exchange, 102MB: rounds per second | 9.8 | 10.0, the local engine | 98% |" in lines
    beside = "3.5 s, new actors that import torch (and make an optimizer: 4.5 s)"
    assert lines[-1].endswith(f"| 5.0 s | {beside} | +1.5 s |")


def test_table_and_picture_of_the_experiments_name_every_series() -> None:
    told = rayps_table(RAYPS)
    assert (
        "| workers, Ray, async | 8.0 s, 90.0% | 4.0 s, 90.0% | 2.0 s, 90.0% | 1.0 s, 90.0% |"
        in told
    )
    assert told.endswith("8 workers take 0.25 (sync) and 0.30 (async) times as long as 2.")
    picture = draw(RAYPS)
    assert picture.count("<polyline") == 5
    assert ">polyrhythm, sync</text>" in picture and ">Ray, async</text>" in picture
