"""PSP and FSP with the inline engine. Under PSP no worker waits at the barrier. Under FSP all
workers have equal parameters after the barrier. Under both the models reach the optimum."""

import threading
from collections import defaultdict
from typing import Any

import pytest
import torch

from polyrhythm.core.batches import least_of
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.rounds.counting import Counting
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.engines import inline
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages import (
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    Target,
    TensorSpec,
    Trailer,
)

TRUTH = torch.tensor([[1.0, -2.0, 0.5, 3.0]])


def points() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(240, 4, generator=torch.Generator().manual_seed(1))
    return inputs, inputs @ TRUTH.T


class Fit:
    """A convex problem. It records the parameters that every worker sees at each version and at the
    end."""

    def __init__(self, probe: bool = False) -> None:
        self.probe = probe
        self.seen: dict[int, list[torch.Tensor]] = defaultdict(list)
        self.final: list[torch.Tensor] = []
        self.losses: list[float] = []
        self._lock = threading.Lock()

    def main(self, worker: Worker) -> None:
        torch.manual_seed(worker.seed)
        model = torch.nn.Linear(4, 1, bias=False)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.15))
        data = points()
        if self.probe:
            worker.probe(data, lambda batch: ((model(batch[0]) - batch[1]) ** 2).mean())
        for inputs, wanted in worker.batches(data, batch_size=8):
            with self._lock:
                self.seen[worker.version].append(model.weight.detach().clone())
            loss = ((model(inputs) - wanted) ** 2).mean()
            loss.backward()
            optimizer.step(objective=loss)
            with self._lock:
                self.losses.append(loss.item())
            self.after_step(worker)
        with self._lock:
            self.final.append(model.weight.detach().clone())

    def after_step(self, worker: Worker) -> None: ...


def run(fit: Fit, **job: object) -> InlineRun:
    fields = {"workers": 3, "servers": 2, "slice_nbytes": 64, "heartbeat_s": 20.0}
    spec = JobSpec(job="j", **{**fields, **job})
    return run_inline(spec, fit.main, options=NodeOptions(check=True), timeout_s=60)


def close(weight: torch.Tensor, tolerance: float) -> bool:
    return bool((weight - TRUTH).abs().max() < tolerance)


def test_psp_learns_while_workers_train_through_the_barrier() -> None:
    fit = Fit()
    done = run(fit, sync="psp", kind="local", rounds=25)
    assert done.outcome is not None and not done.outcome.failed
    assert all(close(weight, 0.1) for weight in fit.final)


@pytest.mark.parametrize("goal", [{"epochs": 6}, {"rounds": 12}])
def test_under_psp_all_workers_end_with_the_averaged_model(goal: dict[str, int]) -> None:
    """At the end, the workers drop the steps that they made since their last contribution."""
    fit = Fit()
    run(fit, sync="psp", kind="local", **goal)
    assert len(fit.final) == 3
    assert all(torch.equal(one, fit.final[0]) for one in fit.final)


@pytest.mark.parametrize("coordination", ["semi", "central"])
@pytest.mark.parametrize("kind", ["gradient", "local"])
def test_fsp_learns_with_rounds_that_end_by_the_clock(kind: str, coordination: str) -> None:
    fit = Fit()
    done = run(fit, sync="fsp", kind=kind, interval="5ms", coordination=coordination, rounds=30)
    assert done.outcome is not None and not done.outcome.failed
    assert all(close(weight, 0.3) for weight in fit.final)
    assert all(torch.equal(weight, fit.final[0]) for weight in fit.final)


def test_all_workers_see_equal_parameters_at_every_round_of_fsp() -> None:
    fit = Fit()
    run(fit, sync="fsp", interval="5ms", rounds=40)
    assert len(fit.seen) > 20
    for version, weights in fit.seen.items():
        assert all(torch.equal(weight, weights[0]) for weight in weights), version


