"""LBFGS trains with kind local: with one worker as in torch, bit for bit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.errors import UsageError
from polyrhythm.learn.attached import AttachedOptimizer, History
from polyrhythm.observe.state import fold
from polyrhythm.wire.messages import JobSpec

ROUNDS, POINTS = 6, 24
GENERATOR = torch.Generator().manual_seed(4)
INPUTS = torch.randn(POINTS, 5, generator=GENERATOR)
WANTED = INPUTS.sum(1, keepdim=True).sign()


def network() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def lbfgs(model: nn.Module, **options: Any) -> torch.optim.LBFGS:
    given = {"lr": 0.5, "max_iter": 4, "history_size": 10, "line_search_fn": "strong_wolfe"}
    return torch.optim.LBFGS(model.parameters(), **{**given, **options})


def closure_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, rows: slice
) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.soft_margin_loss(model(INPUTS[rows]), WANTED[rows])
        loss.backward()
        return loss

    return closure


def train(main: Callable[[Worker], None], **more: Any) -> InlineRun:
    fields = {"workers": 1, "servers": 2, "kind": "local", "rounds": ROUNDS, "slice_nbytes": 128}
    job = JobSpec(job="closure", **{**fields, "heartbeat_s": 20.0, **more})
    return run_inline(job, main, timeout_s=60)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("sync", ["bsp", "asp", "psp"])
def test_one_worker_computes_what_torch_computes_bit_for_bit(sync: str, search: str | None) -> None:
    """The weight of a contribution is 7. Servers multiply a contribution by its weight and divide
    by the weight again, so the version differs from the worker's parameters by rounding errors."""
    alone = network()
    optimizer = lbfgs(alone, line_search_fn=search)
    everything = slice(0, POINTS)
    closure = closure_of(alone, optimizer, everything)
    expected = [optimizer.step(closure).item() for _ in range(ROUNDS)]
    losses: list[float] = []

    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, lbfgs(model, line_search_fn=search))
        while not worker.stopped:
            closure = closure_of(model, optimizer, everything)
            losses.append(optimizer.step(closure, points=7).item())
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            if len(losses) == ROUNDS:  # under psp the worker may have made further steps
                torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)

    train(main, sync=sync)
    assert losses[:ROUNDS] == expected


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:1", "psp", "fsp"])
def test_several_workers_learn_under_every_policy(sync: str) -> None:
    more = {"interval": "5ms"} if sync == "fsp" else {}

    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, lbfgs(model, lr=0.1, max_iter=3))
        for rows in worker.batches((torch.arange(POINTS),), batch_size=12):
            inputs, wanted = INPUTS[rows[0]], WANTED[rows[0]]

            def closure(inputs: Any = inputs, wanted: Any = wanted) -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.soft_margin_loss(model(inputs), wanted)
                loss.backward()
                return loss

            optimizer.step(closure)
        loss = nn.functional.soft_margin_loss(model(INPUTS), WANTED)
        worker.report(loss=loss.item())

    run = train(main, workers=2, sync=sync, rounds=None, epochs=6, **more)
    first = nn.functional.soft_margin_loss(network()(INPUTS), WANTED).item()
    reported = [line["metrics"]["loss"] for line in run.journal if line["what"] == "reported"]
    assert len(reported) == 2 and all(loss < first for loss in reported)
    assert fold(run.journal).objective is not None, "the loss of the closure is the objective"


def test_the_history_is_forgotten_if_other_workers_changed_the_parameters() -> None:
    kept: dict[str, list[bool]] = {}

    def main(worker: Worker) -> None:
        model = network()
        inner = lbfgs(model)
        optimizer = worker.attach(model, inner)
        number = int(worker.name[-1])
        mine = kept.setdefault(worker.name, [])
        while not worker.stopped:
            rows = slice(number * 12, number * 12 + 12)
            optimizer.step(closure_of(model, optimizer, rows), points=5)
            mine.append(bool(inner.state))

    train(main, workers=2, sync="bsp")
    assert [any(found) for found in kept.values()] == [False, False]


