"""A worker gets the job's file from the lead only if its user accepts it."""

import os
from pathlib import Path

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.io.codefile import digest_of, read_code
from polyrhythm.wire.messages.operator import MOST_CODE_NBYTES
from tests.cluster.processes import Command, call, wait_until
from tests.commands.start import run

JOB = """
import torch
from pathlib import Path

def main(worker):
    Path(worker.name).write_text(__file__)
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
"""
FLAGS = ("--workers", 2, "--local-workers", 1, "--servers", 1, "--threads", 1, "--max-seconds", 600)
LONG_S = 200.0


def far(command: Command, tmp_path: Path) -> list[object]:
    """The arguments of a worker on another host, whose user has copied only the address and the
    secret of the job."""
    return ["worker", "--connect", command.address(), "--secret-file", tmp_path / "secret"]


def copy_secret(command: Command, tmp_path: Path) -> None:
    copy = tmp_path / "secret"
    command.address()
    copy.write_bytes((command.run_dir / "secret").read_bytes())
    copy.chmod(0o600)


def test_the_file_is_run_only_if_it_is_accepted(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "polyrhythm.toml").write_text("accept-code = true\n")
    with Command(job, *FLAGS, cwd=tmp_path) as command:
        copy_secret(command, tmp_path)
        environ = {**command._env, "POLYRHYTHM_ACCEPT_CODE": "1"}
        told = run(*far(command, tmp_path), cwd=elsewhere, env=environ, timeout_s=LONG_S)
        assert told.returncode == 1
        last = told.stderr.splitlines()[-1]
        assert "is not on this machine: name its copy here" in last and "--accept-code" in last
        assert (
            wait_until(lambda: command.journal("left"), "it has left", LONG_S)[0]["reason"]
            == "no-code"
        )
        worker = command.join(
            "--name", "far", "--secret-file", tmp_path / "secret", "--accept-code"
        )
        wait_until((tmp_path / "far").exists, "it runs the code", LONG_S)
        ran = Path((tmp_path / "far").read_text())
        command.await_round(20)
        assert call("stop", "run", cwd=tmp_path).returncode == 0
        assert command.wait(LONG_S) == 0, command.stderr()
        assert worker.wait(LONG_S) == 0
        assert worker.stderr is not None
        said = worker.stderr.read()
        sent = command.journal("code-sent")
    assert f"runs job.py, which the lead has sent ({len(JOB)} bytes, " in str(said)
    assert digest_of(JOB.encode()) in str(said)
    assert ran.name == "job.py" and not ran.exists(), "a copy, which is deleted at the end"
    assert [line["name"] for line in sent] == ["far"]


def test_a_file_that_was_changed_or_has_neighbours_is_not_sent(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    with Command(job, *FLAGS, cwd=tmp_path) as command:
        copy_secret(command, tmp_path)
        wait_until((tmp_path / "worker-0").exists, "the job's own worker runs", LONG_S)
        job.write_text(JOB + "\n# changed\n")
        told = run(*far(command, tmp_path), "--accept-code", cwd=tmp_path, timeout_s=LONG_S)
        assert told.returncode == 1
        assert call("stop", "run", "--now", cwd=tmp_path).returncode == 0
        command.wait(LONG_S)
    assert told.stderr.splitlines()[-1] == (
        "polyrhythm: job.py was changed after the job had begun, so it is not sent"
    )


@pytest.mark.parametrize(
    ("source", "beside", "why"),
    [
        ("import helpers\n", "helpers.py", "imports helpers.py from its own folder"),
        (
            "def f():\n    from tools.a import b\n",
            "tools/a.py",
            "imports tools/ from its own folder",
        ),
        ("from . import x\n", "x.py", "imports . from its own folder"),
        ("import torch\n", "__init__.py", "is part of a package"),
        (f"# {'x' * MOST_CODE_NBYTES}", "other.py", "and at most 1048576 are sent"),
    ],
)
def test_only_a_single_file_of_limited_size_is_sent(
    tmp_path: Path, source: str, beside: str, why: str
) -> None:
    job = tmp_path / "job.py"
    job.write_text(source)
    (tmp_path / beside).parent.mkdir(exist_ok=True)
    (tmp_path / beside).write_text("")
    with pytest.raises(UsageError) as raised:
        read_code(job, digest_of(source.encode()))
    assert why in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_that_was_replaced_by_a_pipe_is_not_read(tmp_path: Path) -> None:
    """Reading such a file never ends, so a lead that tried to read it would hang."""
    job = tmp_path / "job.py"
    os.mkfifo(job)
    with pytest.raises(UsageError, match="it is not a regular file"):
        read_code(job, digest_of(b""))


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """A sparse file without contents that is larger than the memory of any machine."""
    job = tmp_path / "job.py"
    with job.open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(UsageError, match="at most 1048576 are sent"):
        read_code(job, digest_of(b""))


def test_a_file_with_imports_from_elsewhere_is_sent(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import torch, job\n")
    (tmp_path / "unused.py").write_text("")
    assert read_code(job, digest_of(job.read_bytes())) == job.read_bytes()


def test_accept_code_is_no_setting_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "polyrhythm.toml").write_text("accept-code = true\n")
    for verb in ("train", "serve"):
        told = call(verb, cwd=tmp_path)
        assert told.returncode == 2
        assert "there is no setting 'accept-code'" in told.stderr
