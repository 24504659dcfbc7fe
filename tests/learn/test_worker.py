"""Errors in a user's training loop, and their effect on the failing worker and on the others."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import NotFinite, Refused, UsageError
from polyrhythm.learn.data.catalogue import known
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire.messages import JobSpec


def run(main: Callable[[Worker], None], **job: object):
    spec = JobSpec(job="worker", timer="off", heartbeat_s=20.0, **job)
    return run_inline(spec, main, timeout_s=20)


def attached(worker: Worker) -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    return model, worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def train(worker: Worker, each_step: Callable[[nn.Linear], None] = lambda model: None) -> nn.Linear:
    model, optimizer = attached(worker)
    while not worker.stopped:
        model(torch.ones(2, 4)).sum().backward()
        each_step(model)
        optimizer.step(points=2)
    return model


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["gradient", "local"])
def test_a_gradient_that_is_not_finite_is_named_and_not_sent(bad: float, kind: str) -> None:
    """The worker fails and sends nothing in its last round. The other worker reaches the goal."""
    done: dict[str, nn.Linear] = {}
    versions: dict[str, int] = {}

    def main(worker: Worker) -> None:
        def spoil(model: nn.Linear) -> None:
            versions[worker.name] = worker.version
            if worker.name == "worker-1" and worker.version == 3:
                model.bias.grad[1] = bad

        done[worker.name] = train(worker, spoil)

    lines: list[dict] = []
    job = JobSpec(
        job="nan", timer="off", workers=2, servers=2, rounds=10, kind=kind, heartbeat_s=20.0
    )
    found = "the gradient of 'bias' holds" if kind == "gradient" else "the parameter 'bias' became"
    with pytest.raises(NotFinite, match=f"worker-1, step 4: {found} .*; nothing was sent: "):
        run_and_keep(job, main, lines)
    assert versions == {"worker-0": 9, "worker-1": 3}
    assert list(done) == ["worker-0"]
    assert all(bool(p.isfinite().all()) for p in done["worker-0"].parameters())
    # All gradients are equal, so the result is that of 10 steps at rate 0.1, whichever worker made
    # them.
    assert torch.allclose(done["worker-0"].bias, torch.full((2,), -2.0), atol=1e-4)
    ended = next(line for line in lines if line["what"] == "ended")
    assert ended["rounds"] == 10 and not ended["failed"]
    assert sum(line["contributions"] for line in lines if line["what"] == "rounds") == 13


def run_and_keep(job: JobSpec, main: Callable[[Worker], None], lines: list[dict]) -> None:
    """Run the job and keep the journal in `lines`, even if `run_inline` raises the error of a
    worker."""
    from polyrhythm.engines import inline

    class Kept(inline.MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self.lines = lines

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "MemoryJournal", Kept)
        run_inline(job, main, timeout_s=20)


def test_replaced_parameters_are_reported() -> None:
    """If the user's code replaces parameters, the model would train tensors that are not exchanged.
    So the worker raises an error."""

    def replace(model: nn.Linear) -> None:
        state = {name: t.clone() for name, t in model.state_dict().items()}
        model.load_state_dict(state, assign=True)

    with pytest.raises(
        UsageError, match="the parameter 'weight' is not the tensor that was attached"
    ):
        run(lambda worker: train(worker, replace) and None, rounds=3)


def test_moved_parameters_are_reported() -> None:
    def move(model: nn.Linear) -> None:
        model.bias.data = model.bias.data.clone()

    with pytest.raises(UsageError, match="the parameter 'bias' is not in the memory"):
        run(lambda worker: train(worker, move) and None, rounds=3)


def test_parameters_may_be_loaded_in_place() -> None:
    def main(worker: Worker) -> None:
        train(worker, lambda model: model.load_state_dict(model.state_dict()) and None)

    assert run(main, rounds=3).outcome is not None


def test_a_second_attach_is_refused() -> None:
    def main(worker: Worker) -> None:
        attached(worker)
        attached(worker)

    with pytest.raises(UsageError, match="called twice"):
        run(main, rounds=1)


def test_batches_before_attach_are_refused() -> None:
    with pytest.raises(UsageError, match=r"call worker.attach\(\) before"):
        run(lambda worker: next(worker.batches([torch.zeros(3)], 1)), rounds=1)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_size_below_one_is_refused(size: int) -> None:
    def main(worker: Worker) -> None:
        attached(worker)
        next(worker.batches([torch.zeros(3)], batch_size=size))

    with pytest.raises(UsageError, match=f"batch_size is {size}"):
        run(main, rounds=1)


def test_a_data_set_without_indices_is_refused() -> None:
    def main(worker: Worker) -> None:
        attached(worker)
        next(worker.batches(iter([1, 2]), batch_size=1))

    with pytest.raises(UsageError, match="map-style data set"):
        run(main, rounds=1)


def test_an_empty_data_set_is_refused() -> None:
    def main(worker: Worker) -> None:
        attached(worker)
        next(worker.batches([torch.zeros(0)], batch_size=1))

    with pytest.raises(Refused, match="data set is empty"):
        run(main, rounds=1)


@pytest.mark.parametrize("data", ["tensors", "dataset", "list"])
def test_every_point_is_visited_once_per_epoch(data: str) -> None:
    seen: list[int] = []
    numbers = torch.arange(100.0)

    def main(worker: Worker) -> None:
        model, optimizer = attached(worker)
        dataset = {
            "tensors": torch.utils.data.TensorDataset(numbers),
            "dataset": Numbers(),
            "list": [numbers],
        }[data]
        for (batch,) in worker.batches(dataset, batch_size=9):
            seen.extend(batch.tolist())
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    run(main, workers=3, servers=2, epochs=2)
    assert sorted(seen) == sorted([*numbers.tolist()] * 2)


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[float]:
        return (float(index),)


def test_a_worker_with_another_model_is_refused_and_the_job_continues() -> None:
    done: list[str] = []

    def main(worker: Worker) -> None:
        model = nn.Linear(4, 3 if worker.name == "worker-1" else 2)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step(points=2)
        done.append(worker.name)

    with pytest.raises(Refused, match=r"model differs: the parameter 'weight' has shape \[\d, 4\]"):
        run(main, workers=2, rounds=5)
    assert len(done) == 1


def test_scheduled_rates_travel_with_the_contribution() -> None:
    """All gradients are 2. The rates are 1, 0.1 and 0.01, for one round each."""
    final: list[float] = []

    def main(worker: Worker) -> None:
        parameter = nn.Parameter(torch.zeros(3))
        model = nn.ParameterList([parameter])
        optimizer = worker.attach(model, torch.optim.SGD([parameter], lr=1.0))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
        while not worker.stopped:
            parameter.grad = torch.full((3,), 2.0)
            optimizer.step(points=1)
            scheduler.step()
        final.extend(parameter.tolist())

    run(main, workers=2, servers=2, rounds=3)
    assert final == pytest.approx([-2.22] * 6)


def test_step_clears_the_gradients() -> None:
    def main(worker: Worker) -> None:
        model, optimizer = attached(worker)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step(points=2)
        assert all(parameter.grad is None for parameter in model.parameters())

    assert run(main, rounds=1).outcome is not None


def test_an_unused_parameter_does_not_change() -> None:
    def main(worker: Worker) -> None:
        model = nn.ModuleDict({"used": nn.Linear(4, 1), "spare": nn.Linear(4, 1)})
        before = model["spare"].weight.detach().clone()
        optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=0.1))
        while not worker.stopped:
            model["used"](torch.ones(2, 4)).sum().backward()
            optimizer.step(points=2)
        assert torch.equal(model["spare"].weight, before)
        assert not torch.equal(model["used"].weight, before)

    assert run(main, rounds=3).outcome is not None


def test_channels_last_survives_the_exchange() -> None:
    def main(worker: Worker) -> None:
        model = nn.Conv2d(3, 4, 3, bias=False).to(memory_format=torch.channels_last)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = model.weight.detach().clone()
        gradient = torch.arange(108.0).reshape(4, 3, 3, 3)
        model.weight.grad = gradient.clone()
        optimizer.step(points=1)
        assert model.weight.is_contiguous(memory_format=torch.channels_last)
        assert torch.allclose(model.weight, before - 0.1 * gradient)

    assert run(main, rounds=1, servers=2).outcome is not None


def test_a_model_that_is_not_on_the_assigned_device_is_reported_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The test uses the device `meta`, which exists on every machine. No model is on this
    device."""
    devices: list[torch.device] = []

    def main(worker: Worker) -> None:
        devices.append(worker.device)
        train(worker)

    job = JobSpec(job="device", workers=2, rounds=2, heartbeat_s=20.0)
    run_inline(job, main, options=NodeOptions(check=True, device="meta"), timeout_s=20)
    assert devices == [torch.device("meta")] * 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "the model of worker-0 is on cpu, and not on meta, its device in this job" in said
    assert "model.to(worker.device)" in said and "--devices cpu" in said


