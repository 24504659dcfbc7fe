"""The benchmarks with CIFAR-10: which commands they run, how they compare the results, and how they
keep their time limit."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cifar import data, runs
from benchmarks.mixed import __main__ as mixed
from benchmarks.psp_table import __main__ as psp_table
from tests.commands.start import run as run_command


def make_exact(folder: Path, points: int = 96) -> Path:
    """Write a small data set in the format of the exact copy of CIFAR-10. The class of an image
    follows from its brightness."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", points), ("test", points // 2)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        noise = rng.integers(0, 20, (count, 3, 32, 32)).astype(np.uint8)
        arrays[f"{part}_x"] = noise + (labels * 23)[:, None, None, None]
        arrays[f"{part}_y"] = labels
    folder.mkdir(exist_ok=True)
    np.savez(folder / data.EXACT, **arrays)
    return folder


def test_the_data_is_written_as_arrays_and_named(tmp_path: Path) -> None:
    prepared = data.prepare(make_exact(tmp_path / "set"), tmp_path / "out", 20)
    assert prepared.name == (
        "CIFAR-10, exact part of 8,000 + 1,000 images, the first 20 + 20 images"
    )
    images = data.load(prepared.folder)
    assert images.train_x.shape == (20, 3, 32, 32) and str(images.train_y.dtype) == "torch.int64"


def test_the_jpeg_copy_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test a file of the JPEG copy has one byte per image, and decoding repeats this byte
    for all pixels."""
    monkeypatch.setattr(data, "_decoder", lambda: lambda jpeg: np.full((3, 32, 32), jpeg[0]))
    for name, count in zip(data.JPEG, (4, 2), strict=True):
        numbers = np.arange(count, dtype=np.uint8)
        offset = np.arange(count + 1, dtype=np.int64)
        np.savez(tmp_path / name, jpeg=numbers, offset=offset, label=numbers)
    prepared = data.prepare(tmp_path, tmp_path / "out")
    assert prepared.name == "CIFAR-10, JPEG copy"
    images = data.load(prepared.folder)
    assert images.train_x[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert images.test_y.tolist() == [0, 1]


def test_a_folder_without_the_data_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="give --data"):
        data.prepare(tmp_path, tmp_path / "out")


def test_no_run_begins_that_could_not_end_in_time() -> None:
    now = [0.0]
    budget = runs.Budget(2.0, lambda: now[0])
    assert budget.seconds(30.0) == 30.0
    now[0] = 50.0
    assert budget.seconds(30.0) == 120 - 50 - runs.START_S
    now[0] = 80.0
    assert budget.seconds(30.0) is None


def test_a_run_without_a_value_counts_as_infinitely_long() -> None:
    assert runs.middle([3.0, None, 1.0]) == 3.0
    assert runs.middle([3.0, None, None]) is None
    assert runs.middle([]) is None


def test_the_target_of_fsp_is_the_lowest_objective_of_bsp() -> None:
    bsp = {"curve": [(1.0, 2.0), (8.0, 0.5), (9.0, 0.6)], "points_per_s": 10.0}
    pair = mixed.repetition(bsp, {"seconds_to_target": 4.0, "points_per_s": 20.0, "curve": []})
    assert (pair["target"], pair["bsp_s"], pair["fsp_s"]) == (0.5, 8.0, 4.0)
    assert mixed.compared([pair])["sooner"] == 2.0
    assert mixed.failing({"medians": mixed.compared([pair])}) is None
    slower = mixed.repetition(bsp, {"seconds_to_target": 7.0})
    assert (
        mixed.failing({"medians": mixed.compared([slower])}) == "fsp is 1.14 times sooner, not 1.4"
    )
    never = mixed.repetition(bsp, {"failed": "it stopped"})
    assert mixed.failing({"medians": mixed.compared([never])}) is not None


def table_of(**seconds: float | None) -> dict[str, Any]:
    found = {
        policy: [{"seconds_to_target": took, "points_per_s": 5.0, "usage": 0.5}]
        for policy, took in seconds.items()
    }
    return {"runs": {"3": found}, "policies": ["psp", "bsp", "asp"]}


def test_psp_must_be_first_and_a_fifth_sooner_than_bsp() -> None:
    assert psp_table.failings(table_of(psp=8.0, bsp=10.0, asp=9.0), [3]) == []
    assert psp_table.failings(table_of(psp=9.0, bsp=10.0, asp=9.5), [3]) == [
        "3 workers: psp takes 90% of bsp's time"
    ]
    assert psp_table.failings(table_of(psp=8.0, bsp=10.0, asp=7.0), [3]) == [
        "3 workers: asp is sooner than psp"
    ]
    assert psp_table.failings(table_of(psp=None, bsp=10.0, asp=7.0), [3]) == [
        "3 workers: psp did not reach the target"
    ]
    assert psp_table.failings(table_of(psp=1.0), [3]) == ["3 workers: no run of bsp, asp"]


def test_the_speeds_of_three_and_six_workers_have_the_ratio_of_the_paper() -> None:
    args = argparse.Namespace(min_step=None, servers=2, devices="cuda:0", target=0.75)
    assert psp_table.factors_of(6) == [1, 1, 2, 2, 3, 3]
    flags = " ".join(psp_table.case_of("ssp:8", 3, args).flags)
    assert "--workers 3" in flags and "--min-step 20ms --slow 1=2x --slow 2=3x" in flags
    assert "--devices cuda:0" in flags and "--target accuracy=0.75" in flags
    with pytest.raises(argparse.ArgumentTypeError):
        psp_table.clients_of("4")


def warm(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command of a benchmark in a forked process that has imported torch already."""
    assert command[:3] == [sys.executable, "-m", "polyrhythm"]
    return run_command(*command[3:], cwd=Path.cwd(), timeout_s=timeout_s)


@pytest.mark.cluster
def test_a_run_has_the_curve_of_its_metric_and_the_device_and_speed_of_its_workers(
    tmp_path: Path,
) -> None:
    prepared = data.prepare(make_exact(tmp_path / "set"), tmp_path / "out")
    flags = ("--workers", "2", "--servers", "1", "--devices", "cpu", "--target", "train_loss=2.3")
    options = ("--set", "model=small", "--set", "batch=16", "--set", "rate=0.05")
    run = runs.run(
        runs.Case("bsp", flags),
        prepared,
        measure="train_loss",
        seed=0,
        seconds=60.0,
        options=options,
        runner=warm,
    )
    assert "failed" not in run, run
    assert run["seconds_to_target"] is not None and run["curve"][-1][1] <= 2.3
    assert set(run["workers"]) == {"worker-0", "worker-1"}
    assert all(each.startswith("cpu: ") for each in run["workers"].values())
    assert json.loads(runs.told(run))["points_per_s"] > 0
