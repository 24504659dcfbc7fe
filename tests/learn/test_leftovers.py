"""Remaining points at the end of the data, options that may not change during a job, and numbers
that are not finite."""

import math

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import JobFailed, UsageError
from polyrhythm.wire.messages import JobSpec

POINTS = 103
DATA = (torch.arange(POINTS * 4.0).reshape(POINTS, 4) / 500, torch.ones(POINTS, 1))


def job(**fields: object) -> JobSpec:
    return JobSpec(job="leftovers", workers=2, servers=2, timer="off", **fields)  # type: ignore[arg-type]


def loop(worker: Worker, every: int = 1, mask: bool = False) -> int:
    """A training loop that makes a step after every `every` batches; returns their number."""
    model = torch.nn.Linear(4, 1)
    if mask:
        model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    number = 0
    for number, (points, targets) in enumerate(worker.batches(DATA, batch_size=5), 1):
        ((model(points) - targets) ** 2).mean().backward()
        if number % every == 0:
            optimizer.step()
    return number


def points_of(journal: list[dict]) -> int:
    return sum(line["points"] for line in journal if line["what"] == "rounds")


@pytest.mark.parametrize("every", [2, 3, 50])
def test_accumulated_gradients_at_the_end_of_the_data_are_contributed(every: int) -> None:
    batches: list[int] = []
    """The number of batches of each worker."""
    run = run_inline(
        job(epochs=1), lambda worker: batches.append(loop(worker, every)), timeout_s=20
    )
    assert points_of(run.journal) == POINTS
    sent = sum(line["contributions"] for line in run.journal if line["what"] == "rounds")
    assert sent >= sum(math.ceil(count / every) for count in batches)


def test_a_short_run_of_local_steps_at_the_end_is_contributed() -> None:
    run = run_inline(job(epochs=2, kind="local", local_steps=4), loop, timeout_s=20)
    assert points_of(run.journal) == 2 * POINTS


def test_a_worker_that_abstained_counts_its_changes_from_the_version_it_goes_on_with() -> None:
    """worker-1 visits all of its points first. Then it abstains until worker-0 leaves and the
    points of worker-0 are leased to worker-1.

    Every step moves the parameter by -1, so a round in which every worker contributes does too. In
    six of the first eight rounds worker-1 abstains and counts as a worker that changes nothing, so
    these rounds move the parameter by -1/2. If worker-1 counted its next change from the parameters
    that it had before it abstained, the change would include the rounds in between.
    """
    ended: list[float] = []
    alone: list[int] = []

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1.0))
        first = worker.name == "worker-0"
        for (points,) in worker.batches((torch.ones(POINTS, 1),), batch_size=4 if first else 30):
            model(points).mean().backward()
            optimizer.step()
            if worker.version > 8:
                alone.append(worker.version)
            elif first and worker.version == 8:
                return
        ended.append(model.weight.item())

    run_inline(job(epochs=1, kind="local"), main, timeout_s=20)
    assert alone, "worker-1 has visited points of worker-0"
    assert ended == [pytest.approx(-2 - 6 / 2 - len(alone))]


def test_an_infinite_buffer_that_does_not_change_does_no_harm() -> None:
    run_inline(job(epochs=1), lambda worker: loop(worker, mask=True), timeout_s=20)


def test_a_job_with_epochs_but_without_batches_fails_with_a_reason() -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        while not worker.stopped:
            model(DATA[0]).sum().backward()
            optimizer.step()

    with pytest.raises(JobFailed, match="give --rounds"):
        run_inline(job(epochs=1), main, timeout_s=20)


def by_schedule(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["momentum"] = 0.5


def test_a_changed_momentum_is_refused() -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(4, 1)
        inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = worker.attach(model, inner)
        for points, _ in worker.batches(DATA, batch_size=5):
            model(points).sum().backward()
            optimizer.step()
            by_schedule(optimizer)

    with pytest.raises(UsageError, match="only the learning rate may change"):
        run_inline(job(epochs=1), main, timeout_s=20)


def test_an_optimizer_that_has_already_stepped_is_refused() -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(4, 1)
        inner = torch.optim.Adam(model.parameters())
        model(DATA[0]).sum().backward()
        inner.step()
        worker.attach(model, inner)

    with pytest.raises(UsageError, match="attach an optimizer that has made no step"):
        run_inline(job(epochs=1), main, timeout_s=20)


def test_metrics_may_have_the_names_of_journal_fields() -> None:
    def main(worker: Worker) -> None:
        loop(worker)
        worker.report(name=1.0, what=2.0, metrics=3.0, accuracy=math.nan)

    run = run_inline(job(epochs=1), main, timeout_s=20)
    reports = [line["metrics"] for line in run.journal if line["what"] == "reported"]
    assert reports == [{"name": 1.0, "what": 2.0, "metrics": 3.0}] * 2, "NaN is left out"
