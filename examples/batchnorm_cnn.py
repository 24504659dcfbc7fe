"""A CNN with BatchNorm, whose running statistics are averaged over all workers.

polyrhythm train examples/batchnorm_cnn.py
"""

import torch
from torch import nn

import polyrhythm as pr

DEFAULTS = {"epochs": 4}
TRAIN, TEST, SIDE = 960, 240, 12


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of a bright square, disc or cross at a random place, with noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (TRAIN + TEST,), generator=generator)
    centres = torch.randint(3, SIDE - 3, (TRAIN + TEST, 2, 1, 1), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    down, right = (rows - centres[:, 0]).abs(), (columns - centres[:, 1]).abs()
    square = torch.maximum(down, right) == 2
    disc = down + right <= 2
    cross = (torch.minimum(down, right) == 0) & (torch.maximum(down, right) <= 3)
    shapes = torch.stack([square, disc, cross], 1)[torch.arange(TRAIN + TEST), labels]
    noise = torch.randn((TRAIN + TEST, SIDE, SIDE), generator=generator)
    return (5 + 4 * shapes + noise).unsqueeze(1), labels


def make_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        nn.MaxPool2d(2),
        *(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 3)),
    )


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The accuracy on the test images, with the running statistics of BatchNorm."""
    model.eval()
    with torch.no_grad():
        right = model(images[TRAIN:]).argmax(1) == labels[TRAIN:]
    model.train()
    return right.float().mean().item()


def main(worker: pr.Worker) -> None:
    images, labels = (tensor.to(worker.device) for tensor in make_data())
    torch.manual_seed(worker.seed)
    model = make_model().to(worker.device)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for batch, targets in worker.batches((images[:TRAIN], labels[:TRAIN]), batch_size=16):
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step(objective=loss)
    worker.report(accuracy=accuracy(model, images, labels))
