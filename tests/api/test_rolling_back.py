"""A job with `--on-loss resume` rolls back whichever process notices the loss first."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polyrhythm.api.running import _resumed
from polyrhythm.core.machine import Reason
from polyrhythm.core.supervision import Resuming
from polyrhythm.engines.engine import EngineRun
from polyrhythm.wire.messages import JobSpec


@pytest.mark.parametrize(
    ("reason", "lead_lost", "rolls_back"),
    [("job-failed", True, True), ("slices-lost", False, True), ("job-failed", False, False)],
)
def test_a_loss_that_the_engine_found_first_rolls_the_job_back(
    tmp_path: Path, reason: str, lead_lost: bool, rolls_back: bool
) -> None:
    """The store has no checkpoint, so a job that tries to roll back reports that it cannot."""
    said: list[str] = []
    spec = JobSpec(job="j", servers=2, on_loss="resume", store=str(tmp_path))
    ended = SimpleNamespace(reason=Reason(reason, {}))
    progress: Any = SimpleNamespace(say=said.append, state=SimpleNamespace(ended=ended, round=7))
    run = EngineRun(failed="server s1 died", lost=1, lead_lost=lead_lost)
    assert _resumed(Resuming(spec), spec, run, cast(Any, progress)) is None
    assert any("cannot be resumed" in line for line in said) == rolls_back
