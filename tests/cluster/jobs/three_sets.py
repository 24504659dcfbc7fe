"""Every worker visits a data set that is as long as those of the other workers. With `--set own=1`
the points of the workers differ. The parameter counts the visits of each worker's points."""

import torch

POINTS, WORKERS = 60, 3


class Noisy(torch.utils.data.TensorDataset):
    """Points with a random change, as an augmentation makes it."""

    def __getitem__(self, index):
        number, image = super().__getitem__(index)
        return number, image + torch.rand(image.shape)


def main(worker):
    number = int(worker.name.rpartition("-")[2])
    counts = torch.nn.Parameter(torch.zeros(WORKERS, POINTS))
    optimizer = worker.attach(torch.nn.ParameterList([counts]), torch.optim.SGD([counts], lr=1.0))
    draw = torch.Generator().manual_seed(number if "own" in worker.options else 0)
    images = torch.rand(POINTS, 2, 3, generator=draw)
    for numbers, _ in worker.batches(Noisy(torch.arange(POINTS), images), 5):
        counts.grad = torch.zeros(WORKERS, POINTS)
        counts.grad[number, numbers] = 1.0
        optimizer.step(points=len(numbers))
    if number == 0:
        torch.save(counts.detach(), "final.pt")
