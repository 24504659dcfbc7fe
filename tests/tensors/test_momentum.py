"""Momentum decays once per round, even if contributions are folded one by one
(docs/decisions/029)."""

from typing import Any

import pytest
import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.core.server.stepping import Stepping
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.optimizers import can_fuse
from polyrhythm.tensors.updaters import Optimizer
from polyrhythm.wire.messages import JobSpec, OptimizerSpec, SliceStep

LENGTH, RATE, WEIGHT = 33, 0.05, 8.0
CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.5, "dampening": 0.5}),
    ("SGD", {"momentum": 0.9, "maximize": True, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
]
cases = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=lambda value: str(value).replace(" ", "")
)


class Server:
    """A server with one slice and its optimizer."""

    def __init__(self, name: str, options: dict[str, Any], start: torch.Tensor) -> None:
        self.held = Held(
            Slice(0, 0, 0, 0, len(start)), start.clone(), torch.zeros_like(start), WEIGHT
        )
        spec = OptimizerSpec(name, ({"lr": RATE, **options},))
        self.updater = Optimizer(spec, [self.held], fused=can_fuse(spec, [start.dtype]))

    @property
    def parameters(self) -> torch.Tensor:
        return self.held.parameters

    def fold(self, gradient: torch.Tensor, step: SliceStep) -> None:
        self.held.aggregate.copy_(gradient * step.weight)
        self.updater.fold([self.held], [self.held.parameters], [step])


def gradients(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(LENGTH, generator=generator) for _ in range(count)]


def start() -> torch.Tensor:
    return torch.linspace(-1, 1, LENGTH)


def step_of(per_round: int, weight: float = WEIGHT) -> SliceStep:
    return SliceStep(weight, RATE, 1, 1 / per_round, per_round)


@cases
def test_with_one_member_every_step_is_torch_s_own(name: str, options: dict[str, Any]) -> None:
    ours = Server(name, options, start())
    parameter = torch.nn.Parameter(start())
    theirs = getattr(torch.optim, name)([parameter], lr=RATE, foreach=False, **options)
    for gradient in gradients(20):
        ours.fold(gradient, step_of(1, weight=1.0))
        parameter.grad = gradient.clone()
        theirs.step()
    torch.testing.assert_close(ours.parameters, parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("members", [2, 5])
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.6, "dampening": 0.25},
        {"momentum": 1.0},
    ],
    ids=["plain", "nesterov", "dampened", "undamped"],
)
def test_sgd_applies_a_gradient_at_once_and_decays_its_velocity_by_the_root(
    options: dict[str, Any], members: int
) -> None:
    mu, damp = options["momentum"], options.get("dampening", 0.0)
    decay = mu ** (1 / members)
    ours = Server("SGD", options, start())
    parameters, velocity = start().double(), torch.zeros(LENGTH, dtype=torch.float64)
    for number, gradient in enumerate(gradients(30)):
        taken = (1 - damp) * gradient.double()
        if number == 0 and damp:  # torch applies no dampening to the first gradient
            ours.updater._optimizer.state[ours.updater._params[0]]["momentum_buffer"] = torch.zeros(
                LENGTH
            )
        moved = mu * velocity + taken
        if options.get("nesterov"):
            moved = taken + mu * moved
        parameters -= RATE / members * moved
        fresh = (1 - decay) / (1 - mu) if mu < 1 else 1 / members
        velocity = decay * velocity + fresh * taken
        ours.fold(gradient, step_of(members))
    torch.testing.assert_close(ours.parameters.double(), parameters, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
def test_a_model_in_half_precision_keeps_the_same_velocity(nesterov: bool) -> None:
    """Steps in half precision are not fused. With Nesterov momentum, torch's unfused step changes
    the gradients in place."""
    options = {"momentum": 0.9, "nesterov": nesterov}
    half = Server("SGD", options, start().bfloat16())
    whole = Server("SGD", options, half.parameters.float())
    for gradient in gradients(10):
        half.fold(gradient, step_of(4))
        whole.fold(gradient.bfloat16().float(), step_of(4))
    ours, theirs = (
        server.updater.export(server.held)["momentum_buffer"].float() for server in (half, whole)
    )
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.05)


