"""`--global-batch` keeps the number of points of each version constant when a worker dies."""

import os
import signal
from collections import Counter
from pathlib import Path

from tests.cluster.jobs.points_per_version import HELD
from tests.cluster.processes import Command, call, wait_until

JOB = Path(__file__).parent / "jobs" / "points_per_version.py"
POINTS, ROUNDS = 61, 24
FLAGS = ("--global-batch", POINTS, "--min-batch", 1, "--timer", "off")


def read_points(folder: Path) -> dict[str, Counter[int]]:
    """Per worker and version, how many points the worker's batches have."""
    points: dict[str, Counter[int]] = {}
    for file in folder.glob("*.points"):
        counts = points[file.stem] = Counter()
        for line in file.read_text().splitlines():
            version, count = map(int, line.split())
            counts[version] += count
    return points


def test_the_points_of_each_version_stay_the_same_when_a_worker_dies(tmp_path: Path) -> None:
    """Only the version of the round in which the worker died lacks points."""
    with Command(
        *(JOB, "--workers", 3, "--servers", 2, "--rounds", ROUNDS, *FLAGS), cwd=tmp_path
    ) as command:
        wait_until(lambda: (tmp_path / "held").exists(), "worker-1 waits in a batch")
        os.kill(int((tmp_path / "worker-1.pid").read_text()), signal.SIGKILL)
        assert command.wait() in (0, 3)
    points = read_points(tmp_path)
    total = sum(points.values(), Counter())
    assert set(total) == set(range(ROUNDS))
    assert {version for version in total if total[version] != POINTS} == {HELD}
    before = sorted(counts[HELD - 1] for counts in points.values())
    after = sorted(counts[HELD + 1] for counts in points.values())
    assert (before, after) == ([20, 20, 21], [0, 30, 31])


def test_a_worker_that_joins_gets_its_share_and_the_points_of_a_version_stay_the_same(
    tmp_path: Path,
) -> None:
    """The worker joins while the others compute on version 8, or soon after. In its first rounds it
    waits for its chunks, so these rounds lack its share of the points."""
    rounds = 40
    more = ("--rounds", rounds, "--min-step", "45ms", "--set", "until=go", *FLAGS)
    with Command(*(JOB, "--workers", 2, "--servers", 2, *more), cwd=tmp_path) as command:
        wait_until(lambda: (tmp_path / "held").exists(), "worker-1 waits in a batch")
        command.join("--name", "late")
        wait_until(lambda: (tmp_path / "late.pid").exists(), "the third worker is about to attach")
        (tmp_path / "go").touch()
        assert command.wait() == 0, command.stderr()
    points = read_points(tmp_path)
    total = sum(points.values(), Counter())
    assert set(total) == set(range(rounds))
    lacking = [version for version in sorted(total) if total[version] != POINTS]
    assert len(lacking) <= 4 and max(lacking, default=0) - min(lacking, default=0) <= 4, lacking
    last = sorted(counts[rounds - 1] for counts in points.values())
    assert last == [20, 20, 21]


def test_a_global_batch_under_another_policy_is_refused_in_one_line(tmp_path: Path) -> None:
    done = call("train", JOB, "--sync", "fsp", "--rounds", 1, *FLAGS, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--global-batch needs --sync bsp" in line
