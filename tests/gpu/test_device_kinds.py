"""Gradients of rows, several models, and devices without streams give the same results as models in
host memory."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.tensors.copies import SWITCH, BlockingCopies
from polyrhythm.wire.messages import JobSpec
from tests.gpu.conftest import Place
from tests.learn import twin_job as tj

TOLERANCE = 1e-4
ROWS, WIDTH, ROUNDS = 60, 8, 12
Train = Callable[[Worker, str], tj.State]


def filled(module: nn.Module, seed: int) -> nn.Module:
    """Fill the module with random parameters. Inline workers share torch's global generator, so
    this function uses a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return module


def with_rows(worker: Worker, device: str) -> tj.State:
    """An embedding that contributes rows, beside a layer that does not and an empty parameter."""
    number = int(worker.name.removeprefix("worker-"))
    table = nn.EmbeddingBag(ROWS, WIDTH, sparse=True)
    table.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    model = filled(nn.Sequential(table, nn.Linear(WIDTH, 1)), 5).to(device)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        drawn = torch.Generator().manual_seed(1000 * number + worker.version)
        chosen = torch.randint(ROWS, (4, 3), generator=drawn)
        model(chosen.to(device)).square().mean().backward()
        optimizer.step(points=4)
    return {name: tensor.cpu().clone() for name, tensor in model.state_dict().items()}


def with_two_models(worker: Worker, device: str) -> tj.State:
    """Two models that make their steps in turn."""
    number = int(worker.name.removeprefix("worker-"))
    models = [filled(nn.Linear(WIDTH, 2), seed).to(device) for seed in (1, 2)]
    optimizers = [
        worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), name)
        for model, name in zip(models, ("first", "second"), strict=True)
    ]
    step = 0
    while not worker.stopped:
        for model, optimizer in zip(models, optimizers, strict=True):
            drawn = torch.Generator().manual_seed(1000 * number + step)
            points = torch.randn((4, WIDTH), generator=drawn).to(device)
            model(points).square().mean().backward()
            optimizer.step(points=4)
            step += 1
    return {
        f"{which}.{name}": tensor.cpu().clone()
        for which, model in enumerate(models)
        for name, tensor in model.state_dict().items()
    }


def trained(train: Train, device: str, **options: object) -> tj.State:
    found: dict[str, tj.State] = {}

    def main(worker: Worker) -> None:
        found[worker.name] = train(worker, device)

    run_inline(
        JobSpec(**{"job": "kinds", "workers": 2, "rounds": ROUNDS, "heartbeat_s": 20.0, **options}),
        main,
        timeout_s=60,
    )
    assert tj.distance(found["worker-0"], found["worker-1"]) == 0.0
    return found["worker-0"]


@pytest.mark.parametrize("train", [with_rows, with_two_models])
@pytest.mark.parametrize("wire", ["same", "bf16"])
def test_a_device_gives_what_the_host_gives(
    place: Place, train: Train, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = trained(train, place.device, wire_dtype=wire)
    monkeypatch.delenv(SWITCH, raising=False)
    here = trained(train, "cpu", wire_dtype=wire)
    assert tj.distance(there, here) < (TOLERANCE if wire == "same" else 0.02)


def test_rows_of_micro_batches_are_gathered_on_a_device(place: Place) -> None:
    state = trained(with_rows, place.device, sync="fsp", interval="2ms")
    assert all(tensor.isfinite().all() for tensor in state.values())


def test_a_device_without_streams_gives_what_the_host_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    here = trained(with_two_models, "cpu")
    assert not waits
    copies_for = "polyrhythm.tensors.device_model.copies_for"
    monkeypatch.setattr(copies_for, lambda device: BlockingCopies(device))
    there = trained(with_two_models, "cpu")
    assert tj.distance(there, here) < TOLERANCE
    assert waits
