"""A wrong argument of a worker's method is one line that names the argument and says what to give."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polyrhythm as pr

INPUTS, TARGETS = torch.ones(32, 4), torch.ones(32, 1)
Loop = Callable[[Any, Any, Any], object]


def plain(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (lambda w, m, o: w.batches((INPUTS, TARGETS), "8"), "batch_size is '8': give a whole"),
        (lambda w, m, o: w.batches((INPUTS, TARGETS)), "needs a batch_size"),
        (lambda w, m, o: w.batches((INPUTS, TARGETS[:3]), 8), "but found 32 and 3"),
        (lambda w, m, o: w.batches((), 8), "but found no tensors"),
        (lambda w, m, o: o.step(m(INPUTS).mean()), "give a loss as optimizer.step(objective=loss)"),
        (
            lambda w, m, o: o.step(objective=m(INPUTS)),
            "got a tensor of shape (32, 1): give the mean",
        ),
        (lambda w, m, o: o.step(points=-1), "step(points=-1): give the number of points"),
        (lambda w, m, o: o.step(points=math.nan), "step(points=nan): give the number of points"),
        (lambda w, m, o: w.attach(plain(m), m), "got 'SGD' in place of a torch Module"),
        (lambda w, m, o: w.attach(m, m.parameters()), "in place of a torch Optimizer"),
    ],
)
def test_a_wrong_argument_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Loop, said: str
) -> None:
    """`worker.batches` refuses its arguments when it is called, and not at the first batch."""
    monkeypatch.chdir(tmp_path)

    def main(worker: pr.Worker) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = worker.attach(model, plain(model))
        with pytest.raises(pr.errors.UsageError) as raised:
            loop(worker, model, optimizer)
        assert said in str(raised.value)
        while not worker.stopped:
            model(INPUTS).mean().backward()
            optimizer.step(points=32)

    pr.train(main, workers=1, servers=1, rounds=2, engine="inline", quiet=True)


def test_connect_names_a_wrong_argument() -> None:
    with pytest.raises(pr.errors.UsageError, match="connect has no option 'names': the nearest is"):
        pr.connect("127.0.0.1:7000", names="x")  # type: ignore[arg-type]
    with pytest.raises(pr.errors.UsageError, match="name is 3: it must be of type str"):
        pr.connect("127.0.0.1:7000", name=3)  # type: ignore[arg-type]
    with pytest.raises(pr.errors.UsageError, match="'7000' is not understood: give HOST:PORT"):
        pr.connect(7000)  # type: ignore[arg-type]
