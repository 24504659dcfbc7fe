"""The state of the outer optimizer is not lost when a server is killed, or when the whole job is killed
and resumed: the trained model is that of an undisturbed job."""

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.processes import Command, call, wait_until
from tests.cluster.test_resume import kill_whole, newest, resume

CONVEX = Path(__file__).parent / "jobs" / "convex.py"
ROUNDS = 24
JOB = (
    *(CONVEX, "--set", "optimizer=slow", "--workers", 3, "--rounds", ROUNDS, "--timer", "off"),
    *("--local-steps", 2, "--outer", "nesterov:lr=0.7,momentum=0.9", "--kind", "local"),
)
"""The learning rate is low. So the parameters are still far from the optimum at the end, and if the
momentum were lost, they would differ visibly. The workers' own optimizer has no state, because
after a resume workers begin with a new optimizer."""
CLOSE = 1e-4


def model(cwd: Path, run: str) -> dict[str, torch.Tensor]:
    return load_file(cwd / "runs" / run / "model.safetensors")


def last_round(command: Command) -> int:
    return max((line["round"] for line in command.journal("rounds")), default=0)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The model of an undisturbed run."""
    cwd = tmp_path_factory.mktemp("undisturbed")
    whole = call("train", *JOB, "--servers", 1, "--name", "whole", "--quiet", cwd=cwd)
    assert whole.returncode == 0, whole.stderr
    return model(cwd, "whole")


def assert_undisturbed(right: dict[str, torch.Tensor], cwd: Path, run: str) -> None:
    """Compare the model of a disturbed run with that of an undisturbed one."""
    found = model(cwd, run)
    assert right.keys() == found.keys()
    assert right["weight"].abs().max() > 0.1, "it has learned"
    for name, tensor in right.items():
        assert torch.allclose(tensor, found[name], rtol=0, atol=CLOSE), name


def test_a_server_that_is_killed_loses_nothing_of_the_outer_optimizer(
    right: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    flags = ("--servers", 3, "--replicas", 1, "--min-step", "80ms", "--quiet")
    with Command(*JOB, *flags, cwd=tmp_path) as command:
        wait_until(lambda: last_round(command) >= 5, "5 rounds")
        os.kill(command.servers()[1], signal.SIGKILL)
        assert command.wait() == 0, command.stderr()
    (lost,) = command.journal("server-lost")
    assert lost["server"] == 1
    assert last_round(command) == ROUNDS
    assert_undisturbed(right, tmp_path, command.run_dir.name)


def test_a_job_that_is_killed_continues_with_the_outer_optimizer(
    right: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """The resumed job continues on another number of servers."""
    regular = ("--checkpoint-every", "4rounds", "--min-step", "80ms", "--servers", 3)
    with Command(*JOB, *regular, cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 2, "two checkpoints")
        kill_whole(command)
    assert 0 < newest(command.run_dir)[1].round < ROUNDS
    result = resume(tmp_path, "--servers", 2)
    assert result["rounds"] == ROUNDS
    assert result["outer"] == "nesterov:lr=0.7,momentum=0.9"
    assert_undisturbed(right, tmp_path, "resumed")
