"""Jobs with sparse gradients of embeddings give the models that torch gives."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import Refused, UsageError
from polyrhythm.io.memory import MemoryLink
from polyrhythm.wire.messages import Contribution, JobSpec

ROUNDS, WORDS, WIDTH = 4, 300, 8


class Bag(nn.Module):
    """Embeddings of words, their mean, and a linear layer."""

    def __init__(self, dense: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.unused = nn.EmbeddingBag(40, WIDTH, sparse=True)
        self.last = nn.Linear(WIDTH, 1) if dense else None
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mean = self.words(words).mean(1)
        return mean.sum(1) if self.last is None else self.last(mean)


def words(step: int, worker: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1_000 * step + worker)
    return torch.randint(WORDS, (6, 4), generator=generator)


def loss_of(model: nn.Module, step: int, worker: int) -> torch.Tensor:
    return (model(words(step, worker)) - 1).square().mean()


MAKE: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1, lr_decay=0.1),
    "SparseAdam": lambda model: torch.optim.SparseAdam(list(model.parameters()), lr=0.1),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1),
    "decay": lambda model: torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.01),
}
ROWS = ("SGD", "momentum", "Adagrad", "SparseAdam")
State = dict[str, torch.Tensor]


def alone(name: str, workers: int) -> State:
    """The model of one process whose loss is the mean over all workers' points."""
    model = Bag(name != "SparseAdam")
    optimizer = MAKE[name](model)
    for step in range(ROUNDS):
        optimizer.zero_grad()
        (sum(loss_of(model, step, worker) for worker in range(workers)) / workers).backward()
        if name not in ROWS:
            model.words.weight.grad = model.words.weight.grad.to_dense()
        optimizer.step()
    return model.state_dict()


def computed(model: nn.Module, step: int, worker: int) -> torch.Tensor:
    """Compute the loss of a step and its gradients."""
    loss = loss_of(model, step, worker)
    loss.backward()
    return loss


def together(name: str, workers: int, *, closure: bool = False, **more: Any) -> dict[str, State]:
    states: dict[str, State] = {}

    def main(worker: Worker) -> None:
        model = Bag(name != "SparseAdam")
        optimizer = worker.attach(model, MAKE[name](model))
        for step in range(ROUNDS):
            compute = partial(computed, model, step, int(worker.name[-1]))
            if closure:
                optimizer.step(compute, points=6)
            else:
                compute()
                optimizer.step(points=6)
        states[worker.name] = copy.deepcopy(model.state_dict())

    fields = {"servers": 2, "rounds": ROUNDS, "slice_nbytes": 2_048, "heartbeat_s": 20.0, **more}
    run_inline(JobSpec(job="sparse", workers=workers, **fields), main, timeout_s=60)
    return states


def assert_close(one: State, other: State) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"deterministic": True, "timer": "off"},
        {"replicas": 1},
        {"on_nan": "skip"},
        {"servers": 1},
    ],
    ids=lambda more: next(iter(more), "plain"),
)
def test_a_round_of_a_job_equals_a_step_of_torch(
    name: str, workers: int, more: dict[str, Any]
) -> None:
    expected = alone(name, workers)
    for state in together(name, workers, **more).values():
        assert_close(state, expected)


