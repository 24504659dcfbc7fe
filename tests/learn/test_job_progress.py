"""What the user's code knows of the whole job: its progress, its passes, and the worker's rank."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import UsageError
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire.messages import JobSpec

POLICIES = ("bsp", "fsp", "psp", "asp", "ssp:2", "ssp-restart:2")
POINTS = 96


class Watched:
    """A training loop that notes what the worker knows after each step."""

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[float, float]]] = {}
        self.ranks: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, worker: Worker) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
        seen = self.seen.setdefault(worker.name, [])
        with self._lock:
            self.ranks[worker.name] = worker.rank
        for inputs in worker.batches(torch.ones(POINTS, 1), batch_size=4):
            model(inputs).sum().backward()
            optimizer.step()
            seen.append((worker.progress, worker.passes))
        seen.append((worker.progress, worker.passes))


def run(main: Callable[[Worker], None], **job: Any) -> None:
    kind = "local" if job.get("sync") in ("psp", "fsp") else "gradient"
    spec = JobSpec(**{"job": "j", "workers": 3, "kind": kind, **job})
    done = run_inline(spec, main, options=NodeOptions(check=True), timeout_s=60)
    assert done.outcome is not None and not done.outcome.failed


@pytest.mark.parametrize("sync", POLICIES)
def test_progress_and_passes_rise_to_the_goal(sync: str) -> None:
    watched = Watched()
    run(watched, sync=sync, epochs=3)
    for seen in watched.seen.values():
        assert seen == sorted(seen)
        assert all(0 <= progress <= 1 and passes <= 3 for progress, passes in seen)
        assert seen[-1] == (1.0, 3.0)
    assert sorted(watched.ranks.values()) == [0, 1, 2]


@pytest.mark.parametrize("sync", POLICIES)
def test_a_job_without_a_data_set_ends_after_its_points(sync: str) -> None:
    """Under every policy the points are those that the user's code gives."""
    made: list[float] = []

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
        while not worker.stopped:
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step(points=5)
            made.append(worker.progress)

    run(main, sync=sync, points=600, interval="20ms")
    assert len(made) >= 600 / 5
    assert max(made) == 1.0


def test_the_rank_is_known_after_attach() -> None:
    firsts: list[bool] = []

    def main(worker: Worker) -> None:
        with pytest.raises(UsageError, match=r"worker-0 has no rank yet.*after worker.attach"):
            _ = worker.rank
        model = torch.nn.Linear(1, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
        firsts.append(worker.is_first)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()

    run(main, workers=1, rounds=1)
    assert firsts == [True]
