"""Embeddings with sparse gradients: a worker sends only the rows that its batch has used.

    polyrhythm train examples/sparse_embeddings.py
    polyrhythm train examples/sparse_embeddings.py --sync asp

It needs PyTorch only: the ratings are made by the script.
"""

import torch
from torch import nn

import polyrhythm as pr

DEFAULTS = {"epochs": 14}
USERS, FILMS, TRAIN, TEST = 100, 80, 4_000, 1_000


def make_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ratings of films by users. A rating is high if the tastes of the user fit the film."""
    generator = torch.Generator().manual_seed(0)
    tastes = torch.randn(USERS, 3, generator=generator)
    traits = torch.randn(FILMS, 3, generator=generator)
    users = torch.randint(USERS, (TRAIN + TEST,), generator=generator)
    films = torch.randint(FILMS, (TRAIN + TEST,), generator=generator)
    noise = 0.3 * torch.randn(TRAIN + TEST, generator=generator)
    return users, films, (tastes[users] * traits[films]).sum(1) + noise


class Ratings(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, width, sparse=True)
        self.films = nn.Embedding(FILMS, width, sparse=True)

    def forward(self, users: torch.Tensor, films: torch.Tensor) -> torch.Tensor:
        return (self.users(users) * self.films(films)).sum(1)


def main(worker: pr.Worker) -> None:
    users, films, ratings = make_data()
    torch.manual_seed(worker.seed)
    model = Ratings()
    optimizer = worker.attach(model, torch.optim.Adagrad(model.parameters(), lr=0.5))
    train = (users[:TRAIN], films[:TRAIN], ratings[:TRAIN])
    for some_users, some_films, wanted in worker.batches(train, batch_size=64):
        loss = nn.functional.mse_loss(model(some_users, some_films), wanted)
        loss.backward()
        optimizer.step(objective=loss)
    with torch.no_grad():
        errors = model(users[TRAIN:], films[TRAIN:]) - ratings[TRAIN:]
    worker.report(explained=1 - (errors.square().mean() / ratings[TRAIN:].var()).item())
