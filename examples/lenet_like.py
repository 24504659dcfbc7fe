"""A small LeNet on made-up images: an ordinary torch loop that any number of workers run.

polyrhythm train examples/lenet_like.py --workers 4 --servers 2
"""

import torch
from torch import nn

import polyrhythm as pr

DEFAULTS = {"epochs": 3}


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of stripes in one of four directions, with noise. Every worker makes the same images."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    stripes = torch.stack([rows, columns, rows + columns, rows - columns]).mul(1.5).sin()
    labels = torch.randint(4, (800,), generator=generator)
    noise = torch.randn((800, 12, 12), generator=generator)
    return (stripes[labels] + 0.5 * noise).unsqueeze(1), labels


def main(worker: pr.Worker) -> None:
    images, labels = (tensor.to(worker.device) for tensor in make_data())
    torch.manual_seed(worker.seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(150, 32), nn.ReLU(), nn.Linear(32, 4)),
    ).to(worker.device)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for batch, targets in worker.batches((images[:640], labels[:640]), batch_size=32):
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step(objective=loss)  # sends and receives when the sync policy says so
    model.eval()
    right = model(images[640:]).argmax(1) == labels[640:]
    worker.report(accuracy=right.float().mean().item())
