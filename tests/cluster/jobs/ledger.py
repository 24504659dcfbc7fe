"""A job that counts contributions.

Step n of worker w adds 1 to element (w, n mod columns) of a block. Every slice holds such a block,
and a step adds to all of them. The worker records which steps it sent and which were acknowledged.
A contribution contains one step, or several under policies with local steps (`--set local=1`: the
worker makes the steps itself).

Every block is a parameter group of its own, and so a slice of its own (`--set slices=24`). The
number in a worker's name is w. A new incarnation continues to count where the last one ended.

`--set optimizer=NAME` folds with a torch optimizer in place of plain addition. Both optimizers have
state for every element. With both, one contribution adds 1 in total, in any order and with any
other contributions:

- momentum, for contributions that are folded one by one: it adds 1/2, then 1/4, 1/8, ... with later
  steps;
- adagrad, in rounds: it divides a first gradient by its own size, so the division by the number of
  workers cancels.

`sparse-momentum` and `sparse-adam` have gradients of rows: every block is a table of embeddings, and
a step contributes the row of its worker. With betas of 0, SparseAdam divides every gradient by its
own size.
"""

import os
from pathlib import Path

import numpy as np
import torch

OPTIMIZERS = {
    "addition": lambda groups: torch.optim.SGD(groups, lr=1.0),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.5, momentum=0.5),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1.0),
    "sparse-momentum": lambda groups: torch.optim.SGD(groups, lr=0.5, momentum=0.5),
    "sparse-adam": lambda groups: torch.optim.SparseAdam(groups, lr=1.0, betas=(0.0, 0.0)),
}
ROWS = 12
SLICES = 6


def parameters(columns, slices):
    blocks = [torch.nn.Parameter(torch.zeros(ROWS, columns)) for _ in range(slices)]
    return torch.nn.ParameterList(blocks)


def tables(columns, slices):
    made = [torch.nn.Embedding(ROWS, columns, sparse=True) for _ in range(slices)]
    for table in made:
        torch.nn.init.zeros_(table.weight)
    return torch.nn.ModuleList(made)


def row_of(gradient, row):
    """The gradient as a sparse tensor with this row only."""
    return torch.sparse_coo_tensor([[row]], gradient[row : row + 1], gradient.shape)


def main(worker):
    row = int(worker.name.rpartition("-")[2])
    columns = int(worker.options["columns"])
    chosen = worker.options.get("optimizer", "addition")
    sparse = chosen.startswith("sparse")
    slices = int(worker.options.get("slices", SLICES))
    model = tables(columns, slices) if sparse else parameters(columns, slices)
    blocks = list(model.parameters())
    groups = [{"params": [block]} for block in blocks]
    optimizer = worker.attach(model, OPTIMIZERS[chosen](groups))
    path = Path(f"{worker.name}.book")
    number = path.read_text().count("sent") if path.exists() else 0
    added = chosen == "addition" and not worker.options.get("local")
    # a step of an optimizer subtracts the gradient, and the updater `addition` adds it
    towards = 1 if added else -1
    steps, made, seen, incarnation = [], [], 0, worker.incarnation
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    with path.open("a", buffering=1) as book:
        while not worker.stopped:
            one = torch.zeros(ROWS, columns)
            one[row, number % columns] = towards
            for block in blocks:
                block.grad = row_of(one, row) if sparse else one
            book.write(f"sent {number}\n")
            optimizer.step(points=1)
            steps.append(number)
            if worker.incarnation != incarnation:
                # after an eviction, contributions that were not acknowledged may be lost
                steps, made, seen, incarnation = [], [], 0, worker.incarnation
            while len(made) < worker.acknowledged + worker._node._machine.unacknowledged:
                made.append(steps)
                steps = []
            while seen < worker.acknowledged:
                for step in made[seen]:
                    book.write(f"acknowledged {step}\n")
                seen += 1
            number += 1
            if os.path.exists("finish"):
                worker.report(accuracy=1.0)
    final = torch.stack([block.detach() for block in blocks]).numpy()
    np.save(f"{worker.name}.final.npy", final)
