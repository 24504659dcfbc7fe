"""Buffers under every policy: constant buffers are sent once, and each other buffer is averaged
over the workers that change it."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import NotFinite
from polyrhythm.io.memory import MemoryLink
from polyrhythm.wire.messages import Contribution, JobSpec, Seed

LENGTH, WIDTH, CLASSES = 6, 8, 4
POLICIES = [
    ("bsp", "gradient"),
    ("bsp", "local"),
    ("ssp:2", "gradient"),
    ("ssp:2", "local"),
    ("asp", "gradient"),
    ("asp", "local"),
    ("psp", "local"),
    ("fsp", "gradient"),
    ("fsp", "local"),
]


class Transformer(nn.Module):
    """A transformer with one causal layer. `unknown` is a placeholder buffer that holds NaN and is
    never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 2, dim_feedforward=16, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(WIDTH, CLASSES)
        mask = torch.full((LENGTH, LENGTH), -math.inf).triu(1)
        self.register_buffer("mask", mask)
        self.register_buffer("numbers", torch.arange(LENGTH))
        self.register_buffer("unknown", torch.full((3,), math.nan))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) + self.positions(self.numbers)
        return self.head(self.layer(hidden, src_mask=self.mask))


def sequences() -> tuple[torch.Tensor]:
    """Make sequences in which each token is the previous token plus one."""
    starts = torch.arange(48) % CLASSES
    return ((starts[:, None] + torch.arange(LENGTH + 1)) % CLASSES,)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.reshape(-1, CLASSES), tokens[:, 1:].reshape(-1))


def job(sync: str, kind: str, **fields: Any) -> JobSpec:
    given = {"workers": 2, "servers": 2, "heartbeat_s": 20.0, "rounds": 12, "interval": "20ms"}
    timer = {} if sync == "psp" else {"timer": "off"}
    return JobSpec(job="buffers", sync=sync, kind=kind, **{**given, **timer, **fields})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """Record every seed and every slice that a worker sends, with the size of its payload in
    bytes."""
    found: list[tuple[Any, int]] = []
    send = MemoryLink.send

    def record(self: MemoryLink, message: Any, payload: Sequence[Any] = (), **options: Any) -> None:
        if isinstance(message, Contribution | Seed):
            nbytes = sum(len(getattr(part, "memory", part)) for part in payload)
            found.append((message, nbytes))
        send(self, message, payload, **options)

    monkeypatch.setattr(MemoryLink, "send", record)
    return found


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_a_transformer_with_a_mask_of_minus_infinity_trains(
    sync: str, kind: str, sent: list[tuple[Any, int]]
) -> None:
    """A worker sends its constant buffers only once, with the seed, and their values stay the
    same."""
    losses: dict[str, list[float]] = {}
    models: dict[str, Transformer] = {}
    seeding = threading.Lock()

    def main(worker: Worker) -> None:
        # one worker at a time, because inline workers share torch's random number generator
        with seeding:
            torch.manual_seed(worker.seed)
            model = models[worker.name] = Transformer()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
        mine = losses[worker.name] = []
        for (tokens,) in worker.batches(sequences(), batch_size=8):
            loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step(objective=loss)
            mine.append(loss.item())

    run_inline(job(sync, kind), main, timeout_s=60)
    fresh = Transformer()
    for model in models.values():
        assert torch.equal(model.mask, fresh.mask)
        assert torch.equal(model.numbers, fresh.numbers)
        assert bool(model.unknown.isnan().all())
    assert all(math.isfinite(loss) for mine in losses.values() for loss in mine)
    parameters = sum(p.numel() * 4 for p in fresh.parameters())
    for name in {(m.worker, m.incarnation, m.sequence) for m, _ in sent if m.sequence}:
        nbytes = [n for m, n in sent if (m.worker, m.incarnation, m.sequence) == name]
        assert parameters <= sum(nbytes) < parameters + 64 * len(list(fresh.parameters()))
    seeds = sum(nbytes for message, nbytes in sent if isinstance(message, Seed))
    assert seeds >= parameters + sum(b.numel() * b.element_size() for b in fresh.buffers())


