"""`--deterministic`: two runs of a job compute bit-identical parameters, whichever worker is
quicker, and whichever servers join and leave."""

import json
from pathlib import Path

import pytest

from tests.cluster.processes import Command, call, wait_until

EPOCHS = 20
"""The passes of a job whose slices move: as few as the moves allow."""
JOB = """
import os, time
import torch


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    data = torch.randn(203, 8, generator=torch.Generator().manual_seed(1))
    goal = data.sin().sum(1, keepdim=True)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for x, y in worker.batches((data, goal), 10):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        time.sleep(os.urandom(1)[0] / 255 * 0.004)  # the workers' speed differs in every run
        optimizer.step()
    if worker.name == "worker-0":
        bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        with open("bits", "wb") as file:
            file.write(bits)
"""


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--kind", "local", "--local-steps", 2],
        ["--kind", "local", "--local-steps", 2, "--outer", "nesterov", "--weights", "workers"],
    ],
    ids=["gradient", "local", "outer"],
)
def test_two_runs_compute_the_same_bits(tmp_path: Path, flags: list[object]) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    found = []
    for servers in (1, 2):
        folder = tmp_path / str(servers)
        folder.mkdir()
        common = ["--workers", 3, "--servers", servers, "--epochs", 2, "--deterministic", "--json"]
        done = call("train", job, *common, *flags, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["points"] == 2 * 203
        found.append((folder / "bits").read_bytes())
    assert found[0] == found[1]


def test_moving_slices_change_no_bit(tmp_path: Path) -> None:
    """Two servers join, and three are drained, one of them a joiner."""
    job = tmp_path / "job.py"
    unhurried = "0.004 if os.path.exists('moved') else 0.1"
    job.write_text(JOB.replace("os.urandom(1)[0] / 255 * 0.004", unhurried))
    common = ("--workers", 2, "--servers", 4, "--epochs", EPOCHS, "--deterministic", "--json")
    found = []
    for moves in (False, True):
        folder = tmp_path / str(moves)
        folder.mkdir()
        if not moves:
            (folder / "moved").touch()
        with Command(job, *common, cwd=folder) as command:
            if moves:
                command.await_round(3)
                change_servers(command)
                assert not command.journal("ended")
                (folder / "moved").touch()
            assert command.wait() == 0, command.stderr()
        assert json.loads(command.stdout())["points"] == EPOCHS * 203
        found.append((folder / "bits").read_bytes())
    assert found[0] == found[1]


def change_servers(command: Command) -> None:
    """Let s4 and s5 join, and drain s1, s3 and s4."""
    for number in (4, 5):
        command.serve()
        wait_until(lambda n=number: joined(command, n), f"s{number} joins")
    for number in (1, 3, 4):
        drained = call("drain", "run", f"s{number}", cwd=command.cwd)
        assert drained.returncode == 0, drained.stderr
    promoted = [line["promoted"] for line in command.journal("rerouted")]
    assert sum(sum(line.values()) for line in promoted) >= 2


def joined(command: Command, server: int) -> bool:
    return any(line["server"] == server for line in command.journal("server-joined"))


def test_a_policy_that_depends_on_speed_is_refused(tmp_path: Path) -> None:
    done = call("train", "digits", "--sync", "asp", "--deterministic", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("polyrhythm: --deterministic needs --sync bsp")
    assert done.stderr.count("\n") == 1
