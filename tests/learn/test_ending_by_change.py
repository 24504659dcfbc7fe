"""`--target-change` with real workers: a job does not end while its objective still falls."""

import pytest
import torch

from polyrhythm.engines.inline import run_inline
from polyrhythm.learn.worker import Worker
from polyrhythm.wire.messages import JobSpec

POINTS = 96
BOUND = 1e-3
LAST: dict[str, float] = {}
"""The last loss of each worker."""


def main(worker: Worker) -> None:
    """Fit a line to points on a line: the loss falls smoothly towards 0 in a few passes."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    x = torch.linspace(-1.0, 1.0, POINTS)[:, None]
    y = 3.0 * x + 2.0
    exchange = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch, targets in worker.batches((x, y), 8):
        loss = torch.nn.functional.mse_loss(model(batch), targets)
        loss.backward()
        exchange.step(objective=loss)
        LAST[worker.name] = loss.item()


@pytest.mark.parametrize(
    ("sync", "kind"),
    [
        ("bsp", "gradient"),
        ("bsp", "local"),
        ("asp", "gradient"),
        ("asp", "local"),
        ("ssp:4", "gradient"),
        ("ssp:4", "local"),
        ("ssp-restart:4", "gradient"),
        ("psp", "local"),
        ("fsp", "gradient"),
        ("fsp", "local"),
    ],
)
def test_the_objective_has_nearly_stopped_changing_when_the_job_ends(sync: str, kind: str) -> None:
    interval = "5ms" if sync == "fsp" else "auto"
    job = JobSpec(
        job="j",
        workers=3,
        sync=sync,
        kind=kind,
        interval=interval,
        target_change=BOUND,
        max_seconds=60.0,
    )
    run = run_inline(job, main)
    assert run.outcome is not None
    reason = run.outcome.reason
    assert reason.fields["goal"] == "change", run.outcome
    assert 0.0 < reason.fields["change"] < BOUND, "two different measurements were compared"
    rounds = [line for line in run.journal if line["what"] == "rounds"]
    assert rounds[-1]["passes"] > 3
    assert max(LAST.values()) < 0.5, "the loss began at about 7"
