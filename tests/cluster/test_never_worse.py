"""FSP, Theorem 2, with real workers: the objective of all points never gets worse from one version to a
later one, while points move from a slow worker to fast ones, and after a worker was killed."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster.processes import Command

JOB = Path(__file__).parent / "jobs" / "never_worse.py"
POINTS = 3_000
KILLED = 3
"""The exit status of a command of which a worker was killed."""
ROUNDING = 1e-10


@pytest.mark.timeout(150)
@pytest.mark.parametrize("algorithm", ["full", "fuzzy"])
def test_the_objective_of_all_points_never_gets_worse(algorithm: str, tmp_path: Path) -> None:
    flags = ["--sync", "fsp", "--interval", "15ms", "--min-step", "4ms", "--migrate", "full"]
    flags += ["--kind", "statistics", "--workers", 3, "--slow", "2=4x", "--epochs", 8, "--json"]
    more = ("--set", f"algorithm={algorithm}", "--set", "die=3000")
    with Command(JOB, *flags, *more, cwd=tmp_path) as command:
        assert command.wait() == KILLED, command.stderr()
        assert command.journal("points-moved")
    versions = json.loads((tmp_path / "worker-0.values").read_text())
    counts = [points for _, points, _ in versions]
    later = counts[counts.index(POINTS) :]
    assert min(later) < POINTS, "points were missing after the death"
    found = [objective for _, _, objective in versions if objective is not None]
    assert all(after <= before + ROUNDING * abs(before) for before, after in pairwise(found))
    assert found[-1] < found[0], "the fit got better"
