"""Mark all tests of this folder as tests of real processes, and provide a job that trains until it
is stopped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.machines import JOB, Machines

HERE = Path(__file__).parent

LONG_JOB = '''
"""A small model for as many rounds as asked. It rests, so that other tests can run."""
import time

import torch


def main(worker):
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
        time.sleep(0.04)
'''


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture
def long_job(tmp_path: Path) -> Path:
    path = tmp_path / "long_job.py"
    path.write_text(LONG_JOB)
    return path


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    (tmp_path / "job.py").write_text(JOB)
    machines = Machines(tmp_path)
    try:
        yield machines
    finally:
        machines.close()
