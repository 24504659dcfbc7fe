"""`--kind statistics` with real processes. A seeded schedule kills, stops, adds and removes workers
and servers. In spite of these faults, the sum of statistics in every version must contain every
point at most once.

The job (`jobs/tally.py`) checks every version on every worker. The tests try 4 schedules, and 20 if
POLYRHYTHM_TORTURE is above 1.
"""

import os
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyrhythm.store.listing import listing
from polyrhythm.store.objects import open_store
from tests.cluster.job_servers import JobServers
from tests.cluster.job_workers import JobWorkers
from tests.cluster.ledger_job import endure, gather, say_how_again
from tests.cluster.processes import Command
from tests.commands.start import run

JOB = Path(__file__).parent / "jobs" / "tally.py"
POINTS = 600
SEEDS = range(4 if int(os.environ.get("POLYRHYTHM_TORTURE", "1")) == 1 else 20)
SYNCS = ["bsp", "fsp", "bspb", "bspv"]
WORKERS = ("kill", "kill", "stop", "pause", "join", "join", "leave")
SERVERS = ("kill-server", "stop-server", "pause-server", "kill", "stop", "join", "cut")
FAULTS = 5
KIND = ("--kind", "statistics", "--json")
STEP = ("--min-step", "5ms")


def numbers(folder: Path) -> dict[str, tuple[float, float, bool]]:
    """For each worker that has ended normally: the number of its last M-step, the points in the last
    sum, and whether the algorithm has ended the job."""
    found = {}
    for path in folder.glob("*.result"):
        number, points, terminated = path.read_text().split()
        found[path.stem] = float(number), float(points), terminated == "True"
    return found


