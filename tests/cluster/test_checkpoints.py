"""Checkpoints of real jobs: every slice of a checkpoint contains the same contributions, wherever a
server crashes and whichever fault the store has."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from polyrhythm.core.record import Record
from polyrhythm.store.checkpoints import PARAMETERS, load, read_record, read_slices
from polyrhythm.store.listing import listing
from polyrhythm.store.objects import open_store
from tests.cluster.jobs.counted_visits import POINTS
from tests.cluster.processes import Command, call, wait_until
from tests.cluster.test_resume import JOBS, kill_whole, newest, resume, visited
from tests.commands.start import run

EPOCHS = 2
VISITS = (JOBS / "counted_visits.py", "--updater", "addition", "--min-step", "60ms")
VISITS += ("--set", "batch=20")
STEPS = (
    "s1 took Cut",
    "s1 copied TakeCut",
    "s1 sent CutTaken",
    "s1 puts slices",
    "s1 put slices",
    "s1 sent CutWritten",
    "s0 put slices",
    "s0 puts record",
    "s0 put record",
    "s0 creates manifest",
    "s0 created manifest",
    "s0 deletes manifest",
    "s0 deleted manifest",
)
"""The steps of writing a checkpoint. A server is killed before or after one of them."""


def counts(folder: Path) -> list[tuple[Record, list[torch.Tensor]]]:
    """Return, for each complete checkpoint, its record and the visits that each of its slices
    counts."""
    store = open_store(str(folder))
    found = []
    for each in listing(store):
        if each.fault is None:
            checkpoint = load(store, each.number)
            slices = read_slices(store, checkpoint, checkpoint.layout.slices)
            blocks = [tensors[PARAMETERS][:POINTS] for tensors in slices.values()]
            found.append((read_record(store, checkpoint, Record), blocks))
    return found


@pytest.mark.guarantee("checkpoint-whole", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", "ssp:2", "ssp-restart:2", "asp", "psp"])
def test_all_slices_of_a_checkpoint_count_the_same_visits(tmp_path: Path, sync: str) -> None:
    """One worker is slow, so that others contribute while a checkpoint is made."""
    local = ("--set", "local=1", "--kind", "local") if sync == "psp" else ()
    with Command(
        *(*VISITS, "--sync", sync, *local, "--slow", "1=4x", "--check", "--quiet"),
        *("--workers", 3, "--servers", 2, "--epochs", 100),
        *("--checkpoint-every", "2rounds", "--keep", 100),
        cwd=tmp_path,
        trace=False,
    ) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 5, "five checkpoints", pause_s=0.1)
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait() == 130, command.stderr()
    found = counts(tmp_path / "runs" / "run")
    assert len(found) >= 5
    for record, blocks in found:
        for block in blocks[1:]:
            assert torch.equal(block, blocks[0]), f"checkpoint {record.number}"
        assert int(blocks[0].sum()) == visited(record)


@pytest.mark.guarantee("killed-while-writing", policies=("bsp",), k=(0,))
@pytest.mark.parametrize("step", STEPS)
def test_a_job_killed_at_any_step_of_writing_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The workers wait at a gate after each of two checkpoints: no checkpoint begins before the one
    before it is written. At the second gate the test says which step it is. The workers wait again
    before their last batches, because a job that has ended reaches no step."""
    file = tmp_path / "crash-at"
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(file))
    points = POINTS // 2
    job = (*VISITS, "--epochs", EPOCHS, "--workers", 2, "--servers", 2, "--keep", 1)
    job += ("--set", f"points={points}", "--set", "gates=4:7:14", "--checkpoint-every", "3rounds")
    with Command(*job, cwd=tmp_path, trace=False) as command:
        wait_until(lambda: command.journal("checkpoint"), "a checkpoint")
        (tmp_path / "gate-4").touch()
        wait_until(lambda: len(command.journal("checkpoint")) >= 2, "two checkpoints")
        file.write_text(step)
        (tmp_path / "gate-7").touch()
        command.wait()  # the job ends, because it cannot go on without the killed server
        kill_whole(command)
    assert not file.exists(), "the step was not reached"
    _, record = newest(command.run_dir)
    monkeypatch.delenv("POLYRHYTHM_CRASH_AT")
    (tmp_path / "gate-14").touch()
    result = resume(tmp_path, "--workers", 1, "--checkpoint-every", "1000rounds")
    assert visited(record) + result["points"] == EPOCHS * points
    for block in torch.load(tmp_path / "worker-0.final.pt"):
        assert (block == EPOCHS).all()


