"""A DataLoader with two processes: sentences of different lengths, padded by a collate function.

polyrhythm train examples/loader.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import polyrhythm as pr

DEFAULTS = {"epochs": 6}
WORDS, TRAIN, TEST = 200, 1_600, 400


class Sentences(Dataset[tuple[torch.Tensor, int]]):
    """Sentences of 3 to 20 made-up words. Words below 100 are good, the others bad. The label says
    whether more words are good than bad."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 21, (count,), generator=generator).tolist()
        words = torch.randint(WORDS, (sum(lengths),), generator=generator)
        self._sentences = words.split(lengths)

    def __len__(self) -> int:
        return len(self._sentences)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        words = self._sentences[index]
        return words, int((words < WORDS // 2).sum() * 2 > len(words))


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


def accuracy(model: Classifier) -> float:
    words, labels = pad(list(Sentences(TEST, seed=1)))
    with torch.no_grad():
        return (model(words).argmax(1) == labels).float().mean().item()


def main(worker: pr.Worker) -> None:
    torch.manual_seed(worker.seed)
    model = Classifier().to(worker.device)
    loader = DataLoader(
        Sentences(TRAIN, seed=0), batch_size=16, shuffle=True, num_workers=2, collate_fn=pad
    )
    optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=0.02))
    for words, labels in worker.batches(loader):
        words, labels = words.to(worker.device), labels.to(worker.device)
        loss = nn.functional.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step(objective=loss)
    worker.report(accuracy=accuracy(model.cpu()))
