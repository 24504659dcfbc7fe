"""`polyrhythm data`, and how a data set's folder reaches the workers of `polyrhythm train`."""

import json
from pathlib import Path

import pytest

from tests.cluster.processes import call

pytestmark = pytest.mark.usefixtures("no_data")


def test_data_list_shows_where_each_set_is(tmp_path: Path) -> None:
    (tmp_path / "sets" / "higgs").mkdir(parents=True)
    (tmp_path / "sets" / "higgs" / "higgs_10984.csv.gz").write_bytes(b"")
    done = call("data", "list", "--data-dir", tmp_path / "sets", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"a part of the data set: 10,984 rows: {tmp_path}/sets/higgs" in done.stdout
    lines = done.stdout.splitlines()
    for name, size in (
        ("mnist", "12 MB"),
        ("cifar10", "170 MB"),
        ("movielens-latest-small", "1 MB"),
    ):
        at = next(n for n, line in enumerate(lines) if line.startswith(f"{name} "))
        assert size in lines[at]
        assert lines[at + 1].strip() == "not here"


def test_data_check_names_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "sets" / "higgs").mkdir(parents=True)
    wrong = tmp_path / "sets" / "higgs" / "higgs_10984.csv.gz"
    wrong.write_bytes(b"forged")
    done = call("data", "check", "--data-dir", "sets", cwd=tmp_path)
    assert done.returncode == 1
    assert "WRONG  sets/higgs/higgs_10984.csv.gz" in done.stdout
    assert "absent mnist" in done.stdout
    assert done.stderr.startswith("polyrhythm: missing or damaged files: sets/higgs/")
    assert done.stderr.count("\n") == 1


def test_data_check_of_a_missing_set_fails_only_if_the_set_is_named(tmp_path: Path) -> None:
    assert call("data", "check", cwd=tmp_path).returncode == 0
    done = call("data", "check", "mnist", cwd=tmp_path)
    assert done.returncode == 1
    assert "mnist (nowhere)" in done.stderr


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_an_unknown_set_is_refused(tmp_path: Path, command: str) -> None:
    done = call("data", command, "minst", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("polyrhythm: there is no data set 'minst': choose one of mnist,")


def test_train_refuses_a_job_without_its_data_before_it_starts_anything(tmp_path: Path) -> None:
    """The folder of the cache cannot be written, so nothing is downloaded even if there is a
    network."""
    (tmp_path / "cache").write_bytes(b"a file where the cache's folder would be")
    done = call("train", "mnist-lr", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    for word in (
        *("--data-dir", "$POLYRHYTHM_DATA", f"{tmp_path}/cache/polyrhythm/mnist"),
        *("/usr/share/datasets/mnist", "'polyrhythm data fetch mnist'"),
    ):
        assert word in done.stderr
    assert not (tmp_path / "runs").exists()


JOB = """
import torch

DEFAULTS = {"epochs": 1}


def main(worker):
    folder = worker.data("higgs")
    model = torch.nn.Linear(1, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step(points=1)
    worker.report(accuracy=float((folder / "higgs_10984.csv.gz").read_text()))
"""


def test_data_dir_reaches_the_workers(tmp_path: Path) -> None:
    """The path given with `--data-dir` is relative, and each worker reads the data from there."""
    (tmp_path / "sets" / "higgs").mkdir(parents=True)
    (tmp_path / "sets" / "higgs" / "higgs_10984.csv.gz").write_text("0.125")
    (tmp_path / "job.py").write_text(JOB)
    flags = ["--workers", 2, "--servers", 1, "--rounds", 2, "--json", "--data-dir", "sets"]
    done = call("train", "job.py", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] == 0.125


def test_data_in_defaults_must_be_a_list_of_names(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.replace('{"epochs": 1}', '{"data": "higgs"}'))
    done = call("train", "job.py", cwd=tmp_path)
    assert done.stderr.startswith('polyrhythm: job.py: DEFAULTS["data"] must be a list of names')


def test_mnist_trains_with_one_command(real_data: Path, tmp_path: Path) -> None:
    flags = ["--workers", 2, "--servers", 1, "--json", "--epochs", 1]
    done = call("train", "mnist-lr", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["accuracy"] > 0.91
    assert result["points"] == 60_000
