"""A DataLoader with two processes: sentences of different lengths, padded by a collate function.

polyrhythm train examples/loader.py
python examples/loader.py              # the same training in plain torch
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import polyrhythm as pr

DEFAULTS = {"epochs": 4}
WORDS, TRAIN, TEST = 200, 1_600, 400


class Sentences(Dataset[tuple[torch.Tensor, int]]):
    """Sentences of 3 to 20 made-up words. Words below 100 are good, the others bad. The label says
    whether more words are good than bad."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self._first + index)
        length = int(torch.randint(3, 21, (), generator=generator))
        words = torch.randint(WORDS, (length,), generator=generator)
        return words, int((words < WORDS // 2).sum() * 2 > length)


def pad(sentences: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Number words from 1 and fill short sentences with 0."""
    words = nn.utils.rnn.pad_sequence([each + 1 for each, _ in sentences], batch_first=True)
    return words, torch.tensor([label for _, label in sentences])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS + 1, 16, padding_idx=0)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(words))


def make(seed: int) -> tuple[Classifier, torch.optim.Optimizer, DataLoader]:
    torch.manual_seed(seed)
    model = Classifier()
    loader = DataLoader(
        Sentences(0, TRAIN), batch_size=16, shuffle=True, num_workers=2, collate_fn=pad
    )
    return model, torch.optim.Adam(model.parameters(), lr=0.01), loader


def accuracy(model: Classifier) -> float:
    test = Sentences(TRAIN, TEST)
    words, labels = pad([test[index] for index in range(TEST)])
    with torch.no_grad():
        return (model(words).argmax(1) == labels).float().mean().item()


def main(worker: pr.Worker) -> None:
    model, optimizer, loader = make(worker.seed)
    optimizer = worker.attach(model, optimizer)
    for words, labels in worker.batches(loader):
        loss = nn.functional.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step(objective=loss)
    worker.report(accuracy=accuracy(model))


def plain(seed: int = 0, epochs: int = DEFAULTS["epochs"]) -> float:
    """Train in plain torch, and return the accuracy."""
    model, optimizer, loader = make(seed)
    for _ in range(epochs):
        for words, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(words), labels).backward()
            optimizer.step()
    return accuracy(model)


if __name__ == "__main__":
    print(f"accuracy {plain():.3f}")
