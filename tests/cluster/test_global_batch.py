"""`--global-batch` keeps the points of each version constant when a worker dies."""

import os
import signal
from collections import Counter
from pathlib import Path

from tests.cluster.jobs.points_per_version import HELD
from tests.cluster.processes import Command, call, wait_until

JOB = Path(__file__).parent / "jobs" / "points_per_version.py"
POINTS, ROUNDS = 61, 24
FLAGS = ("--global-batch", POINTS, "--min-batch", 1, "--timer", "off")


def test_the_points_of_each_version_stay_the_same_when_a_worker_dies(tmp_path: Path) -> None:
    """Only the version of the round in which it died lacks its points."""
    with Command(
        *(JOB, "--workers", 3, "--servers", 2, "--rounds", ROUNDS, *FLAGS), cwd=tmp_path
    ) as command:
        wait_until(lambda: (tmp_path / "held").exists(), "worker-1 waits in a batch")
        os.kill(int((tmp_path / "worker-1.pid").read_text()), signal.SIGKILL)
        assert command.wait(90) in (0, 3)
    points: dict[str, Counter[int]] = {}
    for file in tmp_path.glob("*.points"):
        counts = points[file.stem] = Counter()
        for line in file.read_text().splitlines():
            version, count = map(int, line.split())
            counts[version] += count
    total = sum(points.values(), Counter())
    assert set(total) == set(range(ROUNDS))
    assert {version for version in total if total[version] != POINTS} == {HELD}
    before = sorted(counts[HELD - 1] for counts in points.values())
    after = sorted(counts[HELD + 1] for counts in points.values())
    assert (before, after) == ([20, 20, 21], [0, 30, 31])


def test_a_global_batch_under_another_policy_is_refused_in_one_line(tmp_path: Path) -> None:
    done = call("train", JOB, "--sync", "fsp", "--rounds", 1, *FLAGS, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "--global-batch goes with --sync bsp" in line
