"""A transformer that continues a sequence: tied weights and a causal mask.

polyrhythm train examples/transformer.py

The matrix of the embedding is also the matrix of the last layer. Servers hold it once, and the
model that the job saves contains it under both names. The mask is a buffer of the model.
"""

import torch
from torch import nn

import polyrhythm as pr

DEFAULTS = {"epochs": 5}
TOKENS, PERIOD, LENGTH, TRAIN, TEST = 8, 3, 9, 1_500, 300


def make_data() -> torch.Tensor:
    """Sequences that repeat three random tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(TOKENS, (TRAIN + TEST, PERIOD), generator=generator)
    return tokens.repeat(1, LENGTH // PERIOD + 1)[:, : LENGTH + 1]


class Transformer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.tokens.weight  # tied
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        # the mask contains minus infinity and zero
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        inner = self.tokens(tokens) + self.places(places)
        return self.head(self.layers(inner, mask=self.mask, is_causal=True))


def main(worker: pr.Worker) -> None:
    tokens = make_data().to(worker.device)
    torch.manual_seed(worker.seed)
    model = Transformer().to(worker.device)
    optimizer = worker.attach(model, torch.optim.AdamW(model.parameters(), lr=5e-3))
    for (batch,) in worker.batches((tokens[:TRAIN],), batch_size=32):
        scores, wanted = model(batch[:, :-1]), batch[:, 1:]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step(objective=loss)
    with torch.no_grad():
        guessed = model(tokens[TRAIN:, :-1]).argmax(2)
    # the tokens before the first repetition cannot be known
    right = (guessed == tokens[TRAIN:, 1:])[:, PERIOD - 1 :]
    worker.report(accuracy=right.float().mean().item())
