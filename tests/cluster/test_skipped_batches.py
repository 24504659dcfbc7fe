"""Under policies that choose the batch size, a loop that skips small batches trains on nearly all
points."""

from pathlib import Path

import pytest

from tests.cluster.jobs.skips_small import POINTS
from tests.cluster.processes import call

JOB = Path(__file__).parent / "jobs" / "skips_small.py"
EPOCHS, WORKERS = 6, 2


@pytest.mark.parametrize("sync", ["fsp", "bspv"])
def test_a_loop_that_skips_small_batches_steps_on_nearly_all_points(
    tmp_path: Path, sync: str
) -> None:
    """The job may skip some points: each worker skips the small last batch of each pass, a few
    small batches at first, and some more when chunks move."""
    done = call(
        *("train", JOB, "--sync", sync, "--workers", WORKERS, "--servers", 1),
        *("--epochs", EPOCHS, "--check", "--quiet", "--name", "run"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    stepped = sum(int(file.read_text()) for file in tmp_path.glob("stepped-*"))
    assert stepped >= 0.6 * EPOCHS * POINTS
