"""A job whose parameters count visits, like `counted_visits`. Every point contains the number of
the worker that has read it from the data set, so a worker knows which of its points another worker
has read."""

from pathlib import Path

import torch

POINTS, BATCH, SLICES = 500, 20, 4


class Read(torch.utils.data.Dataset):
    """Point n is the number n, the number of the reader, and further values of several kinds."""

    def __init__(self, reader):
        self.reader = reader

    def __len__(self):
        return POINTS

    def __getitem__(self, index):
        return {"number": index, "reader": (torch.tensor(self.reader), f"of {self.reader}")}


def batches(worker, dataset, processes, again):
    """All batches. With `again`, a new loop over the batches begins after every `again` batches."""
    while not worker.stopped:
        for number, batch in enumerate(worker.batches(dataset, BATCH, num_workers=processes), 1):
            yield batch
            if number == again:
                break


def main(worker):
    blocks = [torch.nn.Parameter(torch.zeros(POINTS)) for _ in range(SLICES)]
    groups = [{"params": [block]} for block in blocks]
    optimizer = worker.attach(torch.nn.ParameterList(blocks), torch.optim.SGD(groups, lr=1.0))
    me = int(worker.name.rpartition("-")[2])
    processes = int(worker.options.get("processes", 0))
    received = 0
    for points in batches(worker, Read(me), processes, int(worker.options.get("again", 0))):
        readers, names = points["reader"]
        assert [f"of {reader}" for reader in readers.tolist()] == list(names)
        received += int((readers != me).sum())
        visited = torch.zeros(POINTS)
        visited[points["number"]] = -1.0  # a local step subtracts the gradient, so -1 adds a visit
        for block in blocks:
            block.grad = visited
        optimizer.step(points=len(names))
    torch.save([block.detach() for block in blocks], Path(f"{worker.name}.final.pt"))
    Path(f"{worker.name}.received.txt").write_text(str(received))
