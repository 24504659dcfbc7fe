"""Evaluation during training: it is rare, one worker does it, and its time does not count as
computing."""

import pytest
import torch
from torch import nn

from polyrhythm.engines.inline import run_inline
from polyrhythm.learn.reporting import Evaluations
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.worker.timesheet import Timesheet
from polyrhythm.wire.messages import JobSpec, Target

MS = 10**6
GOOD = Target("accuracy", 0.9, True)
DATA = (torch.zeros(64, 2), torch.zeros(64, 1))


def loop(worker: Worker, *, accuracy: float) -> None:
    model = nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for points, targets in worker.batches(DATA, batch_size=4):
        nn.functional.mse_loss(model(points), targets).backward()
        optimizer.step()
        worker.evaluate(accuracy=lambda: accuracy)


@pytest.mark.parametrize(
    ("decides", "took_ms", "rest_ms"),
    [
        (True, 0, 250),
        (True, 27, 250),
        (True, 28, 252),
        (True, 1000, 9_000),
        (False, 20, 1_000),
        (False, 21, 1_029),
    ],
)
def test_an_evaluation_takes_at_most_a_tenth_or_a_fiftieth_of_the_time(
    decides: bool, took_ms: int, rest_ms: int
) -> None:
    times = Evaluations(0, decides=decides)
    assert not times.due(249 * MS)
    assert times.due(250 * MS)
    ended = 250 + took_ms
    times.done(250 * MS, ended * MS)
    assert not times.due((ended + rest_ms) * MS - 1)
    assert times.due((ended + rest_ms) * MS)


def test_a_job_ends_when_the_accuracy_that_one_worker_reports_reaches_the_target() -> None:
    job = JobSpec(job="x", workers=2, servers=1, targets=(GOOD,))
    run = run_inline(job, lambda worker: loop(worker, accuracy=0.95), timeout_s=60)
    reports = {line["name"] for line in run.journal if line["what"] == "reported"}
    assert reports == {"worker-0"}
    (ended,) = [line for line in run.journal if line["what"] == "ended"]
    fields = {"goal": "target", "metric": "accuracy", "value": 0.95, "wanted": 0.9}
    assert ended["fields"] == {**fields, "at_least": True}


def test_the_time_of_an_evaluation_is_not_counted_as_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aside: list[int] = []
    monkeypatch.setattr(Timesheet, "exclude_time", lambda sheet, took_ns: aside.append(took_ns))
    job = JobSpec(job="x", workers=1, servers=1, targets=(GOOD,))
    run_inline(job, lambda worker: loop(worker, accuracy=0.95), timeout_s=60)
    assert aside and min(aside) > 0
