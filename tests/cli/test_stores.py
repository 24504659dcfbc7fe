"""Commands that read checkpoints find the store of a run, and refuse a store that another job
uses."""

import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import Result

from polyrhythm.errors import UsageError
from polyrhythm.observe.runs import write_process
from polyrhythm.store.objects import open_store
from polyrhythm.wire.messages import JobSpec
from tests.commands.start import start, warm_server
from tests.store.samples import write_checkpoint

Call = Callable[..., Result]
Write = Callable[..., Path]


def refused(told: Result) -> str:
    assert isinstance(told.exception, UsageError), told.output
    return str(told.exception)


@pytest.fixture
def elsewhere(write_run: Write, tmp_path: Path) -> Path:
    """The store of the run `mine`, which is not the folder of the run."""
    path = tmp_path / "elsewhere"
    job = JobSpec(job="x", name="digits", servers=3)
    write_checkpoint(open_store(str(path), make=True), 7, job=job)
    write_run("mine", [], store=str(path))
    return path


@pytest.mark.parametrize("source", ["mine", "runs/mine", "elsewhere", "file://{}/elsewhere"])
def test_export_finds_the_checkpoints_in_the_store_of_a_run(
    call: Call, elsewhere: Path, tmp_path: Path, source: str
) -> None:
    told = call("export", source.format(tmp_path), "out.safetensors", "--checkpoint", "last")
    assert told.exit_code == 0, told.exception
    assert "first.weight" in load_file(tmp_path / "out.safetensors")


@pytest.mark.parametrize("wanted", ["²", "-1", "x", ""])
def test_export_refuses_a_number_that_is_none(call: Call, elsewhere: Path, wanted: str) -> None:
    told = call("export", "mine", "out.safetensors", f"--checkpoint={wanted}")
    assert "give a number, or last" in refused(told)


@pytest.mark.parametrize("source", ["mine", "runs/mine", "elsewhere", "file://{}/elsewhere"])
def test_resume_refuses_a_store_to_which_a_running_job_writes(
    call: Call, elsewhere: Path, tmp_path: Path, source: str
) -> None:
    """The job that uses the store could delete the checkpoint before the resumed job has read
    it."""
    write_process(tmp_path / "runs" / "mine")
    text = refused(call("resume", source.format(tmp_path)))
    assert "mine" in text and "running" in text and "stop it first" in text


def test_resume_refuses_a_store_to_which_a_resumed_run_writes(
    call: Call, elsewhere: Path, write_run: Write
) -> None:
    write_process(write_run("second", [], store=str(elsewhere)))
    text = refused(call("resume", "mine"))
    assert "second" in text and "stop it first" in text


def test_train_refuses_a_store_that_a_running_job_has_not_written_to_yet(
    call: Call, write_run: Write, tmp_path: Path
) -> None:
    write_process(write_run("mine", [], store=str(tmp_path / "new")))
    text = refused(call("train", "digits", "--store", "new", "--checkpoint-every", "60s"))
    assert "mine" in text and "stop it first" in text


def test_resume_does_not_write_to_the_store_of_another_job(
    call: Call, elsewhere: Path, tmp_path: Path
) -> None:
    """A job keeps only the newest checkpoints of its store, so in this store it would delete the
    checkpoints of the other job."""
    other = tmp_path / "other"
    write_checkpoint(open_store(str(other), make=True), 3)
    text = refused(call("resume", "mine", "--store", other, "--epochs", 9))
    assert "has checkpoints of another job" in text


def test_resume_finds_the_checkpoints_of_a_run_that_was_moved(
    call: Call, write_run: Write, tmp_path: Path
) -> None:
    path = write_run("old", [], store=str(tmp_path / "runs" / "old"))
    write_checkpoint(open_store(str(path)), 3)
    path.rename(tmp_path / "runs" / "new")
    assert "there is no job 'job'" in refused(call("resume", "new")), "the checkpoint was found"


@pytest.mark.parametrize("number", [8, 0])
@pytest.mark.parametrize("command", [("resume", "mine"), ("export", "mine", "out.pt")])
def test_a_checkpoint_that_does_not_exist_is_named(
    call: Call, elsewhere: Path, command: tuple[str, ...], number: int
) -> None:
    told = call(*command, f"--checkpoint={number}")
    assert f"there is no checkpoint {number} in {elsewhere}" in str(told.exception)


@pytest.mark.parametrize(
    ("goal", "words"),
    [(("--epochs", 2), "after 2 passes of the data"), (("--rounds", 12), "of round 12")],
)
def test_resume_refuses_a_goal_that_the_checkpoint_has_reached(
    call: Call, elsewhere: Path, goal: tuple[object, ...], words: str
) -> None:
    """A resumed job whose goal the checkpoint has reached already would end at once, and report
    that it has reached its goal."""
    text = refused(call("resume", "mine", *goal))
    assert words in text and f"give more with {goal[0]}" in text


def test_a_disk_that_is_full_for_torchs_format_is_one_line(write_run: Write) -> None:
    """The copy of the model fits on the disk. The file in torch's format is larger and does not
    fit."""
    path = write_run("mine", [])
    save_file({"weight": torch.zeros(1500)}, path / "model.safetensors")
    pipe = subprocess.PIPE
    warm_server()  # start the warm server now, so that the limit of file sizes does not apply to it
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # a command that is forked from the warm server gets the limits of the test process
    resource.setrlimit(resource.RLIMIT_FSIZE, (6500, before[1]))
    try:
        process = start("export", "mine", "out.pt", cwd=path.parents[1], stdout=pipe, stderr=pipe)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert str(errors).startswith("polyrhythm: cannot write out.pt: ")
    assert len(str(errors).splitlines()) == 1, errors
    assert not list(path.parents[1].glob("*.pt"))
