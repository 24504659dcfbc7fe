"""With kind gradient, values that the training loop writes into parameters, and states that it loads
into the optimizer, are refused: the servers would not get them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import UsageError
from polyrhythm.learn.steps import WrittenParameters
from polyrhythm.wire.messages import JobSpec

POLICIES = ["bsp", "asp", "ssp:1", "fsp"]


def clamp_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def clamp(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.1, 0.1)


def copy_in(model: nn.Module) -> None:
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()})


def swap_and_restore(model: nn.Module) -> None:
    """A loop that evaluates averaged weights swaps the parameters and restores them in this way."""
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    clamp(model)
    model.load_state_dict(kept)


def network() -> nn.Linear:
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.5)
    return model


def train(change: Callable[[nn.Module], None], since: int = 0, **more: Any) -> dict[str, nn.Linear]:
    ends: dict[str, nn.Linear] = {}

    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.001))
        step = 0
        while not worker.stopped:
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step(points=2)
            step += 1
            if step > since:
                change(model)
        ends[worker.name] = model

    interval = {"interval": "2ms"} if more.get("sync") == "fsp" else {}
    fields = {"workers": 2, "servers": 2, "rounds": 12, "heartbeat_s": 20.0, **interval, **more}
    run_inline(JobSpec(job="written", **fields), main, timeout_s=60)
    return ends


@pytest.mark.parametrize("sync", POLICIES)
@pytest.mark.parametrize("change", [clamp_data, clamp, copy_in])
def test_a_loop_that_changes_parameters_itself_is_refused(
    change: Callable[[nn.Module], None], sync: str
) -> None:
    words = r"worker-\d, step \d+: .* has changed the parameter 'weight' itself.*--kind local"
    with pytest.raises(UsageError, match=words):
        train(change, sync=sync)


def test_a_change_that_torch_counts_is_found_at_any_time() -> None:
    """The steps 0 to 4, 8, 16 and 32 are always checked; step 18 is not one of them."""
    with pytest.raises(UsageError, match="changed the parameter 'weight' itself"):
        train(clamp, since=18, rounds=24)


@pytest.mark.parametrize("sync", POLICIES)
def test_parameters_that_are_restored_before_the_next_step_do_no_harm(sync: str) -> None:
    assert len(train(swap_and_restore, sync=sync)) == 2


def test_with_kind_local_clipped_weights_are_contributed() -> None:
    for model in train(clamp, kind="local").values():
        assert float(model.weight.detach().abs().max()) <= 0.1 + 1e-6


def test_versions_that_arrive_are_not_taken_for_changes() -> None:
    parameter = nn.Parameter(torch.zeros(3))

    class Flat:
        def __init__(self) -> None:
            self.trained = [("weight", parameter)]

    landed = [0]
    written = WrittenParameters(Flat(), lambda: landed[0])  # type: ignore[arg-type]
    parameter.data.add_(1)
    landed[0] += 1
    written.check()
    written.on_version()
    parameter.data.add_(1)
    with pytest.raises(UsageError):
        written.check()


def states(worker: Worker, attached: bool) -> None:
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = worker.attach(model, inner)
    while not worker.stopped:
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step(points=2)
        loaded = optimizer if attached else inner
        loaded.load_state_dict(loaded.state_dict())


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "given"])
def test_loading_a_state_into_the_optimizer_is_refused(attached: bool) -> None:
    job = JobSpec(job="loads", rounds=3, heartbeat_s=20.0)
    with pytest.raises(UsageError, match=r"load_state_dict\(\).*no effect.*polyrhythm resume"):
        run_inline(job, lambda worker: states(worker, attached), timeout_s=60)


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "given"])
def test_with_kind_local_the_optimizer_loads_a_state(attached: bool) -> None:
    ends = {}

    def main(worker: Worker) -> None:
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = worker.attach(model, inner)
        loaded = optimizer if attached else inner
        state = loaded.state_dict()
        state["param_groups"][0]["lr"] = 0.0
        step = 0
        while not worker.stopped:
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step(points=2)
            step += 1
            if step == 2:
                loaded.load_state_dict(state)
                before = model.weight.detach().clone()
        assert optimizer.param_groups is inner.param_groups
        ends[worker.name] = (before, model.weight.detach())

    run_inline(JobSpec(job="loads", rounds=6, kind="local", heartbeat_s=20.0), main, timeout_s=60)
    before, after = ends["worker-0"]
    torch.testing.assert_close(before, after)


def test_the_attached_optimizer_need_not_be_kept() -> None:
    def main(worker: Worker) -> None:
        model = network()
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.001))
        worker.keep(optimizer=optimizer)

    with pytest.raises(UsageError, match=r"leave 'optimizer' out of keep\(\)"):
        run_inline(JobSpec(job="keeps", rounds=1, heartbeat_s=20.0), main, timeout_s=60)
