"""With real workers, the lead detects that a job does not learn."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.errors import JobFailed
from polyrhythm.learn.worker import Worker
from polyrhythm.wire.messages import JobSpec

POINTS = 96
POLICIES = ["bsp", "asp", "ssp:4", "fsp"]


def train(worker: Worker, rate: float, shown: Any) -> None:
    """Train on equal points, so that the loss has no noise. The loss falls with a rate below 0.5
    and grows with a higher rate. `shown(loss, step)` is reported as the objective."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    x, y = torch.ones(POINTS, 1), torch.full((POINTS, 1), 5.0)
    exchange = worker.attach(model, torch.optim.SGD(model.parameters(), lr=rate))
    for step, (batch, targets) in enumerate(worker.batches((x, y), 8)):
        loss = torch.nn.functional.mse_loss(model(batch), targets)
        loss.backward()
        exchange.step(objective=shown(loss, step))


def run(
    sync: str,
    rate: float,
    shown: Any = lambda loss, step: loss,
    epochs: int | None = 4,
    rounds: int | None = None,
) -> InlineRun:
    job = JobSpec(job="j", workers=2, sync=sync, epochs=epochs, rounds=rounds, timer="off")
    if sync == "fsp":
        job = replace(job, interval="5ms")
    return run_inline(job, lambda worker: train(worker, rate, shown))


def findings(found: InlineRun) -> list[str]:
    return [line["state"] for line in found.journal if line["what"] == "learning"]


@pytest.mark.parametrize("sync", POLICIES)
def test_a_job_that_learns_is_not_reported(sync: str) -> None:
    found = run(sync, rate=0.03)
    assert findings(found) == []
    (ended,) = [line for line in found.journal if line["what"] == "ended"]
    assert ended["learning"]["state"] == "falling"
    assert ended["learning"]["best"] < ended["learning"]["first"]


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:4"])
def test_a_rate_that_is_too_high_is_reported(sync: str) -> None:
    # without rounds, each contribution is folded alone, at half the rate
    scale = 1 if sync == "bsp" else 2
    found = run(sync, rate=0.7 * scale, epochs=3)
    assert findings(found)[-1] == "rising"
    assert found.outcome is not None and not found.outcome.failed, "the job did what it was told"


@pytest.mark.parametrize("sync", POLICIES)
def test_a_rate_of_almost_nothing_is_reported(sync: str) -> None:
    # how many passes a round of fsp contains depends on the machine
    epochs, rounds = (None, 250) if sync == "fsp" else (20, None)
    assert findings(run(sync, rate=1e-9, epochs=epochs, rounds=rounds)) == ["stalled"]


@pytest.mark.parametrize("sync", POLICIES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_objective_that_is_not_finite_at_the_end_fails_the_job(sync: str, value: float) -> None:
    """The gradients stay finite, because a worker refuses to send gradients that are not finite."""
    with pytest.raises(JobFailed) as caught:
        run(sync, rate=0.03, shown=lambda loss, step: value if step > 3 else loss)
    assert "reached its goal (4 passes over the data)" in str(caught.value)
    assert "the objective is not finite" in str(caught.value)


def test_a_single_loss_that_is_not_finite_fails_nothing() -> None:
    nan = float("nan")
    found = run("bsp", rate=0.03, shown=lambda loss, step: nan if step == 2 else loss)
    assert findings(found) == ["not-finite", "falling"]
    assert found.outcome is not None and not found.outcome.failed
