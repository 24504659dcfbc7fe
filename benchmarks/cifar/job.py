"""The job of the benchmarks with CIFAR-10: the model and the optimizer of `cifar10-vgg11`.

It differs from that job in its evaluations. `--set measure=accuracy` reports the accuracy on all test
images now and then; `--set measure=train_loss` reports the loss on a fixed sample of the training
images. Nothing is evaluated after the end of the job, because that takes a CPU worker half a minute.
`--set model=small` trains a model that a test can afford.
"""

import sys
from pathlib import Path

import torch
from torch import nn

# let processes that a command starts import modules of this repository
sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.cifar.data import load
from polyrhythm import Worker
from polyrhythm.learn.jobs import cifar10_vgg11
from polyrhythm.learn.jobs.images import Pixels, accuracy
from polyrhythm.learn.jobs.numbers import said_batch, said_rate

_SAMPLE = 2048
"""The number of training images on which the objective is measured."""
_AT_ONCE = 512


def _small() -> nn.Module:
    layers = (nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    return nn.Sequential(Pixels(0.473, 0.252), *layers)


MODELS = {"vgg11": cifar10_vgg11.build, "small": _small}


def loss_on(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The mean loss of the model in evaluation mode (`model.eval()`)."""
    training = model.training
    model.eval()
    with torch.inference_mode():
        parts = zip(images.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True)
        losses = [nn.functional.cross_entropy(model(x), y, reduction="sum") for x, y in parts]
        total = torch.stack(losses).sum().item() / len(labels)
    model.train(training)
    return total


def main(worker: Worker) -> None:
    images = load(Path(worker.options["images"])).to(worker.device)
    torch.manual_seed(worker.seed)
    model = MODELS[worker.options.get("model", "vgg11")]().to(worker.device)
    sgd = cifar10_vgg11.choose_optimizer(model)
    for group in sgd.param_groups:
        group["lr"] = said_rate(worker.options) or group["lr"]
    optimizer = worker.attach(model, sgd)
    train_set = (images.train_x, images.train_y)
    sample_x, sample_y = images.train_x[:_SAMPLE], images.train_y[:_SAMPLE]
    measures = {
        "accuracy": lambda: accuracy(model, images.test_x, images.test_y),
        "train_loss": lambda: loss_on(model, sample_x, sample_y),
    }
    name = worker.options["measure"]
    measure = {name: measures[name]}
    worker.probe(train_set, lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
    for batch, targets in worker.batches(train_set, said_batch(worker.options) or 64):
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(objective=loss)
        worker.evaluate(**measure)