@pytest.mark.parametrize("name", ["AdamW", "decay"])
def test_for_other_optimizers_the_gradient_is_made_dense_and_a_line_says_so(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for state in together(name, 2).values():
        assert_close(state, alone(name, 2))
    lines = [line for line in capfd.readouterr().err.splitlines() if "sparse gradient" in line]
    assert len(lines) == 1, lines
    assert "the sparse gradient of 'words.weight' is made dense for" in lines[0]


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize(
    ("name", "dense"), [("AdamW", True), ("decay", True), ("momentum", False), ("Adagrad", False)]
)
def test_a_local_optimizer_gets_a_dense_gradient_only_if_it_refuses_a_sparse_one(
    name: str, dense: bool, closure: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    states = together(name, 1, closure=closure, kind="local")
    assert_close(states["worker-0"], alone(name, 1))
    assert (
        "the sparse gradient of 'words.weight' is made dense" in capfd.readouterr().err
    ) == dense


@pytest.mark.parametrize("kind", ["gradient", "local"])
@pytest.mark.parametrize("sync", ["fsp", "asp", "ssp:1"])
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_a_model_with_sparse_gradients_learns_under_every_kind_of_policy(
    name: str, sync: str, kind: str
) -> None:
    """Under fsp a contribution contains the gradients of several micro-batches."""
    data = torch.cat([words(step, 0) for step in range(8)])
    losses: list[float] = []

    def main(worker: Worker) -> None:
        model = Bag(dense=True)
        optimizer = worker.attach(model, MAKE[name](model))
        before = (model(data) - 1).square().mean().item()
        for (batch,) in worker.batches((data,), batch_size=8):
            loss = (model(batch) - 1).square().mean()
            loss.backward()
            optimizer.step(objective=loss)
        losses.append((model(data) - 1).square().mean().item() / before)

    # under fsp the number of rounds in a pass depends on the load
    goal = {"interval": "5ms", "rounds": 25} if sync == "fsp" else {"epochs": 5}
    job = JobSpec(job="j", workers=2, servers=2, sync=sync, kind=kind, **goal)
    run_inline(job, main, timeout_s=60)
    assert len(losses) == 2 and max(losses) < 0.5


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", ["SGD", "SparseAdam", "decay"])
def test_local_steps_change_rare_rows_as_much_as_in_torch(name: str, several: bool) -> None:
    """A row that only one worker has used changes as it does for this worker alone. Weight decay
    changes every row, so rows are averaged over all workers."""

    def main(worker: Worker) -> None:
        model = Bag(dense=False)
        optimizer = worker.attach(model, MAKE[name](model), name="bag" if several else "")
        if several:
            other = nn.Linear(1, 1)
            worker.attach(other, torch.optim.SGD(other.parameters(), lr=0.1), name="other")
        before = model.words.weight.detach().clone()
        mine = torch.arange(10) + 10 * int(worker.name[-1])
        for (_,) in worker.batches((torch.arange(8),), batch_size=8):
            (model.words(mine) - 1).square().sum().backward()
            own = copy.deepcopy(model)
            step = MAKE[name](own)
            for ours, theirs in zip(own.parameters(), model.parameters(), strict=True):
                ours.grad = theirs.grad
            if name == "decay":
                own.words.weight.grad = own.words.weight.grad.to_dense()
            step.step()
            optimizer.step()
        found[worker.name] = (own.words.weight - before)[mine], (model.words.weight - before)[mine]

    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    run_inline(JobSpec(job="j", workers=2, kind="local", rounds=1), main, timeout_s=60)
    assert len(found) == 2
    for alone_, together_ in found.values():
        close = torch.allclose(alone_, together_, atol=1e-6)
        assert close == (name != "decay") and bool(together_.any())


def test_only_rows_of_the_gradient_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int | None, int]] = []
    send = MemoryLink.send

    def sending(self: MemoryLink, message: Any, payload: Any = (), **rest: Any) -> None:
        if isinstance(message, Contribution):
            sent.append((message.indices, sum(len(piece.memory) for piece in payload)))
        send(self, message, payload, **rest)

    monkeypatch.setattr(MemoryLink, "send", sending)
    together("SGD", 1)
    tables = [(count, nbytes) for count, nbytes in sent if count is not None]
    rows = sum(count for count, _ in tables if count > 0)
    assert 0 < rows <= ROUNDS * 24, "a step has 24 words"
    assert sum(nbytes for _, nbytes in tables) == rows * (8 + 4 * WIDTH)
    assert any(count == -1 for count, _ in tables), "the table that is not used has no gradient"


def test_a_dense_gradient_is_refused_for_sparse_adam() -> None:
    def main(worker: Worker) -> None:
        model = nn.Embedding(10, 4)
        optimizer = worker.attach(model, torch.optim.SparseAdam(list(model.parameters())))
        model(torch.tensor([1])).sum().backward()
        optimizer.step()

    with pytest.raises(UsageError, match="'weight' is dense, and SparseAdam takes sparse"):
        run_inline(JobSpec(job="dense", rounds=2, heartbeat_s=20.0), main, timeout_s=60)


