"""Processes of an older release, which speaks a lower protocol number, and of this release do not
work together: each end says so in one line."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import polyrhythm
from polyrhythm.wire import messages as m
from tests.cluster.processes import Command, wait_until
from tests.commands.start import start

OLDER = m.PROTOCOL - 1
FIELDS = Path("wire", "messages", "fields.py")


@pytest.fixture
def older(tmp_path: Path) -> str:
    """A folder with an older release: this one, with a lower protocol number. Only the file with
    that number is a copy."""
    source = Path(polyrhythm.__file__).parent
    folder, below = tmp_path / "older" / "polyrhythm", source
    for part in FIELDS.parts:
        folder.mkdir(parents=True)
        for path in below.iterdir():
            if path.name not in (part, "__pycache__"):
                (folder / path.name).symlink_to(path)
        folder, below = folder / part, below / part
    text, changed = re.subn(r"(?m)^PROTOCOL = \d+$", f"PROTOCOL = {OLDER}", below.read_text())
    assert changed == 1
    folder.write_text(text)
    return str(tmp_path / "older")


def refusals(job: Command, long_job: Path, **environ: str) -> list[str]:
    """Start a worker, a server and an operator for this job, and return what they print on stderr."""
    address = job.address()
    commands = [
        ("worker", long_job, "--connect", address),
        ("server", "--connect", address),
        ("stop", "run"),
    ]
    env = {**os.environ, **environ}
    peers = [
        start(*words, cwd=job.cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for words in commands
    ]
    said = [peer.communicate(timeout=100)[1] for peer in peers]
    assert [peer.returncode for peer in peers] == [1, 1, 1], said
    return [line for text in said for line in text.splitlines() if "connecting to" not in line]


def test_older_peers_of_a_job_are_refused(tmp_path: Path, long_job: Path, older: str) -> None:
    line = (
        f"the peer speaks protocol {OLDER}, this job speaks {m.PROTOCOL}; install the same version"
        " of polyrhythm on both sides"
    )
    with Command(long_job, "--workers", 1, "--servers", 1, "--rounds", 10**6, cwd=tmp_path) as job:
        job.await_round(1)
        assert refusals(job, long_job, PYTHONPATH=older) == [f"polyrhythm: s0: {line}"] * 3
        away = wait_until(lambda: job.journal("turned-away"), "the refusal is recorded")
        assert {each["detail"] for each in away} == {line}
        job.assert_alive()


def test_peers_of_an_older_job_are_refused(
    tmp_path: Path, long_job: Path, older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = (
        f"the peer speaks protocol {m.PROTOCOL}, this job speaks {OLDER}; install the same version"
        " of polyrhythm on both sides"
    )
    sizes = ("--workers", 1, "--servers", 1, "--rounds", 10**6)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", older)
        job = Command(long_job, *sizes, cwd=tmp_path, trace=False)
    with job:
        job.await_round(1)
        assert refusals(job, long_job) == [f"polyrhythm: s0: {line}"] * 3
        away = wait_until(lambda: job.journal("turned-away"), "the refusal is recorded")
        assert {each["detail"] for each in away} == {line}
        job.assert_alive()
