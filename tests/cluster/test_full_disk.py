"""The disk with the folder of a run is full, or fills up while a job runs. A job that trains goes on;
its model and its journal are written when there is room. A job that has not begun is refused.

The disk is a small tmpfs that the test mounts; the test is skipped if it cannot be mounted.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from polyrhythm.store.listing import listing
from polyrhythm.store.objects import open_store
from tests.cluster.processes import Command, call, wait_until

SIZE = 256 * 1024
SCENARIO = """
[job]
rounds = 3
[[workers]]
count = 2
step = "10ms"
"""
JOB = '''
"""Trains until the file `go` appears. The model has 41 kB."""
import os, time
import torch


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 100)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        model(torch.ones(2, 100)).sum().backward()
        optimizer.step(points=2)
        worker.report(step=float(worker.version))
        print("step", worker.version)
        time.sleep(0.01)
'''
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a small disk of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "polyrhythm-test", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a disk cannot be mounted here: {error}")
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=20)


def fill(disk: Path) -> Path:
    """Leave no byte free on the disk. Returns the file that fills it."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for nbytes in (4096, 1):
            with contextlib.suppress(OSError):  # writing fails when the disk is full
                while file.write(b"\0" * nbytes):
                    pass
    return ballast


class FullDisk:
    """A job whose runs are on the disk. It prints to pipes outside of the disk."""

    def __init__(self, disk: Path, *flags: object, spares: int = 0) -> None:
        self.disk = disk
        self.command = Command(
            "job.py",
            *("--workers", 2, "--servers", 2, "--runs-dir", disk / "runs", *flags),
            cwd=disk.parent,
            trace="--trace" in flags,
            spares=spares,
        )
        self.command.run_dir = disk / "runs" / "run"

    def __enter__(self) -> "FullDisk":
        self.command.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self.command.__exit__(*failure)

    def says(self, text: str) -> None:
        wait_until(lambda: text in self.command.stderr(), f"it says {text!r}")

    def end(self) -> dict[str, Any]:
        """Stop the job by its stop request, and return its result."""
        self.command.process.send_signal(signal.SIGINT)
        return self.result(130)

    def result(self, status: int) -> dict[str, Any]:
        assert self.command.wait() == status, self.command.stderr()
        result: dict[str, Any] = json.loads(self.command.stdout())
        return result


SHORT = ("--json", "--max-seconds", 4)


def whole(store: Path) -> list[int]:
    return [each.number for each in listing(open_store(str(store))) if each.fault is None]


@pytest.mark.parametrize(("ballast", "kept"), [(80, 3), (170, 1)])
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_old_checkpoints_make_room_for_new_ones(
    disk: Path, sync: str, ballast: int, kept: int
) -> None:
    """A checkpoint has 48 kB. So the ballast leaves room for `--keep 3`, but not for one more, or
    the ballast for one, but not for two."""
    store = disk / "store"
    (disk / "ballast").write_bytes(bytes(ballast * 1024))
    flags = ("--runs-dir", "runs", "--store", store, "--keep", 3, "--checkpoint-every", "5rounds")
    with FullDisk(disk, "--json", "--sync", sync, "--max-seconds", 60, *flags, spares=1) as full:
        command = full.command
        command.run_dir = disk.parent / "runs" / "run"

        def made() -> bool:
            command.assert_alive()
            return len(command.journal("checkpoint")) > 7 or bool(
                command.journal("checkpoint-failed")
            )

        wait_until(made, "eight checkpoints")
        command.process.send_signal(signal.SIGINT)
        full.result(130)
        numbers = [line["number"] for line in command.journal("checkpoint")]
        found = whole(store)
        assert len(found) == kept and found[-1] == numbers[-1]
        if kept == 3:
            assert not command.journal("checkpoint-failed") and len(numbers) > 7
        else:
            assert numbers == [1], "the last checkpoint that is whole is never deleted"
            assert "no space is left on the device; training goes on" in command.stderr()