def test_a_tied_table_contributes_whole_gradients() -> None:
    """The table is also the weight of a linear layer, so torch makes its gradient dense."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(12, 4, sparse=True)
            self.out = nn.Linear(4, 12, bias=False)
            self.out.weight = self.table.weight
            with torch.no_grad():
                self.table.weight.copy_(torch.linspace(-1, 1, 48).view(12, 4))

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.out(self.table(words))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        words = torch.tensor([number, 2 * number])
        nn.functional.cross_entropy(model(words), words).backward()
        optimizer.step()

    expected = Tied()
    plain = torch.optim.SGD(expected.parameters(), lr=0.5)
    for number in range(3):
        step(expected, plain, number)

    def main(worker: Worker) -> None:
        model = Tied()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.5))
        for number in range(3):
            step(model, optimizer, number)
        torch.testing.assert_close(model.table.weight, expected.table.weight)

    run_inline(JobSpec(job="tied", rounds=3, heartbeat_s=20.0), main, timeout_s=60)


@pytest.mark.parametrize("on_nan", ["refuse", "skip"])
def test_a_sparse_gradient_that_is_not_finite_is_found(on_nan: str) -> None:
    def main(worker: Worker) -> None:
        model = Bag(dense=True)
        optimizer = worker.attach(model, MAKE["SGD"](model))
        step = 0
        while not worker.stopped:
            loss_of(model, step, 0).backward()
            if step == 1:
                model.words.weight.grad._values()[0, 0] = float("nan")
            optimizer.step(points=6)
            step += 1
        assert bool(model.words.weight.isfinite().all())

    job = JobSpec(job="nan", rounds=3, on_nan=on_nan, heartbeat_s=20.0)
    if on_nan == "skip":
        run_inline(job, main, timeout_s=60)
        return
    with pytest.raises(Exception, match="step 2: the gradient of 'words.weight' holds NaN"):
        run_inline(job, main, timeout_s=60)


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_with_several_models_sparse_gradients_are_made_dense_and_the_models_learn(
    sync: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data = torch.cat([words(step, 0) for step in range(8)])
    losses: list[float] = []

    def main(worker: Worker) -> None:
        bag, linear = Bag(dense=True), nn.Linear(4, 1)
        with torch.no_grad():
            linear.weight.zero_()
        first = worker.attach(bag, MAKE[name](bag), name="bag")
        second = worker.attach(linear, MAKE["momentum"](linear), name="linear")

        def losses_of(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (bag(batch) - 1).square().mean(), (linear(batch / WORDS) - 1).square().mean()

        before = [loss.item() for loss in losses_of(data)]
        for (batch,) in worker.batches((data,), batch_size=8):
            losses_of(batch)[0].backward()
            first.step()
            losses_of(batch)[1].backward()
            second.step()
        after = [loss.item() for loss in losses_of(data)]
        losses.extend(now / then for now, then in zip(after, before, strict=True))

    fields = {"servers": 2, "sync": sync, "epochs": 10, "heartbeat_s": 20.0}
    run_inline(JobSpec(job="several", workers=2, **fields), main, timeout_s=60)
    assert len(losses) == 4 and max(losses) < 0.5, losses
    lines = [line for line in capfd.readouterr().err.splitlines() if "sparse gradient" in line]
    assert len(lines) == 1, lines
    assert f"'words.weight' is made dense for {name}; in a job with several models" in lines[0]


def test_sparse_adam_is_refused_in_a_job_with_several_models() -> None:
    def main(worker: Worker) -> None:
        bag, linear = Bag(dense=False), nn.Linear(4, 1)
        first = worker.attach(bag, MAKE["SparseAdam"](bag), name="bag")
        worker.attach(linear, MAKE["SGD"](linear), name="linear")
        loss_of(bag, 0, 0).backward()
        first.step(points=6)

    job = JobSpec(job="several", rounds=2, heartbeat_s=20.0)
    with pytest.raises(Refused, match="or the job has several models. Optimize that tensor with"):
        run_inline(job, main, timeout_s=60)
