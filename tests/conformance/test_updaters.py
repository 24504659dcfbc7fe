"""The same tests for every updater: a fold, in place or into a spare buffer, has the same result as
a step of plain torch."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.tensors.buffers import Buffers
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.optimizers import ELEMENTWISE, can_fuse
from polyrhythm.tensors.updater import Updater
from polyrhythm.tensors.updaters import Addition, Mean, Optimizer
from polyrhythm.wire.messages import OptimizerSpec, SliceStep

LENGTHS = (7, 64, 3)
GROUPS = (0, 0, 1)
RATES = (0.05, 0.02)
OPTIONS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "RMSprop": {"momentum": 0.5},
}


@dataclass
class Case:
    """An updater, and a reference to compare it with. `reference` gets the initial parameters, and
    returns a function that computes the new parameters from the contributions, their weights and
    the rates."""

    name: str
    make: Callable[[list[Held]], Updater]
    reference: Callable[[list[torch.Tensor]], Callable[..., list[torch.Tensor]]]
    dtype: torch.dtype = torch.float32


def spec_of(name: str) -> OptimizerSpec:
    options = OPTIONS.get(name, {})
    return OptimizerSpec(name, tuple({"lr": rate, **options} for rate in RATES))


def optimizer_of(spec: OptimizerSpec, held: list[Held]) -> Optimizer:
    return Optimizer(spec, held, fused=can_fuse(spec, [torch.float32]))


def mean(parts: list[tuple[torch.Tensor, float]]) -> torch.Tensor:
    return sum(part * weight for part, weight in parts) / sum(weight for _, weight in parts)


def one_by_one(rule: Callable[[torch.Tensor, list], torch.Tensor]) -> Callable:
    """A reference that applies `rule` to each slice. A slice without contributions does not
    change."""

    def begin(parameters: list[torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
        state = [parameter.clone() for parameter in parameters]

        def fold(given: list[list], rates: tuple[float, ...]) -> list[torch.Tensor]:
            for index, parts in enumerate(given):
                if parts:
                    state[index] = rule(state[index], parts)
            return state

        return fold

    return begin


def plain_torch(name: str) -> Callable:
    """The reference of an optimizer: torch's optimizer on whole tensors, neither fused nor
    foreach."""

    def begin(parameters: list[torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
        params = [torch.nn.Parameter(parameter.clone()) for parameter in parameters]
        groups = [
            {"params": [p for p, group in zip(params, GROUPS, strict=True) if group == number]}
            for number in range(len(RATES))
        ]
        kind = getattr(torch.optim, name)
        optimizer = kind(groups, lr=1.0, foreach=False, **OPTIONS.get(name, {}))

        def fold(given: list[list], rates: tuple[float, ...]) -> list[torch.Tensor]:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            for param, parts in zip(params, given, strict=True):
                param.grad = mean(parts) if parts else None
            optimizer.step()
            return [param.detach() for param in params]

        return fold

    return begin


CASES = [
    Case("Mean", lambda held: Mean(), one_by_one(lambda old, parts: old + mean(parts))),
    Case("Buffers", lambda held: Buffers(), one_by_one(lambda old, parts: old + mean(parts))),
    Case(
        "Buffers of integers",
        lambda held: Buffers(),
        one_by_one(lambda old, parts: torch.stack([part for part, _ in parts]).amax(0)),
        torch.int64,
    ),
    Case(
        "Addition",
        lambda held: Addition(),
        one_by_one(lambda old, parts: old + sum(part for part, _ in parts)),
    ),
    *(
        Case(name, functools.partial(optimizer_of, spec_of(name)), plain_torch(name))
        for name in ELEMENTWISE
    ),
]


class Server:
    """Slices and an updater. The updater folds the slices as in the slice store, in place or into a
    spare buffer."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self.random = torch.Generator().manual_seed(seed)
        self.held = [
            Held(
                Slice(index, 0, GROUPS[index], 0, length, ((0, length),)),
                self.numbers(length),
                torch.full((length,), 99, dtype=case.dtype),
            )
            for index, length in enumerate(LENGTHS)
        ]
        self.updater = case.make(self.held)
        self.expected = case.reference([held.parameters for held in self.held])

    def numbers(self, length: int) -> torch.Tensor:
        values = torch.randn(length, generator=self.random)
        return values if self.case.dtype.is_floating_point else (values * 100).to(self.case.dtype)

    def round(
        self,
        weights: list[list[float]],
        *,
        spare: bool,
        rates: tuple[float, ...] = RATES,
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Fold one round with these weights per slice. Returns the result and the expected
        result."""
        given: list[list[tuple[torch.Tensor, float]]] = []
        for held, mine in zip(self.held, weights, strict=True):
            parts = [(self.numbers(held.slice.length), weight) for weight in mine]
            for part, weight in parts:
                self.updater.add(held, part, weight)
                held.weight += weight
                held.rate = rates[held.slice.group]
            given.append(parts)
        target = [
            torch.full_like(held.parameters, -1) if spare else held.parameters for held in self.held
        ]
        before = [held.parameters.clone() for held in self.held]
        kept = [held.parameters for held in self.held]
        steps = [SliceStep(held.weight, held.rate or 0.0) for held in self.held]
        self.updater.fold(self.held, target, steps)
        # After an addition, the aggregate itself is the next version.
        if isinstance(self.updater, Addition):
            target = [
                held.aggregate.clone() if held.weight else place
                for held, place in zip(self.held, target, strict=True)
            ]
        if spare:
            for old, now in zip(before, kept, strict=True):
                assert torch.equal(old, now), "the version that readers hold was written to"
        for held, place in zip(self.held, target, strict=True):
            held.parameters, held.weight, held.rate = place, 0.0, None
        return target, self.expected(given, rates)


def check(outcome: tuple[list[torch.Tensor], list[torch.Tensor]]) -> None:
    for got, expected in zip(*outcome, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)


cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@cases
@pytest.mark.parametrize("spare", [False, True], ids=["in place", "spare"])
def test_folds_equal_plain_torch(case: Case, spare: bool) -> None:
    server = Server(case)
    for _ in range(6):
        check(server.round([[3.0, 1.0, 12.0]] * 3, spare=spare))


@cases
def test_in_place_and_spare_may_alternate(case: Case) -> None:
    server = Server(case)
    for spare in (False, True, True, False, True, False):
        check(server.round([[5.0, 2.0]] * 3, spare=spare))


@cases
@pytest.mark.parametrize("spare", [False, True], ids=["in place", "spare"])
def test_slices_without_weight_stay_unchanged(case: Case, spare: bool) -> None:
    """A worker died while it pushed, so this round has no contribution to the second slice."""
    server = Server(case)
    check(server.round([[2.0], [4.0], [1.0]], spare=spare))
    before = server.held[1].parameters.clone()
    outcome = server.round([[2.0, 3.0], [], [1.0]], spare=spare)
    assert torch.equal(outcome[0][1], before)
    check(outcome)
    check(server.round([[1.0], [1.0], [1.0]], spare=spare))


@cases
@pytest.mark.parametrize("spare", [False, True], ids=["in place", "spare"])
def test_each_slice_divides_by_its_own_weight(case: Case, spare: bool) -> None:
    server = Server(case)
    for _ in range(3):
        check(server.round([[2.0, 7.0], [2.0], [2.0, 7.0, 1.0]], spare=spare))


@cases
def test_a_round_without_any_contribution_changes_nothing(case: Case) -> None:
    server = Server(case)
    before = [held.parameters.clone() for held in server.held]
    got, _ = server.round([[], [], []], spare=True)
    assert all(torch.equal(one, other) for one, other in zip(got, before, strict=True))


@cases
def test_each_group_uses_its_own_rate_of_a_scheduler(case: Case) -> None:
    server = Server(case)
    for step in range(1, 5):
        check(server.round([[2.0, 1.0]] * 3, spare=False, rates=(0.1 / step, 0.3 / step)))


@cases
def test_export_and_adopt_continue_identically(case: Case) -> None:
    one = Server(case)
    for _ in range(3):
        one.round([[2.0, 1.0]] * 3, spare=False)
    other = Server(case)
    for mine, theirs in zip(other.held, one.held, strict=True):
        mine.parameters.copy_(theirs.parameters)
        other.updater.adopt(mine, one.updater.export(theirs))
    other.random.set_state(one.random.get_state())
    for _ in range(3):
        got, _ = one.round([[2.0, 4.0]] * 3, spare=False)
        same, _ = other.round([[2.0, 4.0]] * 3, spare=False)
        assert all(torch.equal(a, b) for a, b in zip(got, same, strict=True))


@cases
def test_exported_state_is_a_copy(case: Case) -> None:
    server = Server(case)
    server.round([[1.0]] * 3, spare=False)
    before = server.updater.export(server.held[0])
    kept = {key: value.clone() for key, value in before.items()}
    server.round([[1.0]] * 3, spare=False)
    assert all(torch.equal(before[key], value) for key, value in kept.items())