def test_adam_decays_its_first_moment_by_the_root() -> None:
    members, (beta1, beta2), eps = 4, (0.9, 0.999), 1e-8
    decay = beta1 ** (1 / members)
    ours = Server("Adam", {}, start())
    parameters = start().double()
    first, second = (torch.zeros(LENGTH, dtype=torch.float64) for _ in range(2))
    for number, gradient in enumerate(gradients(30), start=1):
        given = gradient.double()
        second = beta2 * second + (1 - beta2) * given**2
        moved = (beta1 * first + (1 - beta1) * given) / (1 - beta1**number)
        parameters -= RATE / members * moved / ((second / (1 - beta2**number)).sqrt() + eps)
        first = decay * first + (1 - decay) * given
        ours.fold(gradient, step_of(members))
    torch.testing.assert_close(ours.parameters.double(), parameters, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    # the first steps of RAdam depend on the step count
    [case for case in CASES if case[0] != "RAdam"],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_a_steady_gradient_moves_as_far_in_p_steps_as_in_one_round(
    name: str, options: dict[str, Any]
) -> None:
    """Over many rounds, a constant gradient must move the parameters as far under asp as under bsp:
    neither momentum nor weight decay may count twice."""
    members, rounds = 4, 100
    options = {key: value for key, value in options.items() if key != "weight_decay"}
    gradient = torch.linspace(0.5, 1.0, LENGTH)
    alone, together = Server(name, options, start()), Server(name, options, start())
    for _ in range(rounds):
        alone.fold(gradient, step_of(1))
    for _ in range(rounds * members):
        together.fold(gradient, step_of(members))
    moved, expected = together.parameters - start(), alone.parameters - start()
    torch.testing.assert_close(moved, expected, rtol=0.12, atol=0.0)


def test_weight_decay_is_as_strong_as_in_a_round() -> None:
    members, rounds, options = 4, 100, {"momentum": 0.9, "weight_decay": 0.02}
    alone, together = Server("SGD", options, start()), Server("SGD", options, start())
    nothing = torch.full((LENGTH,), 1e-12)
    for _ in range(rounds):
        alone.fold(nothing, step_of(1))
    for _ in range(rounds * members):
        together.fold(nothing, step_of(members))
    torch.testing.assert_close(together.parameters, alone.parameters, rtol=0.05, atol=1e-3)


def turns_until_settled(members: int, per_round: int, rate: float) -> float:
    """Minimise a quadratic of curvature 1 with workers that take turns. Each worker computes its
    gradient at the parameters that it read in its last turn. Return the final distance from the
    minimum."""
    server = Server("SGD", {"momentum": 0.9}, torch.ones(1))
    seen = [torch.ones(1) for _ in range(members)]
    for turn in range(200 * members):
        worker = turn % members
        server.fold(seen[worker], SliceStep(WEIGHT, rate, 1, 1 / members, per_round))
        seen[worker] = server.parameters.clone()
        if server.parameters.abs() > 1e6:
            break
    return float(server.parameters.abs())


@pytest.mark.parametrize("members", [2, 4, 8])
def test_rates_that_diverge_with_decay_per_contribution_converge_with_decay_per_round(
    members: int,
) -> None:
    rate = 0.3
    assert turns_until_settled(members, 1, rate) > 1e3
    assert turns_until_settled(members, members, rate) < 1e-3


@pytest.mark.parametrize("sync", ["asp", "ssp:3", "ssp-restart:3"])
def test_a_step_has_the_number_of_steps_per_round(sync: str) -> None:
    stepping = Stepping(JobSpec(job="j", sync=sync))
    stepping.enlist(4)
    made = stepping.step(1.0, 0.1, 1)
    assert (made.scale, made.per_round) == (0.25, 4)


@pytest.mark.parametrize(
    "job",
    [{"sync": "bsp"}, {"sync": "fsp"}, {"sync": "asp", "async_momentum": "contribution"}],
    ids=str,
)
def test_momentum_decays_with_every_step_if_there_are_rounds_or_if_the_job_says_so(
    job: dict[str, str],
) -> None:
    stepping = Stepping(JobSpec(job="j", **job))
    stepping.enlist(4)
    assert stepping.step(1.0, 0.1, 1).per_round == 1


@pytest.mark.parametrize(("name", "contains"), [("AdamW", False), ("Adam", True)])
def test_only_coupled_weight_decay_is_part_of_the_first_moment(name: str, contains: bool) -> None:
    """The parameters are large and the gradients small, so a decay in the moment cannot be missed."""
    server = Server(name, {"weight_decay": 0.1}, torch.full((LENGTH,), 100.0))
    for gradient in gradients(6):
        server.fold(gradient, step_of(3))
    (state,) = server.updater._optimizer.state.values()
    assert bool((state["exp_avg"].abs() > 1).any()) is contains


def test_momentum_is_corrected_for_a_group_that_came_from_another_server() -> None:
    """Before that, no group on this server had momentum."""
    spec = OptimizerSpec("SGD", ({"lr": RATE}, {"lr": RATE, "momentum": 0.9}))

    def optimizer_of(*groups: int) -> tuple[Optimizer, list[Held]]:
        held = [
            Held(Slice(group, 0, group, 0, LENGTH), start(), torch.zeros(LENGTH), WEIGHT)
            for group in groups
        ]
        return Optimizer(spec, held, fused=can_fuse(spec, [torch.float32])), held

    together, both = optimizer_of(0, 1)
    ours, (first,) = optimizer_of(0)
    coming, (second,) = optimizer_of(1)
    ours.absorb(coming)
    for gradient in gradients(3):
        for updater, held in ((together, both), (ours, [first, second])):
            for each in held:
                each.aggregate.copy_(gradient * WEIGHT)
            updater.fold(held, [each.parameters for each in held], [step_of(4)] * 2)
    assert torch.equal(second.parameters, both[1].parameters)
    assert torch.equal(first.parameters, both[0].parameters)


@pytest.mark.parametrize("options", [{}, {"nesterov": True}], ids=["plain", "nesterov"])
def test_the_gradient_of_a_part_of_a_step_has_a_part_of_the_effect(options: dict[str, Any]) -> None:
    """Though whole steps follow it."""

    def moved(share: float) -> torch.Tensor:
        server = Server("SGD", {"momentum": 0.9, **options}, start())
        server.fold(gradients(1)[0], SliceStep(WEIGHT, RATE, 1, share, 1 / share))
        for _ in range(200):
            server.fold(torch.zeros(LENGTH), SliceStep(WEIGHT, RATE, 1))
        return server.parameters - start()

    torch.testing.assert_close(moved(0.1), 0.1 * moved(1.0), rtol=0.1, atol=1e-5)
