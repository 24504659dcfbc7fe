"""How many bytes a contribution of an embedding has, with sparse and with dense gradients.

Run with: python -m benchmarks.sparse_bytes
"""

import json
from typing import Any

import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.io.memory import MemoryLink
from polyrhythm.wire.messages import Contribution, JobSpec, encode_head

WORDS, WIDTH, BATCH, ROUNDS = 100_000, 64, 256, 3


def measure(*, sparse: bool) -> float:
    """The number of bytes in all heads and payloads of a contribution, averaged over some rounds."""
    sent: list[int] = []
    send = MemoryLink.send

    def sending(self: MemoryLink, message: Any, payload: Any = (), **rest: Any) -> None:
        if isinstance(message, Contribution):
            sent.append(len(encode_head(message)) + sum(len(piece.memory) for piece in payload))
        send(self, message, payload, **rest)

    def main(worker: Worker) -> None:
        model = torch.nn.Embedding(WORDS, WIDTH, sparse=sparse)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        generator = torch.Generator().manual_seed(1)
        for _ in range(ROUNDS):
            words = torch.randint(WORDS, (BATCH,), generator=generator)
            model(words).square().mean().backward()
            optimizer.step(points=BATCH)

    MemoryLink.send = sending  # type: ignore[method-assign]
    try:
        run_inline(JobSpec(job="bytes", servers=2, rounds=ROUNDS), main, timeout_s=120)
    finally:
        MemoryLink.send = send  # type: ignore[method-assign]
    return sum(sent) / ROUNDS


if __name__ == "__main__":
    found = {
        "embedding_nbytes": WORDS * WIDTH * 4,
        "words_per_step": BATCH,
        "sparse_nbytes": measure(sparse=True),
        "dense_nbytes": measure(sparse=False),
    }
    print(json.dumps(found))
