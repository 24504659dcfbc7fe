"""Ordinary torch code works: a training loop gives the same model in one process and as a job.

Every loop runs twice: in one process with torch's own optimizer, and as a job with two workers and
two servers. Both workers visit the same points, so the mean of their gradients equals the gradient
of the single process.
"""

import copy
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import lr_scheduler as ls
from torch.utils.data import DataLoader, Dataset, TensorDataset

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec

State = dict[str, torch.Tensor]
Loop = Callable[[nn.Module, torch.optim.Optimizer], None]
STEPS = 6
WORKERS = 2


def points(step: int, shape: tuple[int, ...] = (8, 6)) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(step))


def labels(step: int, count: int = 8, classes: int = 4) -> torch.Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(1000 + step))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def settle(model: nn.Module) -> nn.Module:
    """Set the initial parameters without torch's global random number generator, which threads
    share."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def together(model: nn.Module, make: Any, loop: Loop, slice_nbytes: int = 512) -> State:
    """Run the loop on every worker of a job, and return the state of the model."""
    states: dict[str, State] = {}

    def main(worker: Worker) -> None:
        mine = copy.deepcopy(model)
        loop(mine, worker.attach(mine, make(mine)))
        assert worker.version == STEPS
        states[worker.name] = {name: t.clone() for name, t in mine.state_dict().items()}

    job = JobSpec(
        job="ordinary", workers=WORKERS, servers=2, rounds=STEPS, slice_nbytes=slice_nbytes
    )
    run_inline(job, main, timeout_s=300)
    first, second = states.values()
    assert all(torch.equal(first[name], second[name]) for name in first)
    return first


def alone(model: nn.Module, make: Any, loop: Loop) -> State:
    mine = copy.deepcopy(model)
    loop(mine, make(mine))
    return mine.state_dict()


def assert_same(model: nn.Module, make: Any, loop: Loop, slice_nbytes: int = 512) -> State:
    theirs, ours = alone(model, make, loop), together(model, make, loop, slice_nbytes)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        tolerance = {"rtol": 2e-2, "atol": 1e-2} if tensor.dtype == torch.bfloat16 else {}
        torch.testing.assert_close(ours[name], tensor, **tolerance)
    assert any(not torch.equal(theirs[name], t) for name, t in model.state_dict().items())
    return ours


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(points(step)), labels(step)).backward()
        optimizer.step()


def test_accumulated_gradients_give_the_same_model() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.zero_grad()
            for micro in range(3):
                loss = F.cross_entropy(model(points(3 * step + micro)), labels(3 * step + micro))
                (loss / 3).backward()
            optimizer.step()

    assert_same(settle(network()), sgd, loop)


@pytest.mark.parametrize("how", ["norm", "value"])
def test_clipped_gradients_give_the_same_model(how: str) -> None:
    """The limit is so low that every gradient exceeds it."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.zero_grad()
            (100 * F.cross_entropy(model(points(step)), labels(step))).backward()
            if how == "norm":
                assert nn.utils.clip_grad_norm_(model.parameters(), 0.5) > 0.5
            else:
                nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()

    assert_same(settle(network()), sgd, loop)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: ls.StepLR(o, 2, 0.1),
    "cosine": lambda o: ls.CosineAnnealingLR(o, STEPS),
    "warmup": lambda o: ls.LambdaLR(o, lambda step: min(1.0, (step + 1) / 4)),
    "one-cycle": lambda o: ls.OneCycleLR(o, 0.3, total_steps=STEPS + 1, cycle_momentum=False),
    "sequence": lambda o: ls.SequentialLR(
        o, [ls.ConstantLR(o, 0.1), ls.ExponentialLR(o, 0.5)], milestones=[2]
    ),
    "plateau": lambda o: ls.ReduceLROnPlateau(o, patience=0),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_sets_the_learning_rate(name: str) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scheduler = SCHEDULERS[name](optimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(points(step)), labels(step)).backward()
            optimizer.step()
            scheduler.step(*([1.0] if name == "plateau" else []))

    assert_same(settle(network()), sgd, loop)


def test_a_closure_is_called() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(points(step)), labels(step))
                loss.backward()
                return loss

            assert optimizer.step(closure) > 0

    assert_same(settle(network()), sgd, loop)


class Tied(nn.Module):
    """A model with an embedding whose table is also the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 4, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.embedding(words))))


def test_tied_weights_stay_tied() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(labels(step)), labels(step + 1)).backward()
            optimizer.step()
        assert model.head.weight is model.embedding.weight

    state = assert_same(settle(Tied()), sgd, loop)
    assert torch.equal(state["head.weight"], state["embedding.weight"])


def test_frozen_parameters_do_not_change() -> None:
    """The optimizer is given all parameters. It must not apply weight decay to the frozen ones."""
    model = settle(network())
    model[0].requires_grad_(False)

    def decaying(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)

    state = assert_same(model, decaying, plain)
    assert torch.equal(state["0.weight"], model[0].weight)


def test_unfreezing_a_parameter_after_attach_is_refused() -> None:
    """The servers would not fold gradients of a parameter that was frozen when the model was
    attached."""
    model = settle(network())
    model[0].requires_grad_(False)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model[0].requires_grad_(True)
        plain(model, optimizer)

    with pytest.raises(
        UsageError, match="the parameter .* requires gradients now, and was frozen when"
    ):
        together(model, sgd, loop)


class Branches(nn.Module):
    """A model with two branches that only some steps use, and one that no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(6, 4) for _ in range(3))

    def forward(self, points: torch.Tensor, taken: int) -> torch.Tensor:
        return self.ways[taken](points)


DECAYING: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1
    ),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.1, weight_decay=0.1),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("slice_nbytes", [128, 4096], ids=["sliced", "whole"])
