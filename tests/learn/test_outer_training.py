"""A job of kind local with an outer optimizer gives the same model as a plain DiLoCo loop in one
process, with both settings of `--weights`."""

import functools
import math

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.wire.messages import JobSpec
from tests.learn import twin_job as tj

TOLERANCE = 1e-5
ROUNDS = 10
NESTEROV = "nesterov:lr=0.7,momentum=0.9"
local_twin = functools.cache(tj.local_twin)


def run(steps: int, inner: str = "momentum", **fields: object) -> tj.State:
    """Run the job inline, and return the final state of worker-0."""
    job = JobSpec(
        **{
            **{"job": "outer", "workers": 2, "servers": 2, "kind": "local", "rounds": ROUNDS},
            **{"local_steps": steps, "slice_nbytes": 512, "heartbeat_s": 20.0, **fields},
        }
    )
    found: dict[str, tj.State] = {}

    def main(worker: Worker) -> None:
        model = tj.train(worker, inner, steps)
        found[worker.name] = {name: t.clone() for name, t in model.state_dict().items()}

    run_inline(job, main, timeout_s=60)
    first = found["worker-0"]
    for state in found.values():
        assert all(torch.equal(state[name], first[name]) for name in first)
    return first


@pytest.mark.parametrize("outer", tj.OUTER)
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_job_with_an_outer_optimizer_equals_a_plain_loop(
    outer: str, servers: int, steps: int
) -> None:
    """The job has several parameter groups with different rates, a scheduler and BatchNorm."""
    state = run(steps, outer=outer, servers=servers)
    assert tj.distance(state, local_twin(2, "momentum", steps, ROUNDS, outer)) < TOLERANCE


def test_the_comparison_can_fail() -> None:
    right = local_twin(2, "momentum", 5, ROUNDS, NESTEROV)
    for wrong in ("off", "sgd:lr=0.5"):
        far = tj.distance(local_twin(2, "momentum", 5, ROUNDS, wrong), right)
        assert 100 * TOLERANCE < far < math.inf
    uniform = local_twin(2, "momentum", 5, ROUNDS, NESTEROV, by_points=False)
    assert tj.distance(uniform, right) > 100 * TOLERANCE


def test_sgd_with_rate_1_is_plain_averaging_bit_for_bit() -> None:
    """With one worker, contributions are always added in the same order."""
    averaged = run(3, workers=1)
    stepped = run(3, workers=1, outer="sgd:lr=1")
    assert tj.distance(stepped, averaged) == 0.0


def test_the_workers_own_rate_does_not_scale_the_outer_step() -> None:
    """With a tenth of the learning rate, the workers' local steps change the model by a tenth as
    much. At both rates the outer step must apply the same share, half of the change."""
    moved = []
    for rate in (0.1, 0.01):

        def main(worker: Worker, rate: float = rate) -> None:
            model = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.zeros_(model.weight)
            optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=rate))
            while not worker.stopped:
                model.weight.sum().backward()
                optimizer.step(points=1)
            moved.append(model.weight.item())

        job = JobSpec(job="rate", kind="local", outer="sgd:lr=0.5", rounds=1, heartbeat_s=20.0)
        run_inline(job, main, timeout_s=30)
    assert moved == pytest.approx([-0.05, -0.005])


@pytest.mark.parametrize("outer", ["off", NESTEROV])
def test_with_weights_by_workers_every_contribution_counts_the_same(outer: str) -> None:
    state = run(3, outer=outer, weights="workers")
    uniform = local_twin(2, "momentum", 3, ROUNDS, outer, by_points=False)
    assert tj.distance(state, uniform) < TOLERANCE


def test_weights_by_workers_with_gradients() -> None:
    state = run(1, kind="gradient", weights="workers")
    assert tj.distance(state, tj.twin(2, "momentum", ROUNDS, by_points=False)) < TOLERANCE


@pytest.mark.parametrize("sync", ["bsp", "psp", "fsp"])
def test_every_policy_that_averages_local_steps_learns_with_an_outer_optimizer(sync: str) -> None:
    """Least squares with one weight. Under psp workers train during the barrier, and then add their
    newer changes to the new version."""
    final: list[float] = []

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.2))
        inputs = torch.linspace(-1, 1, 64).unsqueeze(1)
        for points, wanted in worker.batches((inputs, 3 * inputs), 8):
            loss = torch.nn.functional.mse_loss(model(points), wanted)
            loss.backward()
            optimizer.step(objective=loss)
        final.append(model.weight.item())

    job = JobSpec(
        **{"job": "learns", "sync": sync, "kind": "local", "workers": 2, "timer": "off"},
        **{"outer": "nesterov:lr=0.7,momentum=0.5", "rounds": 40, "heartbeat_s": 20.0},
        **{"interval": "5ms"},
    )
    run_inline(job, main, timeout_s=60)
    assert len(final) == 2
    assert final == pytest.approx([3.0, 3.0], abs=0.2)
