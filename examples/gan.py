"""A GAN: two models with an optimizer each, in one job.

polyrhythm train examples/gan.py

Each call of `attach` names its model. All workers make the steps of the models in the same order.
The job saves one file per model.
"""

from zlib import crc32

import torch
from torch import nn
from torch.nn.functional import softplus

import polyrhythm as pr

DEFAULTS = {"epochs": 20}
TRAIN, TEST, NOISE = 1_500, 1_000, 4


def make_data() -> torch.Tensor:
    """Points near a circle."""
    generator = torch.Generator().manual_seed(0)
    angle = 2 * torch.pi * torch.rand(TRAIN + TEST, generator=generator)
    radius = 1 + 0.1 * torch.randn(TRAIN + TEST, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def make_model(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)),
        nn.Linear(64, outputs),
    )


def distance(some: torch.Tensor, others: torch.Tensor) -> float:
    """The energy distance: 0 if both sets of points have the same distribution."""
    across = 2 * torch.cdist(some, others).mean()
    return (across - torch.cdist(some, some).mean() - torch.cdist(others, others).mean()).item()


def main(worker: pr.Worker) -> None:
    points = make_data()
    torch.manual_seed(worker.seed)
    generator, critic = make_model(NOISE, 2), make_model(2, 1)
    adam = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    generator_steps = worker.attach(generator, adam, name="generator")
    adam = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    critic_steps = worker.attach(critic, adam, name="critic")
    torch.manual_seed(worker.seed + crc32(worker.name.encode()))  # each worker draws its own noise
    for (real,) in worker.batches((points[:TRAIN],), batch_size=50):
        made = generator(torch.randn(len(real), NOISE))
        critic_steps.zero_grad()  # the generator's step has left gradients in the critic
        loss = softplus(-critic(real)).mean() + softplus(critic(made.detach())).mean()
        loss.backward()
        critic_steps.step(objective=loss)
        softplus(-critic(made)).mean().backward()
        generator_steps.step()
    with torch.no_grad():
        worker.report(distance=distance(generator(torch.randn(TEST, NOISE)), points[TRAIN:]))
