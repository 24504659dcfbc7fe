"""The updater of an outer optimizer: a step of plain torch whose gradient is the averaged change with
the opposite sign."""

import inspect
from typing import Any

import pytest
import torch

from polyrhythm.core.kinds import _OPTIONS, ELEMENTWISE, NOT_ELEMENTWISE, parse_outer
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.core.server.stepping import Stepping
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.kinds import updaters_for
from polyrhythm.tensors.optimizers import check_optimizer
from polyrhythm.tensors.updater import Updater
from polyrhythm.wire.messages import JobSpec, ModelSpec, OptimizerSpec, TensorSpec

LENGTHS = (7, 64, 3)
GROUPS = (0, 0, 1)
WEIGHTS = (3.0, 1.0, 12.0)
RATE = 0.3
INNER_RATE = 99.0
"""The rate of the workers' own optimizer, which must have no effect."""
TWO_BETAS = {"beta1": 0.9, "beta2": 0.999}


def model_spec(dtype: str = "float32") -> ModelSpec:
    tensors = tuple(
        TensorSpec(f"t{number}", (length,), dtype, group, (1,))
        for number, (length, group) in enumerate(zip(LENGTHS, GROUPS, strict=True))
    )
    return ModelSpec(tensors, OptimizerSpec("Muon", ({"lr": INNER_RATE}, {"lr": INNER_RATE})))


class Server:
    """The slices of a server, folded as the slice store does it."""

    def __init__(self, outer: str, dtype: torch.dtype = torch.float32) -> None:
        spec = model_spec(str(dtype).removeprefix("torch."))
        job = JobSpec(job="j", kind="local", outer=outer)
        layout = lay_out(spec, servers=1, slice_nbytes=256)
        self.random = torch.Generator().manual_seed(3)
        self.held = [
            Held(
                slice_, self.numbers(slice_.length, dtype), torch.zeros(slice_.length, dtype=dtype)
            )
            for slice_ in layout.slices
        ]
        ((self.updater, _),) = updaters_for(layout, job, spec, self.held).values()
        self.stepping = Stepping(job)

    def numbers(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(length, generator=self.random).to(dtype)

    def changes(self) -> list[list[torch.Tensor]]:
        """One random change per worker, for each slice."""
        return [
            [self.numbers(held.slice.length, held.parameters.dtype) for _ in WEIGHTS]
            for held in self.held
        ]

    def fold(self, given: list[list[torch.Tensor]], share: float = 1.0) -> list[torch.Tensor]:
        for held, changes in zip(self.held, given, strict=True):
            for change, weight in zip(changes, WEIGHTS, strict=True):
                self.updater.add(held, change, weight)
                held.weight += weight
        steps = [self.stepping.step(held.weight, INNER_RATE, 1, share) for held in self.held]
        self.updater.fold(self.held, [held.parameters for held in self.held], steps)
        for held in self.held:
            held.empty()
        return [held.parameters.clone() for held in self.held]


def averages(given: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [
        sum(change * weight for change, weight in zip(changes, WEIGHTS, strict=True)) / sum(WEIGHTS)
        for changes in given
    ]


def in_torch(outer: str, parameters: list[torch.Tensor]) -> tuple[list[Any], torch.optim.Optimizer]:
    """The same optimizer in plain torch, which minimises."""
    spec = parse_outer(outer)
    assert spec is not None
    options = {key: value for key, value in spec.groups[0].items() if key != "maximize"}
    params = [torch.nn.Parameter(tensor.clone()) for tensor in parameters]
    return params, getattr(torch.optim, spec.name)(params, foreach=False, **options)


def texts() -> list[str]:
    """`--outer` for every optimizer, and for some with options."""
    plain = [f"{name.lower()}:lr={RATE}" for name in ELEMENTWISE]
    return [
        *plain,
        "nesterov",
        "sgd:lr=0.5,momentum=0.9,weight_decay=0.01",
        "adamw:lr=0.1,beta1=0.5,beta2=0.9,amsgrad=true,weight_decay=0.1",
        "rmsprop:lr=0.1,momentum=0.5,centered=true",
    ]


@pytest.mark.parametrize("outer", texts())
def test_a_fold_is_a_step_of_plain_torch_against_the_averaged_change(outer: str) -> None:
    server = Server(outer)
    params, optimizer = in_torch(outer, [held.parameters for held in server.held])
    for _ in range(6):
        given = server.changes()
        for param, average in zip(params, averages(given), strict=True):
            param.grad = -average
        optimizer.step()
        for got, param in zip(server.fold(given), params, strict=True):
            torch.testing.assert_close(got, param.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sgd_with_rate_1_equals_plain_averaging_bit_for_bit(dtype: torch.dtype) -> None:
    averaging, stepping = Server("off", dtype), Server("sgd:lr=1", dtype)
    for share in (1.0, 1.0, 0.5):
        given = averaging.changes()
        before, after = averaging.fold(given, share), stepping.fold(given, share)
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_parameter_that_no_worker_changes_moves_on_with_its_momentum() -> None:
    """A parameter that no worker has changed moves on with its momentum, as in a plain DiLoCo loop.
    A change of -0.0 does not stand for a missing gradient."""
    server = Server("nesterov:lr=1,momentum=0.5")
    before = [held.parameters.clone() for held in server.held]
    server.fold([[torch.ones(held.slice.length)] * len(WEIGHTS) for held in server.held])
    still = [[torch.full((h.slice.length,), -0.0)] * len(WEIGHTS) for h in server.held]
    for old, new in zip(before, server.fold(still), strict=True):
        torch.testing.assert_close(new - old, torch.full_like(old, 1.5 + 0.25))


@pytest.mark.parametrize("outer", ["nesterov", "adam:lr=0.1", "adagrad:lr=0.1"])
def test_a_server_that_takes_over_the_state_continues_identically(outer: str) -> None:
    one, other = Server(outer), Server(outer)
    for _ in range(3):
        one.fold(one.changes())
    for mine, theirs in zip(other.held, one.held, strict=True):
        mine.parameters.copy_(theirs.parameters)
        state = one.updater.export(theirs)
        assert state, "the outer optimizer has state"
        other.updater.adopt(mine, state)
    given = one.changes()
    results = one.fold(given), other.fold(given)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def kind_of(updater: Updater) -> str:
    return type(updater).__name__


def test_only_optimizers_with_state_need_one() -> None:
    assert [kind_of(Server(outer).updater) for outer in ("off", "sgd:lr=0.5", "nesterov")] == [
        *("Mean", "Mean", "Outer")
    ]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_torch_accepts_all_options_that_the_text_may_have(name: str) -> None:
    """torch must also accept `maximize`, with which the averaged change becomes a negative
    gradient."""
    options = _OPTIONS[name]
    known = inspect.signature(getattr(torch.optim, name)).parameters
    assert {key for key in options if key not in TWO_BETAS} | {"maximize"} <= known.keys()
    assert "betas" in known or not set(TWO_BETAS) & set(options)
    given = "".join(f",{key}=0.5" for key in options if key not in ("amsgrad", "centered"))
    spec = parse_outer(f"{name.lower()}:lr=0.5{given}")
    assert spec is not None
    check_optimizer(spec)


def test_every_optimizer_of_torch_is_elementwise_or_is_known_not_to_be() -> None:
    own = {
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    assert own - {"Optimizer"} <= {*ELEMENTWISE, *NOT_ELEMENTWISE}
