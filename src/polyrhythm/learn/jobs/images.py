"""The common part of the image jobs: normalised pixels, the training loop, and the final
evaluation."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from polyrhythm.learn.data.images import Images, read_cifar10, read_mnist
from polyrhythm.learn.jobs.numbers import said_batch, said_rate
from polyrhythm.learn.worker import Worker

_TEST_BATCH = 1_000
_READERS = {"mnist": read_mnist, "fashion-mnist": read_mnist, "cifar10": read_cifar10}


class Pixels(nn.Module):
    """Convert bytes to numbers from 0 to 1, and normalise them by mean and standard deviation. This
    is the first layer of a model, so images are stored as bytes, and training and evaluation use
    the same conversion."""

    def __init__(self, mean: float = 0.0, deviation: float = 1.0) -> None:
        super().__init__()
        self._scale = 1 / (255 * deviation)
        self._shift = -mean / deviation

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mul_(self._scale).add_(self._shift)


def read_images(data_set: str, folder: Path) -> Images:
    """Read a data set of the catalogue from its folder."""
    return _READERS[data_set](folder)


def train_on(
    worker: Worker,
    data_set: str,
    build: Callable[[], nn.Module],
    choose_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    batch_size: int = 64,
    evaluated: int | None = None,
) -> None:
    """Train on a data set of the catalogue."""
    images = read_images(data_set, worker.data(data_set))
    torch.manual_seed(worker.seed)
    model = build().to(worker.device)
    train(worker, model, choose_optimizer(model), images, batch_size, evaluated)


def train(
    worker: Worker,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Images,
    batch_size: int,
    evaluated: int | None = None,
) -> None:
    """Train until the job ends. Report the accuracy on the test images from time to time, and at
    the end. `evaluated`: how many test images to use before the end; all are used at the end. The
    model is on the worker's device. All images are copied there at the beginning, as bytes, which
    need little memory."""
    images = images.to(worker.device)
    rate = said_rate(worker.options)
    if rate is not None:
        for group in optimizer.param_groups:
            group["lr"] = rate
    batch_size = said_batch(worker.options) or batch_size
    exchange = worker.attach(model, optimizer)
    train_set = (images.train_x, images.train_y)
    some_x, some_y = images.test_x[:evaluated], images.test_y[:evaluated]
    worker.probe(train_set, lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
    for batch, targets in worker.batches(train_set, batch_size):
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        exchange.step(objective=loss)
        worker.evaluate(accuracy=lambda: accuracy(model, some_x, some_y))
    worker.report(accuracy=accuracy(model, images.test_x, images.test_y))


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of images whose most likely class is the right one."""
    training = model.training
    model.eval()
    right = 0
    with torch.inference_mode():
        for first in range(0, len(labels), _TEST_BATCH):
            batch = slice(first, first + _TEST_BATCH)
            right += int((model(images[batch]).argmax(1) == labels[batch]).sum())
    model.train(training)
    return right / len(labels)
