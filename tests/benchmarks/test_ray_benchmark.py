"""The tables and the picture that the Ray benchmark makes of its figures."""

from contextlib import nullcontext
from json import loads
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from benchmarks.ray import __main__ as program
from benchmarks.ray import studies
from benchmarks.ray.__main__ import measure, rayps_table, table
from benchmarks.ray.picture import draw

RUNS = {str(count): {"seconds": 8.0 / count, "accuracy": 0.9} for count in (1, 2, 4, 8)}
RAYPS: dict[str, Any] = {
    **{"steps": 400, "batch": 128, "pace_ms": 20},
    "workers, polyrhythm, sync": RUNS,
    "workers, polyrhythm, async": {**RUNS, "8": {"seconds": 1.2, "accuracy": 0.9}},
    "workers, Ray, async": RUNS,
    "servers, polyrhythm, sync": RUNS,
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
    assert picture.count("<polyline") == 7
    assert ">polyrhythm, sync</text>" in picture and ">Ray, async</text>" in picture


def test_an_interrupted_measurement_keeps_its_runs_and_goes_on_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int, str]] = []

    def trained(workers: int, servers: int, policy: str) -> dict[str, float]:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append((workers, servers, policy))
        return {"seconds": 1.0, "accuracy": 0.9}

    def documented(workers: int, *, together: bool) -> dict[str, float]:
        return {"seconds": 2.0, "accuracy": 0.8}

    monkeypatch.setattr(program, "cluster", nullcontext)
    monkeypatch.setattr(studies, "_trained", trained)
    monkeypatch.setattr(studies, "_documented", documented)
    file = tmp_path / "found.json"
    with pytest.raises(KeyboardInterrupt):
        measure(["rayps"], 1, {"starting": {"workers": 4}}, file)
    kept = loads(file.read_text())
    assert list(kept["rayps"]["workers, polyrhythm, sync"]) == ["1", "2"]
    ran.insert(0, (0, 0, "the limit is behind us"))
    measure(["starting", "rayps"], 1, kept, file)
    assert ran[3] == (4, 1, "bsp") and len(ran) == 1 + 12
    found = loads(file.read_text())["rayps"]
    assert found["workers, Ray, async"]["8"]["seconds"] == 2.0
    assert rayps_table(found).endswith("1.00 (sync) and 1.00 (async) times as long as 2.")
