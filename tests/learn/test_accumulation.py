"""Gradient accumulation: the user's loop makes a step after several batches.

The learning rate is 0, or the gradient does not depend on the parameter, and the gradient of a point
is the point's number. So a contribution shows which points are in it.
"""

from itertools import count
from typing import Any

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import ContributionReport, JobSpec

POINTS = 67
DATA = (torch.arange(1.0, POINTS + 1),)
BATCH = 4


class Loop:
    """A training loop of one worker. It makes a step after every `every` batches, and records the
    contributions with the batches of each."""

    def __init__(self, patch: pytest.MonkeyPatch, every: int) -> None:
        self.every = every
        self.steps: list[list[torch.Tensor]] = [[]]
        """The batches of each step since the last contribution."""
        self.sent: list[tuple[float, float, list[list[torch.Tensor]]]] = []
        """Per contribution: its weight, its gradient or change, and the batches of each step."""
        contribute = WorkerNode.contribute

        def record(node: WorkerNode, report: ContributionReport, *said: Any, **how: Any) -> None:
            steps, self.steps = [step for step in self.steps if step], [[]]
            self.sent.append((report.weight, node.push[0][0].item(), steps))
            contribute(node, report, *said, **how)

        patch.setattr(WorkerNode, "contribute", record)

    def run(self, rate: float = 0.0, **fields: Any) -> int:
        """Run a job with one worker. Returns the number of points that the job has counted."""

        def main(worker: Worker) -> None:
            parameter = torch.nn.Parameter(torch.zeros(1))
            model = torch.nn.ParameterList([parameter])
            optimizer = worker.attach(model, torch.optim.SGD([parameter], lr=rate))
            for number, (points,) in enumerate(worker.batches(DATA, batch_size=BATCH), 1):
                self.steps[-1].append(points)
                ((parameter * points).mean() / self.every).backward()
                if number % self.every == 0:
                    self.steps.append([])
                    optimizer.step()

        job = {"workers": 1, "servers": 1, "heartbeat_s": 20.0, "min_batch": 1, **fields}
        run = run_inline(JobSpec(job="accumulation", **job), main, timeout_s=60)
        return sum(line["points"] for line in run.journal if line["what"] == "rounds")

    def gradient(self, step: list[torch.Tensor]) -> float:
        return sum(batch.mean().item() for batch in step) / self.every

    def visited(self) -> list[float]:
        return sorted(
            x for _, _, steps in self.sent for step in steps for x in torch.cat(step).tolist()
        )


def size_of(step: list[torch.Tensor]) -> int:
    return sum(len(batch) for batch in step)


@pytest.mark.parametrize("sync", ["bsp", "ssp:1", "asp", "bspb", "bspv", "fsp"])
@pytest.mark.parametrize("every", [2, 3])
def test_a_contribution_is_the_mean_of_its_steps_weighted_by_points(
    sync: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last contribution is included: the data end in the middle of an accumulation, and the
    worker contributes the gradients so far."""
    loop = Loop(monkeypatch, every)
    assert loop.run(sync=sync, epochs=2, interval="20ms") == 2 * POINTS
    assert loop.visited() == sorted([*DATA[0].tolist()] * 2)
    for weight, push, steps in loop.sent:
        points = [size_of(step) for step in steps]
        assert weight == sum(points)
        gradients = [loop.gradient(step) for step in steps]
        mean = sum(g * n for g, n in zip(gradients, points, strict=True)) / weight
        assert push == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("sync", ["bsp", "psp"])
def test_local_steps_include_the_rest_of_an_accumulation(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(monkeypatch, 3)
    fields = {"local_steps": 2} if sync == "bsp" else {}
    assert loop.run(rate=1.0, sync=sync, kind="local", epochs=2, **fields) == 2 * POINTS
    changed = sum(push for _, push, _ in loop.sent)
    gradients = sum(loop.gradient(step) for _, _, steps in loop.sent for step in steps)
    assert changed == pytest.approx(-gradients, rel=1e-4)


@pytest.mark.parametrize("sync", ["bspv", "fsp"])
def test_the_batches_of_a_step_have_the_same_size(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy changes the batch size, but not in the middle of an accumulation. So the mean of
    the gradients is the mean over the points."""
    loop = Loop(monkeypatch, 3)
    loop.run(sync=sync, epochs=6, interval="20ms")
    done = 0
    for step in (step for _, _, steps in loop.sent for step in steps):
        sizes = [len(batch) for batch in step]
        first, done = done, done + sum(sizes)
        if first // POINTS == done // POINTS:  # a pass may end with a smaller batch
            assert len(set(sizes)) == 1


def test_an_abandoned_step_gives_back_all_of_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third step is abandoned, unless it is the first of its round."""
    loop = Loop(monkeypatch, 2)
    turn = count()

    def abandons(late_ns: int, patience_ns: int | None, gathered: float) -> bool:
        doomed = gathered > 0 and next(turn) % 3 == 0
        if doomed:
            loop.steps[-2:] = [[]]
        return doomed

    monkeypatch.setattr("polyrhythm.core.worker.cadence.abandons", abandons)
    assert loop.run(sync="fsp", epochs=3, interval="20ms", abandon="1ms") == 3 * POINTS
    assert next(turn) > 3, "or nothing was abandoned"
    assert loop.visited() == sorted([*DATA[0].tolist()] * 3)
