"""A job with a table of embeddings whose gradients are sparse. Nothing in it is random. An option
chooses the optimizer."""

import torch

POINTS, WORDS, WIDTH = 240, 6_000, 16
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=2.0, momentum=0.5),
    "sparse-adam": lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.02),
}


def data():
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(WORDS, (POINTS, 4), generator=generator)
    return words, torch.randn(POINTS, generator=generator)


def main(worker):
    model = torch.nn.Embedding(WORDS, WIDTH, sparse=True)
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, WORDS * WIDTH).view(WORDS, WIDTH))
    chosen = OPTIMIZERS[worker.options["optimizer"]]
    optimizer = worker.attach(model, chosen(model.parameters()))
    for words, wanted in worker.batches(data(), 10):
        loss = torch.nn.functional.mse_loss(model(words).mean((1, 2)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(objective=loss)
