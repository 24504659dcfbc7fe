"""Several jobs on one machine at the same time do not disturb each other."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.commands.start import Process, start


def begin(cwd: Path, *args: object) -> Process:
    return start("train", *args, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def flags() -> list[object]:
    return ["--workers", 1, "--servers", 2, "--rounds", 40, "--json"]


def test_three_jobs_run_at_once_in_one_folder_of_runs(
    tmp_path: Path, long_job: Path, flags: list[object]
) -> None:
    names = ("first", "second", "third")
    jobs = [begin(tmp_path, long_job, *flags, "--name", name) for name in names]
    for name, job in zip(names, jobs, strict=True):
        out, err = job.communicate(timeout=90)
        assert job.returncode == 0, err
        assert not err
        result = json.loads(out)
        assert result["rounds"] == 40 and result["contributions"] == 40
        assert result["folds"] == {"s0": 40, "s1": 40}
        kept = json.loads((tmp_path / "runs" / name / "result.json").read_text())
        assert kept["per_worker"] == result["per_worker"]


def test_two_jobs_at_once_cannot_have_the_same_name(
    tmp_path: Path, long_job: Path, flags: list[object]
) -> None:
    jobs = [begin(tmp_path, long_job, *flags, "--name", "same") for _ in range(2)]
    said = [job.communicate(timeout=90) for job in jobs]
    statuses = [job.returncode for job in jobs]
    assert sorted(statuses) == [0, 2], said
    winner, loser = statuses.index(0), statuses.index(2)
    line = "polyrhythm: there is a run 'same' already: choose another --name, or delete runs/same\n"
    assert said[loser] == ("", line)
    assert json.loads(said[winner][0])["rounds"] == 40
