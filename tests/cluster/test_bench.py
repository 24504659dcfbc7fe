"""`polyrhythm bench`: it verifies the sum, and its numbers are consistent."""

import json
from pathlib import Path

import pytest

from polyrhythm.cli.bench import final_reports
from polyrhythm.errors import JobFailed
from tests.cluster.processes import call

KEYS = {
    *("nbytes", "workers", "servers", "link", "in_place", "digest", "rounds"),
    *("rounds_per_s", "gb_per_s", "limit_rounds_per_s", "share_of_limit"),
}


@pytest.mark.parametrize(
    "flags",
    [["--link", "local"], ["--link", "local", "--in-place"], ["--link", "tcp"]],
    ids=["local", "in place", "tcp"],
)
def test_bench_exchange_reports_consistent_numbers(tmp_path: Path, flags: list[str]) -> None:
    args = ["--size", "0.1MB", "--rounds", 50, "--workers", 2, "--json", *flags]
    done = call("bench", "exchange", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.keys() >= KEYS
    assert (result["nbytes"], result["rounds"], result["workers"]) == (100_000, 50, 2)
    moved = 2 * result["rounds_per_s"] * result["nbytes"] * result["workers"] / 1e9
    assert result["gb_per_s"] == pytest.approx(moved, abs=1e-3)
    share = result["rounds_per_s"] / result["limit_rounds_per_s"]
    assert result["share_of_limit"] == pytest.approx(share, abs=1e-2)
    assert not list(tmp_path.iterdir()), "a measurement leaves no run behind"


@pytest.mark.parametrize("size", ["much", "-1MB", "0", "2B"])
def test_a_size_that_cannot_be_used_is_refused(tmp_path: Path, size: str) -> None:
    done = call("bench", "exchange", f"--size={size}", cwd=tmp_path)
    assert done.returncode == 2
    small = f"{size} is too small"
    why = small if size in ("0", "2B") else f"'{size}' is not a size: give a number"
    assert done.stderr.startswith(f"polyrhythm: --size {why}")
    assert done.stderr.count("\n") == 1


def test_a_measurement_in_which_a_worker_missed_rounds_says_so() -> None:
    reports = [{"what": "reported", "metrics": {"right": 0.0}}] * 2
    with pytest.raises(JobFailed, match="worker-1 did not answer in time and missed rounds"):
        final_reports([{"what": "evicted", "name": "worker-1"}, *reports], workers=2)
    with pytest.raises(JobFailed, match="not the sum of all contributions"):
        final_reports(reports, workers=2)


def test_bench_slices_measures_what_a_slice_costs(tmp_path: Path) -> None:
    done = call("bench", "slices", "--size", "1MiB", "--rounds", 3, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [x for x, _ in result["seconds"]] == [2**power for power in range(14, 21)]
    assert all(seconds > 0 for _, seconds in result["seconds"])
    assert result["alpha"] >= 0 and 2**14 <= result["fastest_nbytes"] <= 2**20
    small = call("bench", "slices", "--size", "500KB", cwd=tmp_path)
    assert small.returncode == 2 and "--size 500KB is too small" in small.stderr
