"""Every point counts once per pass, whether the worker itself or processes of a loader load it."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cluster.jobs.counting import POINTS
from tests.cluster.processes import Command, wait_until

JOB = Path(__file__).parent / "jobs" / "counting.py"
POLICIES = [
    ("bsp", "gradient"),
    ("bsp", "local"),
    ("bspb", "gradient"),
    ("bspv", "gradient"),
    ("ssp:2", "gradient"),
    ("asp", "gradient"),
    ("psp", "local"),
    ("fsp", "gradient"),
    ("fsp", "local"),
]


def flags(sync: str, kind: str, loaders: int, epochs: int) -> list[object]:
    local = ["--set", "local=1"] if kind == "local" else []
    return [
        *(JOB, "--sync", sync, "--kind", kind, "--set", f"loaders={loaders}", *local),
        *("--updater", "addition", "--epochs", epochs, "--servers", 1),
    ]


def seen_by_workers(folder: Path) -> Counter[int]:
    return Counter(int(word) for file in folder.glob("seen-*") for word in file.read_text().split())


def counted(command: Command) -> list[float]:
    (counts,) = load_file(command.run_dir / "model.safetensors").values()
    return counts.tolist()


def children_of(command: Command, pid: int) -> list[int]:
    found = []
    for child in command.pids():
        try:
            parent = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # the process has ended since its id was listed
        found += [child] if int(parent) == pid else []
    return found


@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_every_worker_visits_its_points_once_per_pass(
    tmp_path: Path, sync: str, kind: str, loaders: int
) -> None:
    with Command(*flags(sync, kind, loaders, 2), "--workers", 2, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        assert seen_by_workers(tmp_path) == dict.fromkeys(range(POINTS), 2)
        assert sum(line["points"] for line in command.journal("rounds")) == 2 * POINTS
        assert command.pids() == [], "no process of a loader is left"


@pytest.mark.parametrize("sync", ["bsp", "ssp:2", "asp"])
def test_points_that_were_loaded_ahead_are_neither_lost_nor_counted_twice(
    tmp_path: Path, sync: str
) -> None:
    """One worker is killed, another is asked to leave (SIGTERM), and a new one joins. Each of these
    events changes the leases. The first two workers have batches that are loaded but not yet
    visited."""
    epochs = 6
    staged = ["--workers", 3, "--min-step", "240ms", "--timer", "off", "--on-error", "go-on"]
    with Command(*flags(sync, "gradient", 2, epochs), *staged, cwd=tmp_path) as command:
        command.await_round(4)
        loaders = {pid: found for pid in command.workers() if (found := children_of(command, pid))}
        assert len(loaders) == 3
        killed, leaver, _ = loaders
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: command.journal("left"), "the death is noticed")
        os.kill(leaver, signal.SIGTERM)
        joiner = command.join(JOB, "--name", "late")
        assert command.wait() == 3, "a worker has failed"
        assert joiner.wait(30) == 0
        assert counted(command) == [epochs] * POINTS
        wait_until(lambda: not command.pids(), "the processes of all loaders have ended")


def test_a_killed_worker_is_noticed_by_the_end_of_its_link(tmp_path: Path) -> None:
    """Processes of a loader are forked from the worker. If such a process outlives a killed worker,
    it must not keep the worker's links open."""
    staged = ["--workers", 2, "--min-step", "20ms"]
    with Command(*flags("bsp", "gradient", 2, 50), *staged, cwd=tmp_path) as command:
        command.await_round(4)
        worker = next(pid for pid in command.workers() if children_of(command, pid))
        (loader, *_) = children_of(command, worker)
        # a stopped process cannot end, so this loader outlives the worker
        os.kill(loader, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        gone = wait_until(
            lambda: command.journal("left") + command.journal("lost") + command.journal("evicted"),
            "the death is noticed",
        )
        assert [line["what"] for line in gone] == ["left"], gone
        os.kill(loader, signal.SIGKILL)


def test_ctrl_c_ends_the_loop_in_order(tmp_path: Path) -> None:
    """A terminal sends SIGINT to all processes, also to those of loaders. Only the command may act
    on it: a worker fails if a process of its loader ends."""
    staged = ["--workers", 2, "--min-step", "20ms"]
    with Command(*flags("bsp", "gradient", 2, 500), *staged, cwd=tmp_path) as command:
        command.await_round(4)
        loaders = [child for pid in command.workers() for child in children_of(command, pid)]
        assert len(loaders) == 4
        for pid in [*loaders, command.process.pid]:
            os.kill(pid, signal.SIGINT)
        assert command.wait() == 130, command.stderr()
        assert "failed" not in command.stderr()
        assert command.pids() == []


def test_processes_of_a_loader_can_be_spawned(tmp_path: Path) -> None:
    spawned = ["--workers", 1, "--set", "context=spawn"]
    with Command(*flags("bsp", "gradient", 1, 1), *spawned, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        assert seen_by_workers(tmp_path) == dict.fromkeys(range(POINTS), 1)
        assert command.pids() == []