def test_a_server_lost_during_a_cut_gives_it_up_and_the_next_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "crash-at"
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(file))
    job = (*VISITS, "--workers", 2, "--servers", 3, "--replicas", 1, "--max-seconds", 60)
    regular = ("--checkpoint-every", "3rounds", "--keep", 1000)
    with Command(*job, *regular, cwd=tmp_path) as command:
        wait_until(lambda: command.journal("checkpoint"), "a checkpoint")
        file.write_text("s1 puts slices")
        failed = wait_until(lambda: command.journal("checkpoint-failed"), "a cut is given up")
        number = failed[0]["number"]
        wait_until(
            lambda: any(line["number"] > number for line in command.journal("checkpoint")),
            "the next checkpoint",
        )
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait() == 130
    assert failed[0]["reason"] == "cut-server-lost"
    left = list(command.run_dir.glob(f"checkpoints/{number:08d}/*"))
    assert not left, "the other servers delete what they wrote for this cut"


@pytest.mark.guarantee("store-fails", policies=("bsp",), k=(0,))
def test_training_goes_on_without_its_store_and_checkpoints_come_back_with_it(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    job = (*VISITS, "--workers", 2, "--servers", 2, "--max-seconds", 200, "--store", store)
    with Command(*job, "--checkpoint-every", "3rounds", cwd=tmp_path, spares=1) as command:
        wait_until(lambda: command.journal("checkpoint"), "a checkpoint")
        away = store.rename(tmp_path / "away")
        wait_until(lambda: len(command.journal("checkpoint-failed")) > 1, "cuts are given up")
        made = len(command.journal("checkpoint"))
        away.rename(store)
        wait_until(lambda: len(command.journal("checkpoint")) > made, "the next checkpoint")
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait() == 130
    failed = command.journal("checkpoint-failed")
    assert all(str(store) in line["fields"]["detail"] for line in failed), "each names the store"
    (said,) = [line for line in command.stderr().splitlines() if "is not made" in line]
    assert said.endswith("training goes on")
    (again,) = [line for line in command.stderr().splitlines() if "the store works again" in line]
    assert again.endswith(f"after {len(failed)} checkpoints that were not made")


def test_a_damaged_checkpoint_is_skipped_with_a_message(tmp_path: Path) -> None:
    job = (*VISITS, "--epochs", 1, "--workers", 2, "--servers", 2, "--checkpoint-every", "5rounds")
    done = call("train", *job, "--name", "run", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "run"
    checkpoint, _ = newest(folder)
    where = folder / "checkpoints" / f"{checkpoint.number:08d}"
    tensors = next(where.glob("slices-1-*"))
    content = bytearray(tensors.read_bytes())
    content[-3] ^= 1
    tensors.write_bytes(content)
    again = run(
        *("resume", "run", "--epochs", 2, "--name", "resumed", "--quiet"), cwd=tmp_path, spares=1
    )
    assert again.returncode == 0, again.stderr
    assert f"checkpoint {checkpoint.number} is not used: " in again.stderr
    shutil.rmtree(folder)


def test_flags_of_checkpoints_are_checked_with_one_line(tmp_path: Path) -> None:
    base = ("train", *VISITS, "--epochs", 1)
    for flags, said in (
        (("--keep", 0), "--keep is 0: it must be at least 1"),
        (("--checkpoint-every", "5"), "give a time such as 60s, or 100rounds"),
        (("--checkpoint-every", "0rounds"), "give 60s, or 100rounds"),
        (("--store", "ftp://host/x"), "a store is a folder"),
        (
            ("--checkpoint-every", "5s", "--local-servers", 1, "--servers", 2),
            "servers on several hosts need a store that all of them can reach",
        ),
    ):
        done = call(*base, *flags, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