def test_the_interval_is_found_with_the_probe_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends when the interval is found."""
    journals: list[MemoryJournal] = []

    def journal() -> MemoryJournal:
        journals.append(MemoryJournal())
        return journals[-1]

    class Until(Fit):
        def after_step(self, worker: Worker) -> None:
            if "interval-chosen" in reasons(journals[0].lines):
                worker.report(accuracy=1.0)

    monkeypatch.setattr(inline, "MemoryJournal", journal)
    target = Target("accuracy", 1.0, True)
    done = run(Until(probe=True), sync="fsp", interval="auto", rounds=250, targets=(target,))
    told = reasons(done.journal)
    assert "interval-chosen" in told[told.index("interval-measuring") :]


def reasons(journal: list[dict[str, Any]]) -> list[str]:
    return [line["reason"] for line in list(journal) if line["what"] == "policy"]


def test_a_point_that_takes_long_is_abandoned_visited_again_and_counted_once() -> None:
    """worker-2 pauses for half a second every 16 points. The other workers wait for it for at most
    5 ms."""
    fit = Fit()
    done = run(
        fit,
        sync="fsp",
        interval="40ms",
        abandon="5ms",
        epochs=2,
        slowdowns={"stall": "2=500ms/16", "min-step": "5ms"},
    )
    assert done.outcome is not None and not done.outcome.failed
    lines = [line for line in done.journal if line["what"] == "rounds"]
    assert sum(line["points"] for line in lines) == 2 * len(points()[0])
    assert sum(line["abandoned"] for line in lines) > 0
    assert sum(totals["redone_ns"] for totals in lines[-1]["workers"].values()) > 0
    assert all(torch.equal(weight, fit.final[0]) for weight in fit.final)


def begun() -> tuple[torch.Tensor, FlatModel]:
    """Return a tensor and its model, whose changes are counted from the initial parameters."""
    tensor = torch.tensor([1.0, 2.0, 3.0, 4.0])
    spec = ModelSpec(
        (TensorSpec("w", (4,), "float32", 0, (1,)),), OptimizerSpec("SGD", ({"lr": 0.1},))
    )
    layout = lay_out(spec, 1, 1 << 20)
    model = FlatModel(layout, [tensor], "same", aside=True)
    model.remember(parameters=True)
    return tensor, model


def change_of(model: FlatModel) -> list[torch.Tensor]:
    """Return the change that a contribution would contain now."""
    change = [torch.zeros(model.layout.spaces[0].length)]
    model.fill_changes(change)
    return change


def on_its_way() -> tuple[torch.Tensor, FlatModel, list[torch.Tensor]]:
    """Return a tensor, its model, and a change that was sent. A second change was made after
    sending."""
    tensor, model = begun()
    tensor += 1.0
    sent = change_of(model)
    tensor += 0.5
    return tensor, model, sent


def land(model: FlatModel, values: list[float]) -> None:
    padded = torch.zeros(model.layout.spaces[0].length)
    padded[: len(values)] = torch.tensor(values)
    model.land(model.layout.slices[0], memoryview(padded.numpy()).cast("B"))


def test_rebase_keeps_what_was_learned_since_it_was_sent() -> None:
    tensor, model, sent = on_its_way()
    land(model, [10.0, 20.0, 30.0, 40.0])
    assert tensor.tolist() == [2.5, 3.5, 4.5, 5.5], "what arrives does not disturb who computes"
    model.rebase(sent)
    assert tensor.tolist() == [10.5, 20.5, 30.5, 40.5]
    assert change_of(model)[0][:4].tolist() == [0.5] * 4, "the next contribution carries it"


def test_a_worker_that_leaves_does_not_send_a_contribution_in_flight_again() -> None:
    _, model, sent = on_its_way()
    model.set_apart(sent)
    assert change_of(model)[0][:4].tolist() == [0.5] * 4


def test_a_worker_that_rejoins_counts_its_changes_from_the_version_it_rejoined_with() -> None:
    """If the worker counted its changes from its former parameters, its next contribution would
    repeat the changes of other workers."""
    tensor, model = begun()
    land(model, [10.0, 20.0, 30.0, 40.0])
    model.adopt()
    tensor += 0.5
    assert change_of(model)[0][:4].tolist() == [0.5] * 4


@pytest.mark.parametrize("sync", ["bspb", "bspv"])
def test_bspb_and_bspv_reach_the_optimum(sync: str) -> None:
    fit = Fit()
    done = run(fit, sync=sync, rounds=15)
    assert done.outcome is not None and not done.outcome.failed
    assert all(close(weight, 0.3) for weight in fit.final)
    assert all(torch.equal(weight, fit.final[0]) for weight in fit.final)
    told = [line["reason"] for line in done.journal if line["what"] == "policy"]
    assert ("batch-measuring" in told) == (sync == "bspv")
    (last,) = [line for line in done.journal if line["what"] == "rounds"][-1:]
    if sync == "bspb":
        assert last["passes"] == 15, "a round is a pass"


class Shared:
    """A problem with one parameter, for which each worker has another optimum. Local steps lower a
    worker's own loss, while the average of the models stays the same. The loop does not use
    `worker.probe`."""

    def __init__(self, rate: float, batch: int, count: int) -> None:
        self.rate, self.batch, self.count = rate, batch, count
        self.first: dict[int, set[float]] = defaultdict(set)
        """For each version, the losses of the workers before their first local step."""
        self.final: list[float] = []

    def main(self, worker: Worker) -> None:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=self.rate))
        goal = 1.0 if worker.name == "worker-0" else -1.0
        seen = -1
        for (batch,) in worker.batches((torch.ones(self.count, 1),), self.batch):
            loss = (model(batch) - goal).square().mean()
            if worker.version != seen:
                seen = worker.version
                self.first[seen].add(loss.item())
            loss.backward()
            optimizer.step(objective=loss)
        self.final.append(model.weight.item())


def test_with_local_steps_the_search_reads_the_objective_of_the_averaged_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean loss of a round is not used, because local steps lower each worker's loss without
    improving the averaged model."""
    trailers: list[Trailer] = []
    handle = Counting.on_trailer

    def spy(self: Counting, trailer: Trailer, member: Member | None, now_ns: int) -> None:
        trailers.append(trailer)
        handle(self, trailer, member, now_ns)

    monkeypatch.setattr(Counting, "on_trailer", spy)
    shared = Shared(rate=0.2, batch=4, count=2000)
    job = JobSpec(job="j", workers=2, sync="fsp", kind="local", interval="auto", rounds=40)
    run_inline(job, shared.main, timeout_s=60)
    read = [trailer for trailer in trailers if trailer.report.probe is not None]
    # the last batch of a chunk also takes a remainder that is too small for a batch
    largest = shared.batch + least_of(job.min_batch, shared.batch) - 1
    assert read, [(t.round, t.report) for t in trailers]
    for trailer in read:
        losses = shared.first[trailer.round - 1]
        assert any(trailer.report.probe == pytest.approx(loss) for loss in losses)
        assert 0 < trailer.report.probe_points <= largest


class Slope:
    """A problem whose loss is the parameter itself, so the gradient is 1 for batches of any
    size."""

    def __init__(self) -> None:
        self.final = 0.0

    def main(self, worker: Worker) -> None:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1.0))
        for (batch,) in worker.batches((torch.ones(640, 1),), 64):
            model(batch).mean().backward()
            optimizer.step()
        self.final = model.weight.item()


def test_a_batch_that_the_interval_shortens_counts_by_its_points() -> None:
    """With local steps, a pass over ten batches moves the model by ten steps, even if intervals end
    in the middle of batches."""
    slope = Slope()
    slowdowns = {"min-step": "20ms"}
    job = JobSpec(
        job="j", workers=1, sync="fsp", kind="local", interval="7ms", epochs=1, slowdowns=slowdowns
    )
    run_inline(job, slope.main, timeout_s=60)
    assert slope.final == pytest.approx(-10.0, rel=1e-4)
