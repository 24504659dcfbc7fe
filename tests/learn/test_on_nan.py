"""With `--on-nan skip` a contribution that is not finite is left out and counted; with `end` it ends
the job."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.errors import JobFailed, NotFinite
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.state import fold
from polyrhythm.observe.story import tell
from polyrhythm.observe.summary import result, summary_text
from polyrhythm.wire.messages import JobSpec

POINTS, PASSES = 48, 6
DATA = (torch.linspace(-1, 1, POINTS).reshape(-1, 1).repeat(1, 3),)
POLICIES = [
    ("bsp", "gradient", {}),
    ("bsp", "local", {"local_steps": 2}),
    ("ssp:1", "gradient", {}),
    ("ssp-restart:2", "gradient", {}),
    ("asp", "gradient", {}),
    ("asp", "local", {}),
    ("psp", "local", {}),
    ("fsp", "gradient", {"interval": "5ms"}),
    ("fsp", "local", {"interval": "5ms"}),
    ("bspb", "gradient", {}),
]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(points))


def spoiled(name: str, step: int) -> bool:
    return name == "worker-1" and step % 3 == 1


def train(
    worker: Worker, ends: dict[str, Norm], spoil: Any = spoiled, kind: type[Norm] = Norm
) -> None:
    torch.manual_seed(worker.seed)
    model = kind()
    momentum = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = worker.attach(model, momentum)
    for step, (points,) in enumerate(worker.batches(DATA, batch_size=4), start=1):
        if spoil(worker.name, step):
            # NaN in the points makes the gradients and BatchNorm's buffers NaN
            points = points * float("nan")
        loss = model(points).square().mean()
        loss.backward()
        optimizer.step(objective=loss)
    ends[worker.name] = model


def job_of(sync: str, kind: str, more: dict[str, Any], on_nan: str = "skip") -> JobSpec:
    fields: dict[str, Any] = {"epochs": PASSES, "timer": "off", "heartbeat_s": 20.0, **more}
    fields = {"workers": 2, "servers": 2, **fields}
    return JobSpec(job="nan", sync=sync, kind=kind, on_nan=on_nan, **fields)


@pytest.mark.parametrize(("sync", "kind", "more"), POLICIES)
def test_a_contribution_that_is_not_finite_is_left_out(
    sync: str, kind: str, more: dict[str, Any]
) -> None:
    ends: dict[str, Norm] = {}
    job = job_of(sync, kind, more)
    run: InlineRun = run_inline(job, lambda worker: train(worker, ends), timeout_s=60)
    assert run.outcome is not None and not run.outcome.failed
    assert (
        in_words(run.outcome.reason) == f"the job reached its goal: {PASSES} passes over the data"
    )
    for model in ends.values():
        for name, tensor in model.state_dict().items():
            assert bool(tensor.isfinite().all()), name
    state = fold(run.journal)
    skipped = {worker.name: worker.totals.skipped for worker in state.workers.values()}
    assert skipped["worker-1"] > 0 and skipped["worker-0"] == 0
    assert state.points <= PASSES * POINTS and state.passes == PASSES


def test_what_is_left_out_is_named_and_counted() -> None:
    ends: dict[str, Norm] = {}
    job = job_of("bsp", "gradient", {})
    run = run_inline(job, lambda worker: train(worker, ends), timeout_s=60)
    first = next(line for line in run.journal if line["what"] == "skipped")
    assert first["name"] == "worker-1" and first["count"] == 1
    fields = first["fields"]
    assert (fields["holds"], fields["tensor"], fields["step"]) == ("gradient", "norm.weight", 1)
    assert any(
        "a contribution of worker-1 is left out: worker-1, step 1: the gradient of 'norm.weight'"
        in sentence
        for sentence in map(str, tell(run.journal))
    )
    shown = result(fold(run.journal), job)
    count = shown["per_worker"]["worker-1"]["skipped"]
    assert count > 1
    text = summary_text({**shown, "job": "nan"}, Path("runs/nan"))
    assert f"{count} left out (not finite)" in text


def test_the_loss_of_what_is_left_out_is_not_reported() -> None:
    """The loss and the gradients of the second step are finite. A buffer is not."""

    def main(worker: Worker) -> None:
        model = Norm()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(1, 4):
            model(torch.randn(4, 3)).sum().backward()
            spoils = worker.name == "worker-1" and step == 2
            if spoils:
                model.norm.running_mean[0] = float("inf")
            optimizer.step(objective=1000.0 if spoils else 1.0, points=4)

    run = run_inline(job_of("bsp", "gradient", {"rounds": 3, "epochs": None}), main, timeout_s=60)
    assert [line["what"] for line in run.journal].count("skipped") == 1
    last = [line for line in run.journal if line["what"] == "rounds"][-1]
    assert (last["round"], last["objective"]) == (3, 1.0)


def test_a_job_ends_if_all_its_contributions_are_left_out() -> None:
    job = job_of("bsp", "gradient", {"rounds": 1_000_000, "epochs": None})

    def main(worker: Worker) -> None:
        model = nn.Linear(2, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            (model(torch.ones(2, 2)) * float("nan")).sum().backward()
            optimizer.step(points=2)

    with pytest.raises(JobFailed, match="the last 100 contributions of all workers were left out"):
        run_inline(job, main, timeout_s=60)


def test_with_end_the_first_one_ends_the_job() -> None:
    ends: dict[str, Norm] = {}
    job = job_of("bsp", "gradient", {}, "end")
    with pytest.raises(
        NotFinite, match="worker-1, step 1: the gradient of 'norm.weight' holds NaN"
    ):
        run_inline(job, lambda worker: train(worker, ends), timeout_s=60)
    assert not ends, "no worker reached the end of its loop"


def test_messages_about_a_buffer_name_the_buffer_the_worker_and_the_step() -> None:
    job = job_of("bsp", "gradient", {"rounds": 5, "epochs": None}, "refuse")

    def main(worker: Worker) -> None:
        model = Norm()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            model(torch.randn(4, 3)).sum().backward()
            if worker.name == "worker-1" and worker.version == 2:
                model.norm.running_mean[0] = float("inf")
            optimizer.step(points=4)

    with pytest.raises(NotFinite, match="worker-1, step 3: the buffer 'norm.running_mean' became"):
        run_inline(job, main, timeout_s=60)


class Sum(Norm):
    """The sum of all points that this model has seen. Each worker keeps its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        self.total += points.sum(0)
        return super().forward(points)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_local_buffer_loses_what_a_contribution_that_is_left_out_has_added(sync: str) -> None:
    ends: dict[str, Norm] = {}
    job = job_of(sync, "gradient", {})
    run_inline(job, lambda worker: train(worker, ends, kind=Sum), timeout_s=60)
    assert bool(ends["worker-1"].total.isfinite().all())


def test_a_local_optimizer_forgets_steps_that_have_overflowed() -> None:
    """Gradients and momentum are finite, and the parameter is not."""
    found: list[float] = []

    def main(worker: Worker) -> None:
        weight = nn.Parameter(torch.zeros(2))
        momentum = torch.optim.SGD([weight], lr=10.0, momentum=0.9)
        optimizer = worker.attach(nn.ParameterList([weight]), momentum)
        for step, (points,) in enumerate(worker.batches(DATA, batch_size=4), start=1):
            weight.grad = torch.full((2,), 1e38 if step == 3 else 1e-3)
            optimizer.step(points=len(points))
        found.append(float(weight.detach().abs().max()))

    job = job_of("bsp", "local", {"workers": 1})
    run = run_inline(job, main, timeout_s=60)
    assert run.outcome is not None and not run.outcome.failed
    assert found[0] < 100.0
