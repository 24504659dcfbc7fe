"""A job whose points lie in a file: every point is visited once in a pass, and a worker parses the
row groups of its own chunks only."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.data import RowGroups, open_points
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import DataError
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.nearest import labels_of
from polyrhythm.learn.pointwise.runner import first_parameter, run_pointwise
from polyrhythm.wire.messages import JobSpec

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    table = pyarrow.table({"number": np.arange(1_000.0), "label": np.arange(1_000) % 2})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=20)
    return tmp_path / "t.parquet"


def job(**fields: object) -> JobSpec:
    return JobSpec(job="table", timer="off", heartbeat_s=20.0, workers=2, servers=1, **fields)


def step(model: nn.Linear, optimizer: torch.optim.Optimizer, features: torch.Tensor) -> None:
    model((features / 1_000.0)[:, :1]).sum().backward()
    optimizer.step()


def test_workers_visit_all_rows_once_and_parse_their_own_row_groups(path: Path) -> None:
    seen: dict[str, list[float]] = {"worker-0": [], "worker-1": []}
    parsed: dict[str, int] = {}

    def main(worker: Worker) -> None:
        data = RowGroups(path, label="label", buffer=40)
        model = nn.Linear(1, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for features, labels in worker.batches(data, batch_size=25):
            seen[worker.name] += features[:, 0].tolist()
            assert torch.equal(labels, features[:, 0].long() % 2)
            step(model, optimizer, features)
        parsed[worker.name] = data.source.parsed  # type: ignore[attr-defined]

    run_inline(job(epochs=2), main, timeout_s=60)
    visited = sorted(seen["worker-0"] + seen["worker-1"])
    assert visited == sorted([*range(1_000), *range(1_000)])
    assert sum(parsed.values()) == 50  # each row group is parsed by one worker, once
    assert all(20 <= count <= 30 for count in parsed.values())
    assert seen["worker-0"] != sorted(seen["worker-0"])


def test_workers_of_a_point_wise_job_parse_their_own_row_groups_also_after_a_change_of_holder(
    path: Path,
) -> None:
    """worker-1 leaves after its first pass. worker-0 then reads the row groups of worker-1, too."""
    parsed: dict[str, list[int]] = {"worker-0": [], "worker-1": []}

    def main(worker: Worker) -> None:
        table = open_points(path, label="label")
        first = first_parameter(KMeansAlgorithm(4), table, 0)
        table._kept.clear()  # type: ignore[attr-defined]
        table.parsed = 0  # type: ignore[attr-defined]

        def after_pass(number: int, objective: float | None) -> None:
            parsed[worker.name].append(table.parsed)  # type: ignore[attr-defined]
            if worker.name == "worker-1":
                raise DataError("leaves")

        run_pointwise(
            worker, KMeansAlgorithm(4, tol=0.0), table, parameter=first, after_pass=after_pass
        )

    statistics = job(kind="statistics", sync="bspb", epochs=12, min_batch=100)
    with pytest.raises(DataError, match="leaves"):
        run_inline(statistics, main, timeout_s=60)
    assert parsed["worker-0"][0] + parsed["worker-1"][0] == 50
    assert parsed["worker-0"][-1] == 50
    assert 20 <= parsed["worker-0"][0] <= 30


def test_another_worker_reads_what_one_worker_cannot_read(path: Path) -> None:
    seen: set[float] = set()

    def main(worker: Worker) -> None:
        model = nn.Linear(1, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        if worker.name == "worker-1":
            data = RowGroups(path.with_name("elsewhere.parquet"))
        data = RowGroups(path)
        for (features,) in worker.batches(data, batch_size=25):
            seen.update(features[:, 0].tolist())
            step(model, optimizer, features)

    with pytest.raises(DataError, match=r"there is no file .*elsewhere.parquet"):
        run_inline(job(epochs=1), main, timeout_s=60)
    assert seen == set(range(1_000))


def test_a_file_that_no_worker_can_read_is_named(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])

    def main(worker: Worker) -> None:
        RowGroups(path)

    with pytest.raises(DataError, match=r"cannot read .*t.parquet"):
        run_inline(job(epochs=1), main, timeout_s=60)


def test_a_point_wise_job_goes_on_without_a_worker_that_cannot_read(path: Path) -> None:
    found = {}

    def main(worker: Worker) -> None:
        name = "elsewhere.parquet" if worker.name == "worker-1" else path.name
        source = open_points(path.with_name(name), label="label")
        found[worker.name] = run_pointwise(worker, KMeansAlgorithm(4), source)

    statistics = JobSpec(
        job="table",
        timer="off",
        heartbeat_s=20.0,
        workers=2,
        servers=1,
        kind="statistics",
        sync="bspb",
        epochs=50,
        start_timeout_s=1.0,
    )
    with pytest.raises(DataError, match=r"there is no file .*elsewhere.parquet"):
        run_inline(statistics, main, timeout_s=60)
    assert found.keys() == {"worker-0"}
    assert found["worker-0"].terminated
    x = np.arange(1_000.0)[:, None]
    _, squared = labels_of(x, found["worker-0"].parameter["centers"])
    assert squared.sum() == pytest.approx(4 * (250**3) / 12, rel=0.02)
