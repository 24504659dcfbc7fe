"""A whole job on a real S3 server: checkpoints, a store that is stopped for a while, and a resume
from the URL of the store."""

import json
from pathlib import Path

import pytest
import torch

from polyrhythm.core.record import Record
from polyrhythm.store.checkpoints import newest, read_record
from polyrhythm.store.objects import open_store
from tests.cluster.jobs.counted_visits import POINTS
from tests.cluster.processes import Command, wait_until
from tests.cluster.test_resume import JOBS, kill_whole, visited
from tests.commands.start import run
from tools.s3_server import S3Server

EPOCHS = 3
JOB = (JOBS / "counted_visits.py", "--updater", "addition", "--epochs", EPOCHS)
JOB += ("--set", "batch=20")


def test_a_job_outlives_its_s3_server_and_resumes_from_the_url(
    tmp_path: Path, s3_server: S3Server, s3_url: str
) -> None:
    """The job trains on while the server is stopped, and makes checkpoints again afterwards. All
    its processes are then killed, and the job resumes with other numbers of servers and workers."""
    size = ("--workers", 2, "--servers", 2, "--min-step", "200ms")
    store = ("--store", s3_url, "--checkpoint-every", "2rounds")
    # The command opens the store before it forks, so it needs processes that were forked earlier
    # (`spares`).
    with Command(*JOB, *size, *store, cwd=tmp_path, spares=1) as command:
        wait_until(lambda: command.journal("checkpoint"), "a checkpoint")
        s3_server.kill()
        try:
            (failed, *_) = wait_until(lambda: command.journal("checkpoint-failed"), "one fails")
        finally:
            # other tests of this file use the S3 server too, so it must run again
            s3_server.start()
        made = len(command.journal("checkpoint"))
        wait_until(lambda: len(command.journal("checkpoint")) > made, "the next checkpoint")
        kill_whole(command)
    assert s3_url in failed["fields"]["detail"]
    opened = open_store(s3_url)
    record = read_record(opened, newest(opened, print), Record)
    assert 0 < visited(record) < EPOCHS * POINTS
    resized = ("--workers", 3, "--servers", 1, "--name", "resumed", "--json")
    done = run("resume", s3_url, *resized, cwd=tmp_path, timeout_s=90, spares=1)
    assert done.returncode == 0, done.stderr
    assert visited(record) + json.loads(done.stdout)["points"] == EPOCHS * POINTS
    for block in torch.load(tmp_path / "worker-0.final.pt"):
        assert (block == EPOCHS).all()


def test_a_job_with_wrong_credentials_is_refused_in_one_line(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    job = ("train", *JOB, "--store", s3_url, "--name", "run")
    done = run(*job, cwd=tmp_path, timeout_s=60, spares=1)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "the store refuses these credentials (403 " in done.stderr
    assert not (tmp_path / "runs").exists()
