"""A GradScaler, or the training loop itself, may make no step with a batch. Under every policy the
job goes on, and the points of the batch count as visited."""

from typing import Any

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.state import fold
from polyrhythm.wire.messages import JobSpec

POINTS, PASSES = 48, 4
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
policies = pytest.mark.parametrize(("sync", "kind", "more"), POLICIES)


def network() -> nn.Linear:
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.1)
    return model


def run(main: Any, sync: str, kind: str, more: dict[str, Any]) -> InlineRun:
    fields: dict[str, Any] = {"epochs": PASSES, "timer": "off", "heartbeat_s": 20.0, **more}
    job = JobSpec(job="skips", sync=sync, kind=kind, workers=2, servers=2, **fields)
    run = run_inline(job, main, timeout_s=60)
    assert run.outcome is not None and not run.outcome.failed
    reason = in_words(run.outcome.reason)
    assert reason == f"the job reached its goal: {PASSES} passes over the data"
    assert fold(run.journal).passes == PASSES
    return run


@policies
def test_a_grad_scaler_that_finds_an_overflow_makes_the_worker_abstain(
    sync: str, kind: str, more: dict[str, Any]
) -> None:
    """The gradients of worker-1 overflow at first, until the scaler has halved its scale."""
    ends: dict[str, nn.Linear] = {}
    scales: dict[str, list[float]] = {}

    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**12, growth_interval=10_000)
        mine = scales.setdefault(worker.name, [])
        for (points,) in worker.batches(DATA, batch_size=4):
            optimizer.zero_grad()
            loss = model(points).square().mean()
            mine.append(scaler.get_scale())
            scaler.scale(loss).backward()
            if worker.name == "worker-1" and mine[-1] > 2.0**9:
                model.weight.grad[0, 0] = float("inf")
            scaler.step(optimizer, objective=loss)
            scaler.update()
        ends[worker.name] = model

    found = fold(run(main, sync, kind, more).journal)
    assert set(scales["worker-0"]) == {2.0**12}
    assert min(scales["worker-1"]) == 2.0**9, "three steps overflow, and no more"
    skipped = {worker.name: worker.totals.skipped for worker in found.workers.values()}
    assert skipped["worker-0"] == 0 and 1 <= skipped["worker-1"] <= 3, "one per contribution"
    for model in ends.values():
        assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
        assert model.weight.abs().max().item() < 0.5, "the model has learned"


@policies
def test_a_loop_that_skips_steps_does_not_stop_the_others(
    sync: str, kind: str, more: dict[str, Any]
) -> None:
    """Worker-1 makes no step with its first five batches, and none with any batch of its last two
    passes."""

    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for step, (points,) in enumerate(worker.batches(DATA, batch_size=4)):
            if worker.name == "worker-1" and (step < 5 or step > 12):
                continue
            loss = model(points).square().mean()
            loss.backward()
            optimizer.step(objective=loss)

    run(main, sync, kind, more)


def test_scaled_gradients_that_are_left_at_the_end_are_not_contributed() -> None:
    """The loop makes a step after every third batch. Only at a step does the scaler divide the
    gradients by its scale, so gradients that are left at the end are far too large."""
    ends: list[nn.Linear] = []

    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**20)
        for step, (points,) in enumerate(worker.batches(DATA, batch_size=4), start=1):
            scaler.scale(model(points).square().mean() / 3).backward()
            if step % 3 == 0:
                scaler.step(optimizer)
                scaler.update()
        ends.append(model)

    run_inline(JobSpec(job="rest", workers=1, epochs=1, heartbeat_s=20.0), main, timeout_s=60)
    run_inline(
        JobSpec(job="rest", workers=1, epochs=1, heartbeat_s=20.0, kind="local"), main, timeout_s=60
    )
    assert all(model.weight.abs().max().item() < 1 for model in ends)


Steps = dict[str, tuple[nn.Module, torch.optim.Optimizer]]


def train_two(batches: Any, steps: Steps, overflow: set[tuple[int, str]]) -> int:
    """Make two steps of `back` and one of `front` with every batch. `overflow` says with which batch
    the gradients of which model are infinite. Returns how many steps the scaler has made."""
    scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**12)
    made = 0
    for number, (points,) in enumerate(batches):
        for name in ("back", "back", "front"):
            for _, optimizer in steps.values():
                optimizer.zero_grad()
            model, optimizer = steps[name]
            loss = steps["back"][0](steps["front"][0](points)).square().mean()
            scaler.scale(loss).backward()
            if (number, name) in overflow:
                for parameter in model.parameters():
                    parameter.grad.fill_(float("inf"))
            else:
                made += 1
            scaler.step(optimizer)
            scaler.update()
    return made


def two_models() -> dict[str, nn.Linear]:
    front, back = nn.Linear(3, 2), nn.Linear(2, 1)
    with torch.no_grad():
        for tensor in (*front.parameters(), *back.parameters()):
            tensor.copy_(torch.linspace(0.2, 0.6, tensor.numel()).reshape(tensor.shape))
    return {"front": front, "back": back}


@pytest.mark.parametrize("kind", ["gradient", "local"])
@pytest.mark.parametrize(
    "overflow",
    [
        {(2, "back"), (2, "front")},
        {(0, "back"), (0, "front"), (1, "back"), (11, "front")},
        {(3, "front"), (4, "back")},
    ],
)
def test_steps_that_a_scaler_leaves_out_keep_their_place_in_the_order(
    kind: str, overflow: set[tuple[int, str]]
) -> None:
    """`front` is attached first and makes its step last. One worker computes what torch computes."""
    ends: list[dict[str, nn.Linear]] = []
    made: list[int] = []
    seen: list[torch.Tensor] = []

    def main(worker: Worker) -> None:
        models = two_models()
        steps: Steps = {
            name: (model, worker.attach(model, torch.optim.SGD(model.parameters(), 0.1), name=name))
            for name, model in models.items()
        }

        def batches() -> Any:
            for (points,) in worker.batches(DATA, batch_size=4):
                seen.append(points.clone())
                yield (points,)

        made.append(train_two(batches(), steps, overflow))
        ends.append(models)

    fields: dict[str, Any] = {"kind": kind, "local_steps": 3 if kind == "local" else 1}
    job = JobSpec(job="order", workers=1, servers=2, epochs=1, heartbeat_s=20.0, **fields)
    found = run_inline(job, main, timeout_s=60)
    assert found.outcome is not None and not found.outcome.failed, found.outcome
    plain = two_models()
    sgd: Steps = {
        name: (model, torch.optim.SGD(model.parameters(), 0.1)) for name, model in plain.items()
    }
    assert made == [train_two([(points,) for points in seen], sgd, overflow)]
    for name, model in plain.items():
        for expected, actual in zip(model.parameters(), ends[0][name].parameters(), strict=True):
            torch.testing.assert_close(actual, expected)


def test_the_story_names_the_scaler() -> None:
    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**12)
        for step, (points,) in enumerate(worker.batches(DATA, batch_size=4)):
            factor = float("inf") if step == 1 else 1.0
            scaler.scale(model(points).square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    found = run_inline(
        JobSpec(job="story", workers=1, epochs=1, heartbeat_s=20.0), main, timeout_s=60
    )
    (line,) = [line for line in found.journal if line["what"] == "skipped"]
    assert line["fields"]["detail"] == (
        "worker-0, step 2: a GradScaler made no step, because a gradient holds NaN or infinity"
    )
