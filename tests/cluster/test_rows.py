"""A job with gradients of rows, in real processes: its checkpoints contain all that it needs. For
deaths of servers, see the sparse cases of `test_failover_ledger.py`."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.processes import Command, call, wait_until
from tests.cluster.test_resume import JOBS, kill_whole, newest, resume

ROUNDS = 16


@pytest.mark.parametrize("optimizer", ["sgd", "sparse-adam"])
def test_a_killed_job_with_rows_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, optimizer: str
) -> None:
    """The job continues on three servers in place of two, so the slices of the table are held by
    other servers. The table has several slices."""
    job = (JOBS / "embedding.py", "--rounds", ROUNDS, "--workers", 2, "--deterministic")
    job += ("--set", f"optimizer={optimizer}")
    whole = call("train", *job, "--servers", 2, "--name", "whole", "--quiet", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert "made dense" not in whole.stderr
    regular = ("--checkpoint-every", "4rounds", "--min-step", "200ms")
    with Command(*job, "--servers", 2, *regular, cwd=tmp_path) as command:
        wait_until(lambda: command.journal("checkpoint"), "a checkpoint")
        kill_whole(command)
    assert 0 < newest(command.run_dir)[1].round < ROUNDS
    assert resume(tmp_path, "--servers", 3)["rounds"] == ROUNDS
    before, after = (
        load_file(tmp_path / "runs" / run / "model.safetensors") for run in ("whole", "resumed")
    )
    assert before.keys() == after.keys() == {"weight"}
    assert torch.equal(before["weight"], after["weight"])
