"""Every job whose round 1 has begun leaves its trained model in a file, whichever way the job
ends."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from polyrhythm.learn.jobs import digits
from polyrhythm.learn.jobs.images import accuracy
from tests.cluster.processes import Command, call, wait_until

JOB = '''
"""Trains a model with tied weights and buffers; the code after the loop saves what this worker has."""
import os, time
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.register_buffer("scratch", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.second(torch.tanh(self.norm(self.first(x)))).sum(1, keepdim=True)


def main(worker):
    torch.manual_seed(worker.seed)
    model = Model()
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.001))
    inputs = torch.randn(160, 16)
    targets = inputs.sum(1, keepdim=True)
    for step, (x, y) in enumerate(worker.batches((inputs, targets), batch_size=8)):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step(objective=loss)
        if step == 5 and worker.name == worker.options.get("fails"):
            raise RuntimeError("it is broken")
        if step == 5:
            open(f"began-{worker.name}", "w").close()
        while step == 8 and worker.options.get("gate") and not os.path.exists("go"):
            time.sleep(0.01)
    open(f"over-{worker.name}", "w").close()
    while worker.options.get("after") and not os.path.exists("go"):
        time.sleep(0.01)
    torch.save(model.state_dict(), f"after-{worker.name}.tmp")
    os.rename(f"after-{worker.name}.tmp", f"after-{worker.name}.pt")
'''
SIZES = ("--workers", 2, "--servers", 2, "--threads", 1)
POLICIES = ("bsp", "asp", "psp")
ATTEMPTS = 4


def start(cwd: Path, *flags: object, sizes: tuple[object, ...] = SIZES) -> Command:
    path = cwd / "job.py"
    path.write_text(JOB)
    return Command(path, *sizes, *flags, cwd=cwd)


def await_training(command: Command, workers: int = 2) -> None:
    def begun() -> bool:
        command.assert_alive()
        return len(list(command.cwd.glob("began-*"))) == workers

    wait_until(begun, "every worker trains")


def build(job: Path) -> nn.Module:
    names: dict[str, Any] = {}
    exec(compile(job.read_text(), str(job), "exec"), names)
    model = names["Model"]()
    assert isinstance(model, nn.Module)
    return model


def saved_model(command: Command) -> dict[str, torch.Tensor]:
    """Return the tensors of the saved model, after checking that a new model accepts them."""
    path = command.run_dir / "model.safetensors"
    state = load_file(path)
    build(command.cwd / "job.py").load_state_dict(state, strict=True)
    assert torch.equal(state["first.weight"], state["second.weight"])
    assert "scratch" not in state
    assert not list(command.run_dir.glob("*.part"))
    (line,) = command.journal("saved")
    assert line["path"] == str(path) and line["nbytes"] == path.stat().st_size
    return state


def assert_equals_what_workers_had(command: Command, state: dict[str, torch.Tensor]) -> None:
    for path in command.cwd.glob("after-*.pt"):
        theirs = torch.load(path)
        assert theirs.keys() == state.keys()
        for name, value in theirs.items():
            assert torch.equal(value, state[name]), (path.name, name)


@pytest.mark.parametrize("link", ["local", "tcp"])
@pytest.mark.parametrize("sync", POLICIES)
def test_at_a_goal_the_model_is_saved_as_every_worker_has_it(
    tmp_path: Path, sync: str, link: str
) -> None:
    with start(tmp_path, "--sync", sync, "--epochs", 2, "--link", link) as command:
        assert command.wait() == 0, command.stderr()
        state = saved_model(command)
        assert len(list(tmp_path.glob("after-*.pt"))) == 2
        assert_equals_what_workers_had(command, state)
    shown = command.stdout()
    assert "model: runs/run/model.safetensors" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("sync", ["bsp", "asp", "psp"])
def test_after_a_stop_the_model_is_saved_as_every_worker_has_it(
    tmp_path: Path, sync: str, number: int
) -> None:
    with start(tmp_path, "--sync", sync, "--max-seconds", 600) as command:
        await_training(command)
        command.process.send_signal(number)
        assert command.wait() == 128 + number, command.stderr()
        state = saved_model(command)
        assert len(list(tmp_path.glob("after-*.pt"))) == 2
        assert_equals_what_workers_had(command, state)


@pytest.mark.guarantee("model-kept", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_when_every_worker_is_killed_the_model_is_saved(tmp_path: Path, sync: str) -> None:
    with start(tmp_path, "--sync", sync, "--max-seconds", 600) as command:
        await_training(command)
        for pid in command.workers():
            os.kill(pid, signal.SIGKILL)
        assert command.wait() == 1
        saved_model(command)
        assert len(command.stderr().strip().splitlines()) >= 1


@pytest.mark.guarantee("model-kept", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_when_a_failed_worker_ends_the_job_the_model_is_saved(tmp_path: Path, sync: str) -> None:
    flags = ("--on-error", "end", "--set", "fails=worker-1", "--max-seconds", 600)
    with start(tmp_path, "--sync", sync, *flags) as command:
        assert command.wait() == 1
        assert "it is broken" in command.stderr()
        saved_model(command)


def test_when_every_worker_fails_before_round_1_nothing_is_saved(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def main(worker):\n    raise RuntimeError('broken')\n")
    with Command("job.py", *SIZES, cwd=tmp_path) as command:
        assert command.wait() == 1
        assert not list(command.run_dir.glob("model*"))


def test_when_slices_are_lost_nothing_is_saved(tmp_path: Path) -> None:
    with start(tmp_path, "--max-seconds", 600) as command:
        await_training(command)
        os.kill(command.servers()[1], signal.SIGKILL)
        assert command.wait() == 1
        assert not list(command.run_dir.glob("model*"))


@pytest.mark.guarantee("killed-while-saving", k=(1,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_server_that_dies_while_it_sends_its_slices_is_replaced_by_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """On a busy machine a server can be silent for seconds, and the lead then removes the server. Such a
    job cannot be used for this test, so another job is started."""
    sizes = ("--workers", 2, "--servers", 3, "--replicas", 1, "--threads", 1)
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        crash = folder / "crash"
        crash.write_text("s1 sent Collected")
        monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(crash))
        with start(folder, "--sync", sync, "--epochs", 2, sizes=sizes) as command:
            assert command.wait() == 0, command.stderr()
            lost = command.journal("server-lost")
            if any(line["reason"] == "server-silent" for line in lost):
                continue
            assert not crash.exists(), "s1 did not die"
            assert_equals_what_workers_had(command, saved_model(command))
            assert [line["server"] for line in lost] == [1]
            return
    raise AssertionError(f"in {ATTEMPTS} jobs a server was silent")


def test_the_loss_of_slices_while_they_are_sent_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = tmp_path / "crash"
    crash.write_text("s1 took Collect")
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(crash))
    with start(tmp_path, "--epochs", 2, "--quiet") as command:
        assert command.wait() == 1
        assert not list(command.run_dir.glob("model*"))
        assert command.journal("not-saved")
        assert "server s1 died" in command.stderr() and "Traceback" not in command.stderr()


def test_a_model_that_cannot_be_written_is_held_until_it_can(tmp_path: Path) -> None:
    with start(tmp_path, "--epochs", 2, "--set", "gate=1", "--quiet") as command:
        await_training(command)
        part = command.run_dir / "model.safetensors.part"
        part.mkdir()
        (tmp_path / "go").touch()
        path = command.run_dir / "model.safetensors"
        held = f"the servers hold it in memory: cannot write {path}: Is a directory"
        wait_until(lambda: held in command.stderr(), "it is held")
        part.rmdir()
        assert command.wait() == 0
        assert_equals_what_workers_had(command, saved_model(command))
        assert "Traceback" not in command.stderr()


def test_the_model_is_saved_when_the_folder_of_the_run_was_deleted(tmp_path: Path) -> None:
    with start(tmp_path, "--epochs", 2, "--set", "gate=1", "--quiet") as command:
        await_training(command)
        shutil.rmtree(command.run_dir)
        wait_until(lambda: "was deleted" in command.stderr(), "it is reported", 20)
        (tmp_path / "go").touch()
        assert command.wait() == 0
        state = load_file(command.run_dir / "model.safetensors")
        assert_equals_what_workers_had(command, state)


@pytest.mark.parametrize(
    "flags",
    [(), ("--sync", "asp"), ("--kind", "local", "--local-steps", 4), ("--sync", "fsp")],
    ids=["bsp", "asp", "local", "fsp"],
)
def test_the_saved_model_has_the_accuracy_that_the_summary_printed(
    tmp_path: Path, flags: tuple[object, ...]
) -> None:
    args = ("train", "digits", *SIZES, "--epochs", 1, "--name", "run", "--json", *flags)
    done = call(*args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    model = digits.build()
    model.load_state_dict(load_file(tmp_path / "runs" / "run" / "model.safetensors"))
    images = digits.load()
    assert accuracy(model, images.test_x, images.test_y) == result["accuracy"]
    assert result["model"] == str(tmp_path / "runs" / "run" / "model.safetensors")


def test_a_server_that_was_started_by_command_sends_its_slices(tmp_path: Path) -> None:
    with start(tmp_path, "--epochs", 2, "--local-servers", 1, "--link", "tcp") as command:
        command.serve("--link", "tcp")
        assert command.wait() == 0, command.stderr()
        assert_equals_what_workers_had(command, saved_model(command))


def test_status_and_why_show_that_the_model_is_being_saved_and_a_second_signal_ends_it(
    tmp_path: Path,
) -> None:
    """A server is stopped by SIGSTOP and does not send its slices, so the saving cannot end by
    itself."""
    with start(tmp_path, "--max-seconds", 600, "--set", "after=1") as command:
        await_training(command)
        command.process.send_signal(signal.SIGINT)
        wait_until(lambda: len(list(tmp_path.glob("over-*"))) == 2, "both have left their loop")
        os.kill(command.servers()[1], signal.SIGSTOP)
        (tmp_path / "go").touch()
        wait_until(lambda: command.journal("saving"), "the lead collects the model")
        status = call("status", "run", cwd=tmp_path).stdout
        assert "the job is over, and its model is being saved" in status

        def reason() -> str:
            return call("why", "run", cwd=tmp_path).stdout

        wait_until(lambda: "s1 still sends parameters" in reason(), "why names the server")
        command.process.send_signal(signal.SIGINT)
        assert command.wait() == 130
        assert not (command.run_dir / "model.safetensors").exists()


def test_bench_saves_no_model(tmp_path: Path) -> None:
    done = call("bench", "exchange", "--size", "1MB", "--no-bare", "--rounds", 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.safetensors"))
