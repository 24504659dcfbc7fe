"""`worker.keep` with real processes: the state of the user's code is in every checkpoint, and a
resumed job continues with it."""

import os
import signal
from pathlib import Path

import pytest
import torch

from polyrhythm.core.record import Record
from polyrhythm.store.checkpoints import load, read_kept, read_record
from polyrhythm.store.kept import decode_state
from polyrhythm.store.listing import listing
from polyrhythm.store.objects import open_store
from tests.cluster.processes import Command, call, wait_until
from tests.cluster.test_resume import JOBS, call_resume, kill_whole, newest, resume

ROUNDS = 30
JOB = (JOBS / "kept_states.py", "--rounds", ROUNDS, "--workers", 2, "--deterministic")
REGULAR = ("--checkpoint-every", "5rounds", "--min-step", "40ms", "--set", "out=first")


def ended(cwd: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = torch.load(cwd / f"{name}.pt")
    return found


def killed(cwd: Path, *args: object, checkpoints: int = 3) -> Command:
    """Run a job, and kill all of its processes after some checkpoints."""
    with Command(*JOB, *REGULAR, *args, cwd=cwd) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= checkpoints, "checkpoints")
        kill_whole(command)
    return command


@pytest.mark.guarantee("job-killed", policies=("bsp",), k=(0,))
def test_a_scheduler_and_an_average_continue_as_in_an_uninterrupted_job(tmp_path: Path) -> None:
    whole = call("train", *JOB, "--set", "out=whole", "--name", "whole", "--quiet", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    command = killed(tmp_path, "--servers", 2)
    _, record = newest(command.run_dir)
    assert 0 < record.round < ROUNDS
    resume(tmp_path, "--servers", 1)
    for worker in ("worker-0", "worker-1"):
        before, after = ended(tmp_path, f"whole-{worker}"), ended(tmp_path, f"first-{worker}")
        assert after["resumed"] and not before["resumed"]
        assert after["rates"] == before["rates"][record.round :]  # type: ignore[index]
        for name, tensor in before["ema"].items():  # type: ignore[attr-defined]
            assert torch.equal(tensor, after["ema"][name]), name  # type: ignore[index]


@pytest.mark.parametrize("sync", ["ssp:2", "asp", "psp", "fsp", "bspb", "bspv"])
def test_every_policy_keeps_the_state(tmp_path: Path, sync: str) -> None:
    """The learning rate in a kept state must be that of a scheduler that has made as many steps as
    the state counts. The average counts the steps of the worker's loop, the scheduler those of the
    job, which the worker estimates between two messages of the lead."""
    local = ("--kind", "local") if sync in ("psp", "fsp") else ()
    job = (JOBS / "kept_states.py", "--rounds", 400, "--workers", 2, "--sync", sync, *local)
    regular = ("--checkpoint-every", "2rounds", "--min-step", "20ms", "--set", "out=first")
    with Command(*job, *regular, cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 3, "three checkpoints")
        kill_whole(command)
    checkpoint, record = newest(command.run_dir)
    state = decode_state(read_kept(open_store(str(command.run_dir)), checkpoint))
    steps = state["scheduler"]["last_epoch"]
    assert steps > 0 and steps == pytest.approx(record.steps, abs=5)
    # the other policies choose the sizes of batches, so a step need not have 20 points
    if sync in ("ssp:2", "asp", "bspb"):
        (keeper,) = (worker for worker in record.workers if worker.name == "worker-0")
        made = state["ema"]["n_averaged"]
        assert made * 20 == keeper.points, "one step per batch that is in the checkpoint"
    assert state[".rates"] == pytest.approx([0.02 * 0.7 ** (steps // 7)])


def test_if_the_keeper_dies_its_successors_state_is_kept(tmp_path: Path) -> None:
    with Command(*JOB[:-1], *REGULAR, cwd=tmp_path) as command:
        wait_until(lambda: command.journal("checkpoint"), "a checkpoint")
        before = len(command.journal("checkpoint"))
        os.kill(command.workers()[0], signal.SIGKILL)
        wait_until(lambda: len(command.journal("checkpoint")) >= before + 2, "two more")
        kill_whole(command)
        assert not command.journal("state-missing")
    store = open_store(str(command.run_dir))
    for each in listing(store):
        if each.fault is None:
            checkpoint = load(store, each.number)
            state = decode_state(read_kept(store, checkpoint))
            steps = read_record(store, checkpoint, Record).steps
            assert state["scheduler"]["last_epoch"] == int(steps)


def test_a_damaged_state_makes_the_checkpoint_before_it_the_newest(tmp_path: Path) -> None:
    command = killed(tmp_path)
    checkpoint, record = newest(command.run_dir)
    assert checkpoint.manifest.kept is not None
    name = f"checkpoints/{checkpoint.number:08d}/{checkpoint.manifest.kept.name}"
    file = command.run_dir / name
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    done = call_resume("--name", "resumed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"checkpoint {checkpoint.number} is not used" in done.stderr
    first = ended(tmp_path, "first-worker-0")
    assert first["resumed"]
    assert len(first["rates"]) == ROUNDS - record.round + 5  # type: ignore[arg-type]


def test_a_value_that_cannot_be_kept_ends_the_job_with_its_path(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import torch\n"
        "class Odd:\n"
        "    def state_dict(self): return {'lr_lambdas': [lambda step: 1.0]}\n"
        "    def load_state_dict(self, state): pass\n"
        "def main(worker):\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    worker.keep(scheduler=Odd())\n"
    )
    done = call("train", job, "--workers", 1, "--rounds", 3, "--quiet", cwd=tmp_path)
    assert done.returncode == 1
    assert "scheduler.lr_lambdas[0] cannot be kept: it is of type function" in done.stderr


def test_other_names_than_those_of_the_checkpoint_give_one_line_each(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text((JOBS / "kept_states.py").read_text())
    with Command(job, *JOB[1:], *REGULAR, cwd=tmp_path) as command:
        wait_until(lambda: command.journal("checkpoint"), "a checkpoint")
        kill_whole(command)
    assert "ema=ema" in job.read_text()
    job.write_text(job.read_text().replace("ema=ema", "average=ema"))
    done = call_resume("--name", "resumed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "worker-0: the checkpoint has no state of 'average', which keeps its initial state"
        in done.stderr
    )
    assert "worker-0: the checkpoint's state of ema is not used" in done.stderr
    assert not ended(tmp_path, "first-worker-0")["resumed"]


def test_a_job_that_rolls_back_after_a_loss_continues_with_the_state(tmp_path: Path) -> None:
    flags = ("--servers", 2, "--on-loss", "resume")
    checkpoints = tmp_path / "runs" / "run" / "checkpoints"
    with Command(*JOB, *REGULAR, *flags, cwd=tmp_path, trace=False, spares=2) as command:
        wait_until(lambda: list(checkpoints.glob("*/manifest.json")), "there is a checkpoint")
        os.kill(command.servers()[1], signal.SIGKILL)
        assert command.wait() == 0, command.stderr()
    found = ended(tmp_path, "first-worker-0")
    assert found["resumed"]
    rates: list[float] = found["rates"]  # type: ignore[assignment]
    assert 0 < len(rates) < ROUNDS
    first = ROUNDS - len(rates)
    assert rates == pytest.approx([0.02 * 0.7 ** (n // 7) for n in range(first, ROUNDS)])
