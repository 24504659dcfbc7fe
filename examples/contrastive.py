"""Contrastive learning with a queue of keys (momentum contrast). Each worker has a queue of its own.

    polyrhythm train examples/contrastive.py
    polyrhythm train examples/contrastive.py --sync asp

A network learns without labels: two random views of an image get similar features, and different
images get different ones. The features of earlier images, the keys, are in a queue, which is a
buffer of the model. The mean of the queues of several workers would be no queue of keys: its rows
would be shorter than 1. The script needs PyTorch and scikit-learn.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import polyrhythm as pr

DEFAULTS = {"epochs": 10}
TRAIN, LIGHTS, KEYS, WIDTH, TEMPERATURE = 1_300, 6, 512, 32, 0.2


def make_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Digits, each in a light of its own, and the patterns of which every light consists."""
    generator = torch.Generator().manual_seed(0)
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=generator)
    images = torch.tensor(digits.data / 16, dtype=torch.float32)[order]
    patterns = 0.12 * torch.randn(LIGHTS, images.shape[1], generator=generator)
    light = torch.randn(len(images), LIGHTS, generator=generator) @ patterns
    return images + light, torch.tensor(digits.target)[order], patterns


def make_encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, WIDTH))


class Contrast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.key_encoder = make_encoder(), make_encoder()
        self.key_encoder.load_state_dict(self.encoder.state_dict())
        self.key_encoder.requires_grad_(False)
        self.register_buffer("queue", normalize(torch.randn(KEYS, WIDTH)))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def forward(self, view: torch.Tensor, other_view: torch.Tensor) -> torch.Tensor:
        """The loss of finding the key of the same image among the keys of other images."""
        queries = normalize(self.encoder(view))
        with torch.no_grad():
            keys = normalize(self.key_encoder(other_view))
        same = (queries * keys).sum(1, keepdim=True)
        scores = torch.cat([same, queries @ self.queue.clone().T], 1)
        self.put(keys)
        right = torch.zeros(len(keys), dtype=torch.long, device=keys.device)
        return cross_entropy(scores / TEMPERATURE, right)

    def put(self, keys: torch.Tensor) -> None:
        """Replace the oldest keys of the queue by these."""
        places = (self.position + torch.arange(len(keys), device=keys.device)) % KEYS
        self.queue[places] = keys
        self.position += len(keys)

    @torch.no_grad()
    def follow(self, momentum: float = 0.9) -> None:
        """Move the encoder of the keys some of the way to the trained encoder."""
        pairs = zip(self.key_encoder.parameters(), self.encoder.parameters(), strict=True)
        for slow, fast in pairs:
            slow.lerp_(fast, 1 - momentum)


@torch.no_grad()
def accuracy(encoder: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of test images whose label most of the five nearest training images have."""
    features = normalize(encoder(images))
    nearest = (features[TRAIN:] @ features[:TRAIN].T).topk(5).indices
    return (labels[nearest].mode(1).values == labels[TRAIN:]).float().mean().item()


def main(worker: pr.Worker) -> None:
    images, labels, patterns = (tensor.to(worker.device) for tensor in make_data())

    def view(images: torch.Tensor) -> torch.Tensor:
        """The images in another light, with noise."""
        light = torch.randn(len(images), LIGHTS, device=images.device) @ patterns
        return images + light + 0.1 * torch.randn_like(images)

    torch.manual_seed(worker.seed)
    model = Contrast().to(worker.device)
    optimizer = worker.attach(
        model,
        torch.optim.Adam(model.encoder.parameters(), lr=2e-3),
        buffers={"queue": "local", "position": "local"},  # as without `buffers`
    )
    torch.manual_seed(worker.seed + worker.rank)  # every worker makes other views
    for (batch,) in worker.batches((images[:TRAIN],), batch_size=16):
        model.follow()
        loss = model(view(batch), view(batch))
        loss.backward()
        optimizer.step(objective=loss)
    shortest, longest = model.queue.norm(dim=1).aminmax()
    worker.report(
        accuracy=accuracy(model.encoder, images, labels),
        shortest_key=shortest.item(),
        longest_key=longest.item(),
    )