def counting(
    changes: Callable[[Worker, nn.Module, int], None], found: dict[str, dict[str, torch.Tensor]]
) -> Callable[[Worker], None]:
    """Return a training loop that changes buffers before every step."""

    def main(worker: Worker) -> None:
        model = nn.Linear(2, 1)
        model.register_buffer("one", torch.zeros(3))
        model.register_buffer("other", torch.full((2,), 10.0))
        model.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        inner = torch.optim.SGD(model.parameters(), lr=0.001)
        optimizer = worker.attach(model, inner, buffers={"*": "mean"})
        step = 0
        while not worker.stopped:
            model(torch.ones(2, 2)).sum().backward()
            changes(worker, model, step)
            step += 1
            optimizer.step(points=1 if worker.name == "worker-0" else 3)
        found[worker.name] = {name: b.clone() for name, b in model.named_buffers()}

    return main


@pytest.mark.parametrize("kind", ["gradient", "local"])
def test_a_buffer_is_averaged_over_the_workers_that_change_it(kind: str) -> None:
    """Only worker-0 changes `one`, and only worker-1 changes `other`. The mean of `one` must not
    include worker-1, which did not change it."""
    found: dict[str, dict[str, torch.Tensor]] = {}

    def changes(worker: Worker, model: Any, step: int) -> None:
        if worker.name == "worker-0":
            model.one += 1
            model.count[0] += 1
        else:
            model.other -= 0.5
            model.count[1] += 2

    run_inline(job("bsp", kind, rounds=8), counting(changes, found), timeout_s=30)
    for buffers in found.values():
        assert buffers["one"].tolist() == [8.0] * 3
        assert buffers["other"].tolist() == [6.0] * 2


def test_buffers_that_every_worker_changes_are_averaged_by_points() -> None:
    found: dict[str, dict[str, torch.Tensor]] = {}

    def changes(worker: Worker, model: Any, step: int) -> None:
        model.one += 4.0 if worker.name == "worker-0" else 8.0

    run_inline(job("bsp", "gradient", rounds=1), counting(changes, found), timeout_s=30)
    assert found["worker-0"]["one"].tolist() == [7.0] * 3


def test_without_rounds_a_worker_that_does_not_change_a_buffer_does_not_dilute_it() -> None:
    """With P workers that change a buffer, each change is scaled by 1/P, so the changes of all P
    workers add up to their mean. Workers that do not change the buffer are not counted. In the
    first steps, a worker that has not contributed yet may still be counted."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    taken: list[int] = []

    def changes(worker: Worker, model: Any, step: int) -> None:
        if worker.name == "worker-0":
            model.one += 1
            taken.append(step)

    run_inline(job("ssp:0", "gradient", rounds=20), counting(changes, found), timeout_s=30)
    most = max(float(buffers["one"][0]) for buffers in found.values())
    assert len(taken) - 3 <= most <= len(taken)


@pytest.mark.parametrize(
    ("sync", "kind"), [("bsp", "gradient"), ("bsp", "local"), ("psp", "local")]
)
def test_a_buffer_that_begins_to_change_late_is_sent_from_then_on(
    sync: str, kind: str, sent: list[tuple[Any, int]]
) -> None:
    found: dict[str, dict[str, torch.Tensor]] = {}

    def changes(worker: Worker, model: Any, step: int) -> None:
        if worker.version >= 6 and not worker.stopped:
            model.one += 1

    run_inline(job(sync, kind, rounds=10), counting(changes, found), timeout_s=30)
    for buffers in found.values():
        if sync == "bsp":
            assert buffers["one"].tolist() == [4.0] * 3
        else:
            assert buffers["one"][0] > 0 and bool(buffers["one"].isfinite().all())
    early = [n for m, n in sent if isinstance(m, Contribution) and m.round <= 6 and m.parts == ()]
    assert early and not any(early), "nothing of a constant buffer travels"


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_a_buffer_that_becomes_nan_is_reported(sync: str, kind: str) -> None:
    def changes(worker: Worker, model: Any, step: int) -> None:
        if step == 3:
            model.other[1] = math.nan

    with pytest.raises(NotFinite, match="the buffer 'other' became NaN or infinite"):
        run_inline(job(sync, kind), counting(changes, {}), timeout_s=30)


def test_integer_buffers_take_the_maximum_over_the_workers_that_changed_them() -> None:
    found: dict[str, dict[str, torch.Tensor]] = {}

    def changes(worker: Worker, model: Any, step: int) -> None:
        model.count[0] += 1 if worker.name == "worker-0" else 5

    run_inline(job("bsp", "gradient", rounds=4), counting(changes, found), timeout_s=30)
    for buffers in found.values():
        assert buffers["count"].tolist() == [20, 0]
