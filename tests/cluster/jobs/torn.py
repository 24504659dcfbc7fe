"""A job in which all elements of a slice are equal in every version.

Every contribution is 1 everywhere, so a slice that was read in the middle of a fold has different
elements. Each worker checks every slice after every step.

A worker that finds the file `NAME.trap` stops itself in the middle of the next pull: when the first
or the last slice has changed since the step began, and the other one has not.
"""

import os
import signal
import threading
import time
from pathlib import Path

import torch

LENGTH = 500_000
"""The number of elements of a slice, just below the maximum. Each slice is a parameter group of its
own."""


class Trap(threading.Thread):
    def __init__(self, name, first, last):
        super().__init__(daemon=True)
        self.path = Path(f"{name}.trap")
        self.ends = first.detach()[:1], last.detach()[-1:]
        self.before = None

    def read(self):
        return [float(end) for end in self.ends]

    def run(self):
        while True:
            if not self.path.exists():
                time.sleep(0.02)
                continue
            before = self.before
            if before is not None:
                changed = [now != then for now, then in zip(self.read(), before, strict=True)]
                if changed[0] != changed[1] and self.before is before:
                    self.path.rename(self.path.with_suffix(".trapped"))
                    os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.0005)


def main(worker):
    blocks = [torch.nn.Parameter(torch.zeros(LENGTH)) for _ in range(int(worker.options["slices"]))]
    groups = [{"params": [block]} for block in blocks]
    optimizer = worker.attach(torch.nn.ParameterList(blocks), torch.optim.SGD(groups, lr=1.0))
    trap = Trap(worker.name, blocks[0], blocks[-1])
    trap.start()
    ones = torch.ones(LENGTH)
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    with open(f"{worker.name}.book", "a", buffering=1) as book:
        number = 0
        while not worker.stopped:
            for block in blocks:
                block.grad = ones
            trap.before = trap.read()
            optimizer.step(points=1)
            trap.before = None
            for index, block in enumerate(blocks):
                low, high = block.detach().aminmax()
                if low != high:
                    Path("torn").write_text(f"{worker.name}, slice {index}: {low} to {high}")
                    raise AssertionError("a slice is torn")
            book.write(f"acknowledged {number}\n")
            number += 1
            if os.path.exists("finish"):
                worker.report(accuracy=1.0)
