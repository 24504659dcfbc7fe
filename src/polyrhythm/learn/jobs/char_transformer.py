"""A small language model: a transformer that predicts the next character of a text.

The text is the reference of the Python language that Python itself ships for `help()`, so the job
needs no download. Many local steps and few exchanges suit it:

    polyrhythm train char-transformer --kind local --local-steps 50 --outer nesterov:lr=0.7,momentum=0.9
"""

import math
import string
from dataclasses import dataclass

import torch
from torch import nn

from polyrhythm.errors import UsageError
from polyrhythm.learn.jobs.numbers import said_batch, said_rate
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 4}
BATCH_SIZE = 8
RATE = 3e-3
CONTEXT = 64
"""How many characters the model sees at most."""
ALPHABET = string.printable.replace("\t\n\r\x0b\x0c", "\n")
"""The characters that the model knows. Any other character is read as a space."""
_WIDTH, _HEADS, _BLOCKS = 64, 4, 2
_HELD_OUT = 10
"""One in this many pieces of the text is for testing."""
_TEST_BATCH = 64
_SAMPLE = 128
"""How many pieces of the test set are used while the job trains; all are used at the end."""


@dataclass(frozen=True)
class Text:
    """Pieces of a text, one per row. A row has one character more than the model sees: the last
    character that the model must predict."""

    train: torch.Tensor
    test: torch.Tensor

    def to(self, device: torch.device) -> "Text":
        """The same pieces on this device."""
        return Text(self.train.to(device), self.test.to(device))


def read() -> str:
    """Return the text of all topics of Python's `help()`."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UsageError(
            "the job char-transformer trains on the text of Python's help(), which this Python lacks:"
            " install the whole standard library (the module pydoc_data)"
        ) from None
    return "\n\n".join(topics[name] for name in sorted(topics))


def cut(text: str) -> Text:
    """Cut a text into pieces. Every tenth piece is for testing."""
    numbers = {character: number for number, character in enumerate(ALPHABET)}
    space = numbers[" "]
    coded = torch.tensor([numbers.get(character, space) for character in text], dtype=torch.uint8)
    pieces = coded[: (len(coded) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)
    tested = torch.arange(len(pieces)) % _HELD_OUT == _HELD_OUT - 1
    return Text(pieces[~tested].contiguous(), pieces[tested].contiguous())


class Block(nn.Module):
    """Attention to earlier characters, followed by a layer that is applied to each character. The
    output of each of the two is added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attend, self.join = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.think = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        points, length, _ = hidden.shape
        heads = self.attend(self.first(hidden)).view(points, length, 3, _HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.join(seen.transpose(1, 2).reshape(points, length, _WIDTH))
        result: torch.Tensor = hidden + self.think(self.second(hidden))
        return result


class CharTransformer(nn.Module):
    """Predicts the next character at every position of a text: returns the scores of all
    characters. The input contains the characters as numbers in the alphabet."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), _WIDTH)
        self.places = nn.Embedding(CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(_BLOCKS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.scores = nn.Linear(_WIDTH, len(ALPHABET))
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        hidden = self.characters(characters.int()) + self.places.weight[: characters.shape[1]]
        scores: torch.Tensor = self.scores(self.norm(self.blocks(hidden)))
        return scores


def loss_of(model: nn.Module, pieces: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a prediction: the logarithm of the perplexity."""
    return _loss(model(pieces[:, :-1]), pieces[:, 1:])


def _loss(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten().long())


def measure(model: nn.Module, pieces: torch.Tensor) -> dict[str, float]:
    """Return the perplexity, and the share of characters that are predicted right."""
    loss, right = 0.0, 0
    with torch.inference_mode():
        for some in torch.split(pieces, _TEST_BATCH):
            scores, wanted = model(some[:, :-1]), some[:, 1:]
            loss += _loss(scores, wanted).item() * len(some)
            right += int((scores.argmax(2) == wanted).sum())
    return {"accuracy": right / (len(pieces) * CONTEXT), "perplexity": math.exp(loss / len(pieces))}


def main(worker: Worker) -> None:
    text = cut(read()).to(worker.device)
    torch.manual_seed(worker.seed)
    model = CharTransformer().to(worker.device)
    rate = said_rate(worker.options) or RATE
    optimizer = worker.attach(model, torch.optim.AdamW(model.parameters(), lr=rate))
    worker.probe((text.train,), lambda batch: loss_of(model, batch[0]))
    sample = text.test[:_SAMPLE]
    for (pieces,) in worker.batches((text.train,), said_batch(worker.options) or BATCH_SIZE):
        loss = loss_of(model, pieces)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(objective=loss)
        worker.evaluate(accuracy=lambda: measure(model, sample)["accuracy"])
    worker.report(**measure(model, text.test))