def finish(job_workers: JobWorkers) -> None:
    """Let the job end, and check that no worker has seen a fault."""
    command = job_workers.command
    job_workers.until_calm()
    (command.cwd / "finish").touch()
    assert command.wait() == 0, command.stderr()
    assert [path.read_text() for path in command.cwd.glob("*.fault")] == []
    assert len(numbers(command.cwd)) >= 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_point_is_in_the_sum_at_most_once(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    say_how_again(request, seed)
    rng = random.Random(f"statistics {seed}")
    servers = seed % 2 == 1
    faults = rng.sample(SERVERS if servers else WORKERS, FAULTS)
    print(f"faults: {' '.join(faults)}")
    sync = SYNCS[seed % len(SYNCS)]
    more = ["--sync", sync, "--timer", "1s", "--interval", "60ms", "--respawn"]
    more += ["--target-accuracy", 1.0, "--workers", 3, "--servers", 3, "--min-step", "100ms"]
    more += ["--replicas", 1] if servers else []
    with Command(JOB, *KIND, *more, cwd=tmp_path) as command:
        job_workers = gather(command, rng, workers=3)
        job_servers = JobServers(job_workers, rng) if servers else None

        def begin_fault(fault: str) -> None:
            if job_servers is not None and fault in job_servers.kinds:
                # a version may be torn if a worker and a server die at the same time (decision 071)
                job_workers.until_calm()
                job_servers.begin_fault(fault)
                job_workers.until_calm()
            else:
                job_workers.begin_fault(fault)

        endure(job_workers, faults, begin_fault, rng)
        finish(job_workers)


def test_parameters_that_differ_do_not_drift_apart(tmp_path: Path) -> None:
    more = ("--sync", "bspb", "--workers", 3, "--servers", 2, "--epochs", 15, "--set", "drift=1")
    with Command(JOB, *KIND, *STEP, *more, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        saved = load_file(command.run_dir / "model.safetensors")
    found = numbers(tmp_path)
    assert found == dict.fromkeys(found, (16.0, POINTS, False)), "all have those of worker-0"
    assert float(saved["number"]) == 16.0


def test_the_algorithm_ends_the_job(tmp_path: Path) -> None:
    more = ("--sync", "bspb", "--workers", 2, "--servers", 2, "--set", "stop=6", "--epochs", 50)
    with Command(JOB, *KIND, *STEP, *more, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        (ended,) = command.journal("ended")
        assert ended["fields"] == {"goal": "terminated", "why": "converged"}
        saved = load_file(command.run_dir / "model.safetensors")
    assert set(numbers(tmp_path).values()) == {(6.0, POINTS, True)}
    assert {name: float(value) for name, value in saved.items()} == {
        "number": 6.0,
        "points": POINTS,
    }


@pytest.mark.parametrize("die", [10, 12])
def test_points_of_a_worker_that_is_killed_in_the_last_pass_are_in_the_last_sum(
    die: int, tmp_path: Path
) -> None:
    """A pass has 4 rounds, and every worker visits one chunk in each round. The worker that is
    killed has visited 1 or 3 of its 4 chunks in the last pass."""
    more = ("--sync", "bsp", "--workers", 2, "--epochs", 3, "--set", "batch=75")
    with Command(JOB, *KIND, *STEP, *more, "--set", f"die={die}", cwd=tmp_path) as command:
        # exit code 3: the job reached its goal, but a worker failed
        assert command.wait() == 3, command.stderr()
        (ended,) = command.journal("ended")
        assert ended["fields"]["goal"] == "passes"
    assert [path.read_text() for path in tmp_path.glob("*.fault")] == []
    (found,) = numbers(tmp_path).values()
    assert found[1] == POINTS


def test_a_job_begins_with_a_saved_model(tmp_path: Path) -> None:
    saved = {name: torch.tensor(41.0, dtype=torch.float64) for name in ("number", "points")}
    save_file(saved, tmp_path / "first.safetensors")
    more = ("--sync", "bspb", "--workers", 2, "--epochs", 3, "--init", "first.safetensors")
    with Command(JOB, *KIND, *STEP, *more, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
    assert {number for number, _, _ in numbers(tmp_path).values()} == {44.0}


def test_a_resumed_job_keeps_its_parameters_until_every_point_is_in_the_sum(
    tmp_path: Path,
) -> None:
    """Every worker visits one of its four chunks in a step, so a pass has 4 rounds. A job that begins
    anew makes an M-step in every round; a job that resumes waits for a pass."""
    more = ("--sync", "bsp", "--workers", 2, "--servers", 2, "--rounds", 24, "--set", "batch=75")
    with Command(
        JOB, *KIND, *STEP, *more, "--checkpoint-every", "10rounds", cwd=tmp_path
    ) as command:
        assert command.wait() == 0, command.stderr()
    before = {name: number for name, (number, _, _) in numbers(tmp_path).items()}
    assert before == {"worker-0": 25.0, "worker-1": 25.0}
    listed = listing(open_store(str(command.run_dir)))
    cut = max(each.checkpoint.manifest.round for each in listed if each.checkpoint is not None)
    for more_rounds, m_steps in ((3, 0), (8, 5)):
        goal = ("--name", f"more-{more_rounds}", "--rounds", cut + more_rounds)
        # the command reads the store before it starts the job
        done = run("resume", "run", *goal, cwd=tmp_path, timeout_s=90, spares=1)
        assert done.returncode == 0, done.stderr
        # the checkpoint has the parameters before the M-step of its last round
        assert {number for number, _, _ in numbers(tmp_path).values()} == {cut + m_steps}


@pytest.mark.parametrize(
    ("sync", "points", "passes"), [("fsp", 300, 12), ("bsp", 10, 20)], ids=["fsp", "bsp"]
)
def test_points_move_with_what_they_remember(
    sync: str, points: int, passes: int, tmp_path: Path
) -> None:
    """A slow worker gives points to fast ones. In every version every point is in the sum at most
    once, and the last sum contains all points. Under bsp the job has 10 points, which cannot be
    divided evenly among the workers, so some of them move at the end."""
    more = ["--sync", sync, "--interval", "60ms", "--workers", 3, "--servers", 2, "--slow", "2=4x"]
    more += ["--migrate", "full", "--epochs", passes, "--set", "batch=25", "--check"]
    more += ["--set", f"points={points}", "--min-step", "20ms"]
    with Command(JOB, *KIND, *more, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        moved = command.journal("points-moved")
    assert [path.read_text() for path in tmp_path.glob("*.fault")] == []
    assert {found for _, found, _ in numbers(tmp_path).values()} == {points}
    if sync == "fsp":
        assert sum(line["points"] for line in moved) > 0
