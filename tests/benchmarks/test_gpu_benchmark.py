"""The benchmark of exchanges from a device runs without a GPU, with a device in host memory."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as benchmark
from polyrhythm.tensors.copies import SWITCH


@pytest.mark.cluster
def test_the_benchmark_measures_copies_and_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    file = tmp_path / "gpu.json"
    words = "--size 1MB --workers 2 --device cpu --rounds 4 --repeats 1 --json"
    benchmark.main([*words.split(), str(file)])
    result = json.loads(file.read_text())
    assert result["nbytes"] == 1_000_000
    assert set(result["copies_gb_per_s"]) == {"down", "up", "push", "pull"}
    (job,) = result["exchanges"]
    assert job["workers"] == 2 and job["device_ms"] > 0 and job["host_ms"] > 0
    told = capsys.readouterr().out
    assert "| device to host |" in told and "| 2 worker(s) |" in told


def test_missed_targets_are_named() -> None:
    copies = {"down": 50.0, "up": 50.0, "push": 41.0, "pull": 39.0}
    jobs = [{"workers": 1, "ratio": 1.2}, {"workers": 4, "ratio": 1.3}]
    assert benchmark.faults(copies, jobs) == [
        "pull reaches 0.78 of the pinned bandwidth",
        "the exchange of 4 worker(s) takes 1.30 times as long",
    ]
