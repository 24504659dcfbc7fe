"""Contributions that are folded on arrival, over memory links: the loss falls, all workers end with
the same parameters, and each contribution has the right weight."""

import threading
from typing import Any

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.wire.messages import JobSpec

SYNCS = ["asp", "ssp:2", "ssp-restart:2"]
CLASSES, FEATURES, POINTS = 4, 8, 240


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Make clouds of points around the corners of a cube, sorted by label."""
    generator = torch.Generator().manual_seed(11)
    labels = torch.arange(CLASSES).repeat_interleave(POINTS // CLASSES)
    centres = 2 * torch.randn((CLASSES, FEATURES), generator=generator)
    return centres[labels] + torch.randn((POINTS, FEATURES), generator=generator), labels


def build() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(FEATURES, 12), nn.Tanh(), nn.Linear(12, CLASSES))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return model


def loss_of(model: nn.Module) -> float:
    points, labels = data()
    with torch.no_grad():
        return nn.functional.cross_entropy(model(points), labels).item()


def train(finals: dict[str, nn.Module], rate: float, **job: Any) -> InlineRun:
    def main(worker: Worker) -> None:
        model = build()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5))
        for points, labels in worker.batches(data(), batch_size=10):
            loss = nn.functional.cross_entropy(model(points), labels)
            loss.backward()
            optimizer.step(objective=loss)
        finals[worker.name] = model

    run = run_inline(JobSpec(job="flow", slice_nbytes=256, **job), main, timeout_s=30)
    assert run.outcome is not None and not run.outcome.failed
    return run


@pytest.mark.parametrize("kind", ["gradient", "local"])
@pytest.mark.parametrize("sync", SYNCS)
def test_the_loss_falls_and_all_end_with_the_same_parameters(sync: str, kind: str) -> None:
    finals: dict[str, nn.Module] = {}
    run = train(finals, 0.2, sync=sync, kind=kind, workers=3, servers=2, epochs=3)
    check_finals(finals, 3)
    lines = [line for line in run.journal if line["what"] == "rounds"]
    assert sum(line["points"] for line in lines) == 3 * POINTS
    assert lines[-1]["passes"] == 3


@pytest.mark.parametrize("sync", SYNCS)
def test_training_with_bfloat16_on_the_wire(sync: str) -> None:
    finals: dict[str, nn.Module] = {}
    train(finals, 0.2, sync=sync, workers=2, servers=2, epochs=3, wire_dtype="bf16")
    check_finals(finals, 2)


def check_finals(finals: dict[str, nn.Module], workers: int) -> None:
    assert len(finals) == workers
    first, *others = [model.state_dict() for model in finals.values()]
    for other in others:
        for name, tensor in first.items():
            assert torch.equal(tensor, other[name]), name
    before, after = loss_of(build()), loss_of(next(iter(finals.values())))
    assert after < before / 2, f"the loss went from {before:.3f} to {after:.3f}"


# -- the weight of one contribution ----------------------------------------------------------------


def moved_by_one(workers: int, sync: str, kind: str, optimizer: str = "SGD", **job: Any) -> float:
    """Return how far the first step of one worker moves the parameters, while the other members
    wait. The rate is 0.5 and the gradient is 1."""
    moved: list[float] = []
    first = threading.Event()

    def main(worker: Worker) -> None:
        parameter = nn.Parameter(torch.zeros(40))
        model = nn.ParameterList([parameter])
        made = getattr(torch.optim, optimizer)([parameter], lr=0.5)
        attached = worker.attach(model, made)
        if worker.name != "worker-0":
            assert first.wait(20)
        while not worker.stopped:
            parameter.grad = torch.ones(40)
            attached.step(points=3)
            if worker.name == "worker-0" and not first.is_set():
                assert parameter.eq(parameter[0]).all()
                moved.append(parameter[0].item())
                first.set()

    rounds = 2  # with a goal of one round, the job could end before the step is measured
    run = run_inline(
        JobSpec(job="one", sync=sync, kind=kind, workers=workers, servers=2, rounds=rounds, **job),
        main,
        timeout_s=30,
    )
    assert run.outcome is not None and not run.outcome.failed
    (by,) = moved
    return by


@pytest.mark.parametrize("kind", ["gradient", "local"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_contribution_is_scaled_by_one_over_the_number_of_members(
    workers: int, kind: str
) -> None:
    assert moved_by_one(workers, "ssp:2", kind) == pytest.approx(-0.5 / workers)


@pytest.mark.parametrize(("optimizer", "scale"), [("Adam", 0.5), ("Adagrad", 1.0)])
def test_the_optimizer_decides_how_a_contribution_is_scaled(optimizer: str, scale: float) -> None:
    # the first step of either optimizer moves the parameters by the learning rate, times the scale
    moved = moved_by_one(4, "ssp:2", "gradient", optimizer)
    assert moved == pytest.approx(-0.5 * scale, rel=1e-3)


@pytest.mark.parametrize("kind", ["gradient", "local"])
def test_a_contribution_is_not_scaled_with_async_scale_none(kind: str) -> None:
    assert moved_by_one(3, "ssp:2", kind, async_scale="none") == pytest.approx(-0.5)


@pytest.mark.parametrize("sync", ["ssp:2", "ssp-restart:2"])
def test_a_contribution_is_scaled_under_every_policy_with_a_bound(sync: str) -> None:
    assert moved_by_one(2, sync, "gradient") == pytest.approx(-0.25)
