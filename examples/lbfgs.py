"""LBFGS, an optimizer that computes the loss several times in each step, with a closure.

polyrhythm train examples/lbfgs.py --kind local

With kind local each worker makes the steps itself, and the servers average the changes. It needs
scikit-learn.
"""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import polyrhythm as pr

DEFAULTS = {"epochs": 5}
TRAIN = 450


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Measures of tumours, with mean 0 and deviation 1, and whether each is benign. The order is
    random, and always the same."""
    cancer = load_breast_cancer()
    inputs = torch.tensor(cancer.data, dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    return inputs[order], torch.tensor(cancer.target, dtype=torch.float32)[order]


def main(worker: pr.Worker) -> None:
    inputs, labels = make_data()
    torch.manual_seed(worker.seed)
    model = nn.Linear(inputs.shape[1], 1)
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    optimizer = worker.attach(model, lbfgs)
    for batch, targets in worker.batches((inputs[:TRAIN], labels[:TRAIN]), batch_size=150):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch)[:, 0], targets)
            loss = loss + 0.01 * model.weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    with torch.no_grad():
        right = (model(inputs[TRAIN:])[:, 0] > 0) == labels[TRAIN:].bool()
    worker.report(accuracy=right.float().mean().item())