def test_a_loop_without_backward_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            optimizer.step(objective=1.0, points=1)

    run(main, workers=2, servers=1, rounds=3)
    assert capsys.readouterr().err == (
        "polyrhythm: the first optimizer.step() found no gradient, so it changes nothing: call"
        " loss.backward() before it\n"
    )


def test_options_that_the_code_has_not_read_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The names of `--set` are not declared anywhere, so a wrong name is noticed when `main` returns."""

    def main(worker: Worker) -> None:
        assert worker.options.get("width") is None
        assert "depth" in worker.options and worker.options["rate"] == "0.1"
        train(worker)

    given = {"hidden": "3", "depth": "2", "rate": "0.1", "data_dir": "/data"}
    run(main, workers=2, servers=1, rounds=2, options=given)
    assert capsys.readouterr().err == (
        "polyrhythm: --data-dir /data had no effect: the job's code has not called worker.data(), which"
        " searches it\n"
        "polyrhythm: --set hidden=3 had no effect: the job's code has not read"
        " worker.options['hidden']\n"
    )


def test_a_data_dir_that_is_searched_is_not_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mnist").mkdir()
    for file in known("mnist").forms[0].files:
        (tmp_path / "mnist" / file.name).touch()

    def main(worker: Worker) -> None:
        assert worker.data("mnist") == tmp_path / "mnist"
        train(worker)

    run(main, workers=1, servers=1, rounds=2, options={"data_dir": str(tmp_path)})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("read", [dict, list, lambda given: {**given}, lambda given: given.items()])
def test_reading_all_options_at_once_counts(
    read: Callable[[dict[str, str]], object], capsys: pytest.CaptureFixture[str]
) -> None:
    def main(worker: Worker) -> None:
        read(worker.options)
        train(worker)

    run(main, workers=1, servers=1, rounds=2, options={"hidden": "3"})
    assert capsys.readouterr().err == ""


def test_a_worker_without_an_assignment_uses_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    def main(worker: Worker) -> None:
        assert worker.device == torch.device("cpu")
        train(worker)

    run(main, rounds=2)
    assert capsys.readouterr().err == ""
