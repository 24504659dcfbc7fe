"""A tiny GAN as a job: two models with optimizers of different types, and the same training without
polyrhythm. The noise is computed from the batch, so that no random state is shared."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from polyrhythm import Worker

POINTS = 48
State = dict[str, torch.Tensor]
Models = dict[str, torch.nn.Module]


def data() -> torch.Tensor:
    return torch.randn(POINTS, 2, generator=torch.Generator().manual_seed(1)) + 2


def make_models(seed: int = 0) -> Models:
    critic = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    generator = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
    )
    made = torch.Generator().manual_seed(seed)
    for model in (critic, generator):
        for parameter in model.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=made) / 2)
    return {"critic": critic, "generator": generator}


def make_optimizers(models: Models) -> dict[str, torch.optim.Optimizer]:
    """The critic has Adam with two parameter groups, the generator SGD with momentum."""
    critic, generator = models["critic"], models["generator"]
    groups = [
        {"params": list(critic[0].parameters()), "lr": 0.01},
        {"params": list(critic[2].parameters()), "lr": 0.003},
    ]
    return {
        "critic": torch.optim.Adam(groups),
        "generator": torch.optim.SGD(generator.parameters(), lr=0.02, momentum=0.5),
    }


def fake(models: Models, real: torch.Tensor) -> torch.Tensor:
    noise = torch.sin(37 * real + torch.arange(len(real)).unsqueeze(1))
    return models["generator"](noise)


def critic_loss(models: Models, real: torch.Tensor) -> torch.Tensor:
    critic = models["critic"]
    good = torch.nn.functional.softplus(-critic(real)).mean()
    return good + torch.nn.functional.softplus(critic(fake(models, real).detach())).mean()


def generator_loss(models: Models, real: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(-models["critic"](fake(models, real))).mean()


LOSSES = {"critic": critic_loss, "generator": generator_loss}


def train(
    models: Models,
    optimizers: dict[str, Any],
    batches: Iterable[Any],
    order: tuple[str, ...] = ("critic", "generator"),
) -> int:
    """Train: make all steps of the order with each batch. Returns the number of batches."""
    count = 0
    for (real,) in batches:
        for name in order:
            optimizers[name].zero_grad()
            LOSSES[name](models, real).backward()
            optimizers[name].step()
        count += 1
    return count


def states(models: Models) -> dict[str, State]:
    return {
        name: {key: value.clone() for key, value in model.state_dict().items()}
        for name, model in models.items()
    }


def distance(one: dict[str, State], other: dict[str, State]) -> float:
    return max(
        float((one[name][key].double() - other[name][key].double()).abs().max())
        for name in one
        for key in one[name]
    )


def attach(worker: Worker, models: Models) -> dict[str, Any]:
    optimizers = make_optimizers(models)
    return {name: worker.attach(models[name], optimizers[name], name=name) for name in models}


def main(worker: Worker) -> None:
    """Options of `--set`: `order=critic,critic,generator` is the order of the steps, and
    `order-worker-1=…` that of one worker. Every worker writes its final models to the folder `out`.
    `gate=FOLDER`: after the second batch a worker writes `began-NAME` there, and waits for a file
    `go`. `report`: after each batch a worker reports a higher accuracy."""
    options = worker.options
    order = options.get(f"order-{worker.name}", options.get("order", "critic,generator"))
    models = make_models()
    optimizers = attach(worker, models)

    def batches() -> Iterator[Any]:
        for number, batch in enumerate(worker.batches((data(),), batch_size=4)):
            if number == 2 and "gate" in options:
                Path(options["gate"], f"began-{worker.name}").touch()
                while not Path(options["gate"], "go").exists():
                    time.sleep(0.01)
            yield batch
            if "report" in options:
                worker.report(accuracy=number / 100)

    train(models, optimizers, batches(), tuple(order.split(",")))
    if "out" in options:
        path = Path(options["out"], f"{worker.name}.pt")
        torch.save(states(models), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