@pytest.mark.parametrize("name", DECAYING)
def test_unused_parameters_do_not_change(name: str, slice_nbytes: int) -> None:
    """Neither weight decay nor momentum moves a parameter that has no gradient. Adam counts its
    steps per slice, so a parameter that was unused for some steps may differ from training in one
    process."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        before = [{n: t.clone() for n, t in way.state_dict().items()} for way in model.ways]
        for step in range(STEPS):
            taken = 0 if step < 4 else 1
            optimizer.zero_grad()
            F.cross_entropy(model(points(step), taken), labels(step)).backward()
            optimizer.step()
            for way in (way for way in range(3) if way != taken):
                for key, tensor in model.ways[way].state_dict().items():
                    assert torch.equal(tensor, before[way][key]), (step, way, key)
            before[taken] = {n: t.clone() for n, t in model.ways[taken].state_dict().items()}

    if name.startswith("adam"):
        together(settle(Branches()), DECAYING[name], loop, slice_nbytes=slice_nbytes)
    else:
        assert_same(settle(Branches()), DECAYING[name], loop, slice_nbytes=slice_nbytes)


def test_a_gradient_that_only_one_worker_has_is_averaged_with_zero() -> None:
    """The other worker contributes zero to the mean, so half of the gradient is folded."""
    final: list[float] = []

    def main(worker: Worker) -> None:
        parameter, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
        model = nn.ParameterList([parameter, other])
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1.0))
        other.grad = torch.zeros(2)
        if worker.name == "worker-1":
            parameter.grad = torch.full((3,), 0.5)
        optimizer.step(points=1)
        final.extend(parameter.tolist())

    run_inline(JobSpec(job="one", workers=2, servers=1, rounds=1), main, timeout_s=60)
    assert final == [0.75] * 6


def test_a_gradient_of_zero_still_decays_the_parameter() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))])

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(STEPS):
            for parameter in model:
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()

    assert_same(model, DECAYING["sgd"], loop)


def test_hundreds_of_small_tensors_give_the_same_model() -> None:
    model = settle(nn.Sequential(*(nn.Linear(6, 6) for _ in range(200)), nn.Linear(6, 4)))
    with torch.no_grad():
        for layer in model:
            nn.init.eye_(layer.weight)
    assert len(list(model.parameters())) == 402
    assert_same(model, lambda model: torch.optim.SGD(model.parameters(), lr=1e-3), plain)


def test_channels_last_gives_the_same_model() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    model = settle(model).to(memory_format=torch.channels_last)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            images = points(step, (8, 3, 8, 8)).to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels(step)).backward()
            optimizer.step()
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)

    assert_same(model, sgd, loop)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_dtypes_give_the_same_model(dtype: torch.dtype) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(points(step).to(dtype)), labels(step)).backward()
            optimizer.step()

    state = assert_same(settle(network()).to(dtype), sgd, loop)
    assert all(tensor.dtype == dtype for tensor in state.values())


def test_autocast_gives_the_same_model() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(points(step))
            assert out.dtype == torch.bfloat16
            F.cross_entropy(out.float(), labels(step)).backward()
            optimizer.step()

    assert_same(settle(network()), sgd, loop)


def test_parametrized_weights_give_the_same_model() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)))
    assert_same(settle(model), sgd, plain)


def test_averaged_weights_of_swa_utils() -> None:
    """`swa_utils` keeps its own copy of the weights, which the exchange does not touch."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        average = torch.optim.swa_utils.AveragedModel(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(points(step)), labels(step)).backward()
            optimizer.step()
            average.update_parameters(model)
        model.load_state_dict(average.module.state_dict())

    assert_same(settle(network()), sgd, loop)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_compiled_models_compute_with_the_parameters_that_arrive() -> None:

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        plain(torch.compile(model), optimizer)

    assert_same(settle(network()), sgd, loop)


class Squares(Dataset[dict[str, torch.Tensor]]):
    """A data set whose samples are dictionaries, computed on access."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.tensor([index / 90.0])
        return {"x": x, "y": x.square()}


def test_a_map_style_data_set_with_samples_of_its_own() -> None:
    seen: list[float] = []

    def main(worker: Worker) -> None:
        model = settle(nn.Linear(1, 1))
        optimizer = worker.attach(model, sgd(model))
        for batch in worker.batches(Squares(), batch_size=8):
            assert batch.keys() == {"x", "y"} and batch["x"].shape[1:] == (1,)
            seen.extend(batch["x"].flatten().tolist())
            F.mse_loss(model(batch["x"]), batch["y"]).backward()
            optimizer.step()

    run_inline(JobSpec(job="dicts", workers=2, servers=1, epochs=2), main, timeout_s=60)
    assert sorted(seen) == sorted([(torch.tensor(n) / 90).item() for n in range(90)] * 2)


def test_a_data_loader_with_worker_processes() -> None:
    """The loader is used for training, where each step is given `points`, and for evaluation."""
    losses: dict[str, float] = {}
    numbers = torch.arange(40.0)[:, None] / 40

    def main(worker: Worker) -> None:
        model = settle(nn.Linear(1, 1))
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.7))
        loader = DataLoader(TensorDataset(numbers, 2 * numbers), batch_size=10, num_workers=2)
        with warnings.catch_warnings():
            # Python warns about forks in a process with threads, and the loader forks
            warnings.simplefilter("ignore")
            while not worker.stopped:
                for x, y in loader:
                    F.mse_loss(model(x), y).backward()
                    optimizer.step(points=len(x))
            losses[worker.name] = sum(F.mse_loss(model(x), y).item() for x, y in loader)

    run_inline(JobSpec(job="loader", workers=1, servers=1, rounds=16), main, timeout_s=60)
    assert losses["worker-0"] < 0.05