@pytest.mark.guarantee("disk-full", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_job_goes_on_and_records_everything_when_there_is_room_again(
    disk: Path, sync: str
) -> None:
    with FullDisk(disk, *SHORT, "--sync", sync) as full:
        full.command.await_round(3)
        ballast = fill(disk)
        full.says(f"{FULL}: training goes on")
        seen = full.command.journal("rounds")[-1]["round"]
        assert not call("why", "run", "--runs-dir", disk / "runs", cwd=disk.parent).stderr
        assert not call("story", "run", "--runs-dir", disk / "runs", cwd=disk.parent).stderr
        full.says("the trained model cannot be saved yet")
        ballast.unlink()
        result = full.result(0)
        assert result["ended"] == "the job reached its goal: 4 seconds" and not result["unrecorded"]
        lines = full.command.journal()
        kinds = [line["what"] for line in lines]
        begun, over = kinds.index("unwritten"), kinds.index("written-again")
        assert "model-held" in kinds[begun:over] and "ended" in kinds[-2:]
        assert lines[over]["missing"] == 0
        folded = [line["contributions"] for line in lines if line["what"] == "rounds"]
        assert sum(folded) == result["contributions"] and result["rounds"] > seen
        assert result["model"] == str(full.command.run_dir / "model.safetensors")
        assert load_file(full.command.run_dir / "model.safetensors")["weight"].shape == (100, 100)
        assert json.loads((full.command.run_dir / "result.json").read_text()) == result
        assert "training goes on" in call("story", full.command.run_dir, cwd=disk.parent).stdout


def test_a_model_that_cannot_be_written_goes_to_the_store(disk: Path) -> None:
    store = disk.parent / "store"
    with FullDisk(disk, *SHORT, "--store", store, spares=1) as full:
        full.command.await_round(3)
        fill(disk)
        result = full.result(4)
        assert result["ended"] == "the job reached its goal: 4 seconds"
        assert result["failed"] is None and result["model"] == f"{store}/model.safetensors"
        assert load_file(store / "model.safetensors")["weight"].shape == (100, 100)
        *_, journal, model, summary = full.command.stderr().splitlines()
        assert "the journal is not complete" in journal and FULL in journal
        assert model == f"polyrhythm: the model is in the store: {store}/model.safetensors"
        assert summary.startswith("polyrhythm: ") and "result.json" in summary


@pytest.mark.parametrize("way", ["ctrl-c", "stop"])
def test_a_held_model_is_given_up_on_request(disk: Path, way: str) -> None:
    with FullDisk(disk, *SHORT) as full:
        address = full.command.address()
        full.command.await_round(3)
        fill(disk)
        full.says("the trained model cannot be saved yet")
        if way == "ctrl-c":
            full.command.process.send_signal(signal.SIGINT)
        else:
            assert "could not be saved" in call("stop", address, cwd=disk.parent).stderr
        result = full.result(130 if way == "ctrl-c" else 1)
        assert FULL in result["not_saved"] and result["model"] is None


def test_a_killed_lead_leaves_a_journal_that_can_be_read(disk: Path) -> None:
    """A full disk takes a part of a line, and the process that would write the rest is killed."""
    with FullDisk(disk, "--json", "--max-seconds", 60) as full:
        full.command.await_round(3)
        fill(disk)
        full.says(f"{FULL}: training goes on")
        os.kill(full.command.servers()[0], signal.SIGKILL)
        full.result(1)
        assert not (full.command.run_dir / "journal.jsonl").read_bytes().endswith(b"\n")
        for command in ("why", "story", "status", "runs"):
            name = () if command == "runs" else ("run",)
            shown = call(command, *name, "--runs-dir", disk / "runs", cwd=disk.parent)
            assert shown.returncode == 0 and not shown.stderr, shown.stderr


def test_traces_end_early_and_can_be_replayed(disk: Path) -> None:
    with FullDisk(disk, *SHORT, "--trace") as full:
        full.command.await_round(3)
        ballast = fill(disk)
        full.says(f"the trace ends early ({FULL}); training goes on")
        full.says(f"{FULL}: training goes on, and the journal")
        ballast.unlink()
        full.result(0)


@pytest.mark.parametrize(
    "command",
    [
        ("train", "job.py", "--rounds", 1000, "--json", "--runs-dir", "disk/runs"),
        ("simulate", "scenario.toml", "--json", "--runs-dir", "disk/runs"),
        ("new", "disk/clouds"),
    ],
    ids=lambda command: command[0],
)
def test_a_full_disk_ends_a_command_that_has_not_begun_with_one_line(
    disk: Path, command: tuple[object, ...]
) -> None:
    fill(disk)
    done = call(*command, cwd=disk.parent)
    assert done.returncode == 1, done.stdout
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("polyrhythm: cannot ") and line.endswith(FULL)
