"""A training loop may drop a batch: it asks for the next one without computing a gradient. The points of
a dropped batch count as visited but have no weight, and the batches that follow are large enough for the
loop."""

from pathlib import Path
from typing import Any

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.core.worker.batch_sizes import UsedSizes
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import JobFailed
from polyrhythm.observe.state import fold
from polyrhythm.observe.summary import result, summary_text
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import ContributionReport, JobSpec

POINTS, BATCH, PASSES = 400, 32, 3
DATA = (torch.arange(1.0, POINTS + 1),)
POLICIES = [
    ("bsp", "gradient"),
    ("bsp", "local"),
    ("asp", "gradient"),
    ("psp", "local"),
    ("bspb", "gradient"),
    ("bspv", "gradient"),
    ("fsp", "gradient"),
    ("fsp", "local"),
]


class Loop:
    """A loop of one worker. `keeps(points)` says whether it computes a gradient with a batch, and it
    makes a step after every `every` batches that it keeps."""

    def __init__(self, patch: pytest.MonkeyPatch, keeps: Any, every: int = 1) -> None:
        self.keeps, self.every = keeps, every
        self.got: list[int] = []
        self.kept = 0
        self.weights: list[float] = []
        contribute = WorkerNode.contribute

        def record(node: WorkerNode, report: ContributionReport, *said: Any, **how: Any) -> None:
            self.weights.append(report.weight)
            contribute(node, report, *said, **how)

        patch.setattr(WorkerNode, "contribute", record)

        self.journal: list[dict[str, Any]] = []

    def run(self, sync: str, kind: str, **fields: Any) -> int:
        """Run a job; returns its passes."""

        def main(worker: Worker) -> None:
            parameter = torch.nn.Parameter(torch.zeros(1))
            model = torch.nn.ParameterList([parameter])
            optimizer = worker.attach(model, torch.optim.SGD([parameter], lr=1e-6))
            kept = 0
            for (points,) in worker.batches(DATA, batch_size=BATCH):
                self.got.append(len(points))
                if not self.keeps(len(points)):
                    continue
                ((parameter * points).mean() / self.every).backward()
                self.kept += len(points)
                kept += 1
                if kept % self.every == 0:
                    optimizer.step()

        job = {"workers": 1, "servers": 1, "heartbeat_s": 20.0, "epochs": PASSES, **fields}
        found = run_inline(JobSpec(job="drops", sync=sync, kind=kind, **job), main, timeout_s=60)
        assert found.outcome is not None and not found.outcome.failed
        self.journal = found.journal
        return fold(found.journal).passes


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_a_loop_that_skips_small_batches_makes_its_steps(
    sync: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under fsp the first batches have 8 points. Later only the last batch of a pass is small."""
    loop = Loop(monkeypatch, lambda points: points >= BATCH)
    assert loop.run(sync, kind) == PASSES
    assert sum(loop.got) == PASSES * POINTS
    assert loop.kept > 0.8 * PASSES * POINTS
    small = [points for points in loop.got if points < BATCH]
    assert len(small) <= PASSES + 2
    # a last contribution that only reports dropped points has the smallest weight
    assert 0 <= sum(loop.weights) - loop.kept <= 1


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
def test_dropped_batches_of_an_accumulation_have_no_weight(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop drops every third batch, and makes a step after every second one that it keeps."""
    turn = iter(range(10_000))
    loop = Loop(monkeypatch, lambda points: next(turn) % 3 != 1, every=2)
    assert loop.run(sync, "gradient") == PASSES
    assert sum(loop.got) == PASSES * POINTS
    assert 0 < loop.kept < PASSES * POINTS
    assert sum(loop.weights) == loop.kept


@pytest.mark.parametrize("sync", ["bsp", "bspb", "fsp"])
def test_a_warning_is_printed_once_if_many_points_are_dropped(
    sync: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    turn = iter(range(10_000))
    loop = Loop(monkeypatch, lambda points: next(turn) % 2 == 0)
    assert loop.run(sync, "gradient", epochs=6) == 6
    assert capfd.readouterr().err.count("the training loop asked for the next batch before") == 1


def test_no_warning_is_printed_for_the_last_batches_of_passes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(monkeypatch, lambda points: points >= BATCH)
    assert loop.run("bsp", "gradient", epochs=6) == 6
    assert "asked for the next batch" not in capfd.readouterr().err


def test_a_contribution_without_a_step_is_not_called_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under bspb a worker contributes once per pass. The loop drops all batches of the first pass."""
    loop = Loop(monkeypatch, lambda points: sum(loop.got) > POINTS)
    assert loop.run("bspb", "gradient") == PASSES
    shown = result(fold(loop.journal), JobSpec(job="drops"))
    (worker,) = shown["per_worker"].values()
    assert (worker["without_step"], worker["skipped"]) == (1, 0)
    text = summary_text({**shown, "job": "drops"}, Path("runs/drops"))
    assert "1 left out (no step was made)" in text and "not finite" not in text


def test_a_loop_that_never_makes_a_step_ends_the_job_and_is_not_called_not_finite() -> None:
    job = JobSpec(job="j", epochs=1000, sync="bspb", workers=1, servers=1)

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(1, 1)
        worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in worker.batches(DATA, batch_size=POINTS):
            pass

    with pytest.raises(JobFailed, match="100 contributions .* the training loops made no step"):
        run_inline(job, main, timeout_s=60)


# -- which sizes a loop uses -----------------------------------------------------------------------


def test_the_batch_after_a_dropped_one_has_the_full_size() -> None:
    sizes = UsedSizes()
    assert sizes.least(32) == 1
    sizes.on_dropped(8)
    assert sizes.least(32) == 32


def test_a_loop_that_drops_all_small_batches_gets_none() -> None:
    sizes = UsedSizes()
    sizes.on_dropped(8)
    sizes.on_used(20)
    assert sizes.least(32) == 20 == sizes.least_used
    assert sizes.least(16) == 16, "never more than the loop asks for"


def test_a_loop_that_drops_batches_for_another_reason_gets_small_ones() -> None:
    sizes = UsedSizes()
    sizes.on_used(8)
    sizes.on_dropped(12)
    assert sizes.least(32) == 32
    sizes.on_used(32)
    assert sizes.least(32) == 1


@pytest.mark.parametrize(("dropped", "expected"), [(4, False), (5, True)])
def test_more_than_a_fifth_of_the_points_is_many(dropped: int, expected: bool) -> None:
    """The loop drops 4 or 5 of 20 batches."""
    sizes = UsedSizes()
    for number in range(20):
        assert not sizes.warns(), "too early"
        (sizes.on_dropped if number >= 20 - dropped else sizes.on_used)(8)
    assert sizes.warns() is expected
    assert not sizes.warns()


def test_a_loop_that_uses_no_batch_is_warned_early() -> None:
    sizes = UsedSizes()
    for _ in range(3):
        assert not sizes.warns()
        sizes.on_dropped(8)
    assert sizes.warns()