class Parts:
    """Makes every step as if its batch had a quarter of the points of a whole batch."""

    pending, steps_locally = False, True

    def before_step(self) -> None:
        pass

    def step(self, model: AttachedOptimizer, objective: object, points: float | None) -> None:
        model.step_locally(0.25, lambda: None)
        model.end_local_step()


def test_a_step_over_a_part_of_a_batch_is_a_part_of_a_step() -> None:
    """A step of LBFGS over few points fits these points, and would ruin the model for all others."""
    model, whole = network(), network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    reference = lbfgs(whole)
    inner = lbfgs(model)
    optimizer = AttachedOptimizer(inner, model, Parts())
    reference.step(closure_of(whole, reference, slice(0, 6)))
    optimizer.step(closure_of(model, optimizer, slice(0, 6)))
    for start, full, found in zip(before, whole.parameters(), model.parameters(), strict=True):
        assert not torch.allclose(start, full)
        torch.testing.assert_close(found.detach(), torch.lerp(start, full.detach(), 0.25))
    assert not inner.state, "the history is about a step that was not made"


def test_a_version_that_differs_only_by_rounding_keeps_the_workers_parameters() -> None:
    parameter = nn.Parameter(torch.tensor([0.1, 1e-9, -3.0]))
    optimizer = torch.optim.LBFGS([parameter])
    history = History(optimizer)
    optimizer.state[parameter]["d"] = torch.ones(3)
    with torch.no_grad():
        parameter.add_(torch.tensor([0.3, 1.0, 1e-6]))
    own = parameter.detach().clone()
    history.on_stepped()
    with torch.no_grad():
        parameter.mul_(1 + 2 * torch.finfo(torch.float32).eps)
    history.on_version(final=False)
    assert torch.equal(parameter, own) and optimizer.state
    with torch.no_grad():
        parameter.add_(1e-4)
    moved = parameter.detach().clone()
    history.on_version(final=False)
    assert torch.equal(parameter, moved) and not optimizer.state


def test_lbfgs_needs_a_closure_and_kind_local() -> None:
    def without(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, lbfgs(model))
        model(INPUTS).sum().backward()
        optimizer.step()

    with pytest.raises(
        UsageError, match=r"LBFGS evaluates the loss several times.*step\(closure\)"
    ):
        train(without)
    with pytest.raises(UsageError, match=r"--kind local and call optimizer\.step\(closure\)"):
        train(without, kind="gradient")


def test_a_step_that_is_not_finite_is_undone_and_left_out() -> None:
    ends: list[nn.Module] = []

    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, lbfgs(model, line_search_fn=None))
        for step, (rows,) in enumerate(worker.batches((torch.arange(POINTS),), batch_size=6)):
            factor = float("nan") if step == 2 else 1.0

            def closure(rows: Any = rows, factor: float = factor) -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.soft_margin_loss(model(INPUTS[rows] * factor), WANTED[rows])
                loss.backward()
                return loss

            optimizer.step(closure)
        ends.append(model)

    run = train(main, sync="bsp", rounds=None, epochs=2, on_nan="skip")
    (model,) = ends
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert [line["what"] for line in run.journal].count("skipped") == 1


def test_an_elementwise_optimizer_takes_a_closure_with_kind_local() -> None:
    alone = network()
    expected = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(ROUNDS):
        expected.step(closure_of(alone, expected, slice(0, POINTS)))

    def main(worker: Worker) -> None:
        model = copy.deepcopy(network())
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            optimizer.step(closure_of(model, optimizer, slice(0, POINTS)))
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)

    train(main)


class EndsDuringStep:
    """A job that ends after a step has begun, before the closure was called."""

    steps_locally = True

    def before_step(self) -> None: ...

    def step(self, *_: object) -> None:
        self.steps_locally = False


def test_a_step_in_which_the_job_ends_returns_the_loss_and_changes_nothing() -> None:
    """A script that reads `optimizer.step(closure).item()` cannot know that the job ends meanwhile."""
    model = network()
    optimizer = AttachedOptimizer(lbfgs(model), model, EndsDuringStep())
    closure = closure_of(model, optimizer, slice(0, POINTS))
    before = copy.deepcopy(model.state_dict())
    assert optimizer.step(closure).item() == optimizer.step(closure).item() == closure().item()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
