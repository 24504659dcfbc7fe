"""A convex job without randomness: least squares on fixed points. An option chooses the
optimizer."""

import torch

POINTS, SIZE = 480, 24
OPTIMIZERS = {
    "slow": lambda parameters: torch.optim.SGD(parameters, lr=0.001),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
}


def data():
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(POINTS, SIZE, generator=generator)
    return inputs, inputs @ torch.randn(SIZE, 3, generator=generator)


def main(worker):
    model = torch.nn.Linear(SIZE, 3)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    chosen = OPTIMIZERS[worker.options["optimizer"]]
    optimizer = worker.attach(model, chosen(model.parameters()))
    for inputs, wanted in worker.batches(data(), 20):
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(objective=loss)
