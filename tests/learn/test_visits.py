"""The fields of a contribution about its steps: points, progress, objective and number of steps."""

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.learn.objective import NOT_PROBED, Probe
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import ContributionReport, JobSpec

POINTS = 60
DATA = (torch.arange(float(POINTS)).reshape(POINTS, 1) / POINTS, torch.ones(POINTS, 1))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the fields of every contribution in order, with the terms (the lead's plan for the
    step) under which it was made."""
    found: list[dict[str, Any]] = []
    contribute = WorkerNode.contribute

    def record(node: WorkerNode, report: ContributionReport, *said: Any, **how: Any) -> None:
        fields = msgspec.structs.asdict(report)
        push = [tensor.clone() for tensor in node.push]
        found.append(
            {**fields, "terms": node.loop.terms, "push": push, "stopped": node.loop.stopped}
        )
        contribute(node, report, *said, **how)

    monkeypatch.setattr(WorkerNode, "contribute", record)
    return found


def run(objective_of: Callable[[Any], float], *, batch: int = 8, **job: Any) -> None:
    """Run a job. `objective_of(worker)` is called before every step and returns the objective of
    the step."""

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for points, targets in worker.batches(DATA, batch_size=batch):
            ((model(points) - targets) ** 2).mean().backward()
            optimizer.step(objective=objective_of(worker))

    fields = {"workers": 1, "servers": 1, "heartbeat_s": 20.0, **job}
    run_inline(JobSpec(job="visits", **fields), main, timeout_s=60)


def test_a_contribution_reports_the_objective_of_its_own_steps(sent: list[dict[str, Any]]) -> None:
    """The steps have the objectives 0, 0, 1, 1, 2, 2, and each contribution contains two steps."""
    steps = count()
    run(lambda _: float(next(steps) // 2), kind="local", local_steps=2, epochs=1, batch=10)
    assert [line["objective"] for line in sent] == [0.0, 1.0, 2.0]


def test_under_bspv_a_round_has_exactly_the_planned_number_of_points(
    sent: list[dict[str, Any]],
) -> None:
    """The first plan of a round is 32 points. With batches of 12, these are two full batches and
    one of 8."""
    run(lambda _: 1.0, sync="bspv", rounds=4, batch=12)
    assert {line["terms"].points for line in sent} == {32}
    assert [line["weight"] for line in sent] == [32.0] * 4


def test_the_objective_of_an_abandoned_micro_batch_is_not_counted(
    sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second micro-batch is abandoned, unless it is the first of its round."""
    turn, doomed = count(), [False]

    def objective_of(worker: Any) -> float:
        doomed[0] = worker._exchange.window.gathered > 0 and next(turn) % 2 == 0
        return 1e6 if doomed[0] else 1.0

    times: list[bool] = []

    def abandons(late_ns: int, patience_ns: int | None, gathered: float) -> bool:
        times.append(doomed[0])
        return doomed[0]

    monkeypatch.setattr("polyrhythm.core.worker.cadence.abandons", abandons)
    run(objective_of, sync="fsp", interval="500ms", abandon="1ms", epochs=3, batch=2)
    assert any(times), "or nothing was abandoned"
    assert {line["objective"] for line in sent} == {1.0}
    assert sum(line["weight"] for line in sent) == 3 * POINTS


def test_under_psp_a_contribution_has_the_predicted_number_of_steps(
    sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step, the test waits for the version of the last contribution. So only the plan
    decides when the worker contributes."""

    def wait_and_look(node: WorkerNode) -> bool:
        node.loop.await_version()
        return node.loop.resumed

    monkeypatch.setattr(WorkerNode, "look", wait_and_look)
    run(lambda _: 1.0, sync="psp", kind="local", workers=2, rounds=8)
    # the last contribution has only the remaining steps
    planned = [line for line in sent if not line["stopped"]]
    assert len(planned) >= 8
    assert all(line["steps"] == max(1, line["terms"].steps) for line in planned)


def test_the_gradient_of_a_round_is_the_mean_over_its_points(sent: list[dict[str, Any]]) -> None:
    """The learning rate is 0, so the parameter is constant and the gradient of a point is the
    point's number."""
    visited: list[list[torch.Tensor]] = []

    def main(worker: Worker) -> None:
        parameter = torch.nn.Parameter(torch.zeros(1))
        model = torch.nn.ParameterList([parameter])
        optimizer = worker.attach(model, torch.optim.SGD([parameter], lr=0.0))
        for points, _ in worker.batches(DATA, batch_size=8):
            if len(visited) == len(sent):
                visited.append([])
            visited[-1].append(points)
            (parameter * points).mean().backward()
            optimizer.step()

    job = JobSpec(job="gathered", sync="fsp", interval="500ms", workers=1, epochs=4)
    run_inline(job, main, timeout_s=60)
    assert any(len({len(points) for points in batches}) > 1 for batches in visited), "all alike"
    assert len(visited) == len(sent)
    for batches, line in zip(visited, sent, strict=True):
        assert line["push"][0][0].item() == pytest.approx(torch.cat(batches).mean().item())


# -- the probe sample ------------------------------------------------------------------------------


def probe_of(found: list[int]) -> Probe:
    """Return a probe with a sample of 300 of 1,000 points. The loss of a batch is the mean of its
    numbers."""

    def fetch(indices: Any) -> torch.Tensor:
        found.extend(map(int, indices))
        return torch.tensor(found[-len(indices) :], dtype=torch.float64)

    return Probe(1_000, 300, 7, fetch, lambda batch: batch.mean())


def test_workers_share_one_probe_sample_between_them() -> None:
    whole: list[int] = []
    probe_of(whole).evaluate(0, 1)
    assert len(set(whole)) == 300
    shared: list[int] = []
    for part in range(3):
        probe_of(shared).evaluate(part, 3)
    assert sorted(shared) == sorted(whole)


def test_the_loss_on_the_probe_sample_is_the_mean_over_its_points() -> None:
    found: list[int] = []
    probe = probe_of(found)
    probe.evaluate(0, 1)
    loss, points, _ = probe.result()
    assert points == 300
    assert loss == pytest.approx(sum(found) / 300)


def test_an_evaluation_of_the_probe_sample_is_reported_once() -> None:
    probe = Probe(10, 10, 0, lambda indices: indices, lambda batch: torch.tensor(2.0))
    assert probe.result() == NOT_PROBED
    probe.evaluate(0, 1)
    loss, points, took_ns = probe.result()
    assert (loss, points) == (2.0, 10) and took_ns > 0
    assert probe.result() == NOT_PROBED
