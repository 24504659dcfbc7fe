"""Units for systemd: systemd accepts them, and their commands are a job that others join."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from polyrhythm.errors import PolyrhythmError
from tests.cluster.processes import wait_until
from tests.manifests.containers import Containers

Call = Callable[..., Result]
ANALYZE = shutil.which("systemd-analyze")
MOST_WIDTH = 105


def written(call: Call, *args: object) -> str:
    told = call("manifest", "systemd", *args)
    assert told.exit_code == 0, told.exception
    return told.stdout


def setting(unit: str, name: str) -> str:
    """The value of a setting. Its lines may be continued."""
    (line,) = (
        line for line in unit.replace("\\\n", "").splitlines() if line.startswith(f"{name}=")
    )
    return line.partition("=")[2]


def command(unit: str) -> list[str]:
    """The words of the command, as systemd reads them for the instance 7."""
    words = shlex.split(setting(unit, "ExecStart"))
    marks = {"%%": "%", "$$": "$", "%H": "here", "%i": "7"}
    return [re.sub(r"%.|\$\$", lambda found: marks[found[0]], word) for word in words]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("role", ["job", "worker", "server"])
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--checkpoint-every", "60s", "--set", 'a=50% -- $x "\\y"'),
        ("--host", "10.0.0.5", "--insecure", "--local-workers", "1", "--threads", "4"),
    ],
)
def test_systemd_accepts_it(call: Call, tmp_path: Path, role: str, flags: tuple[str, ...]) -> None:
    assert ANALYZE is not None
    (tmp_path / "mine job.py").write_text("def main(worker): ...\n")
    unit = written(call, "mine job.py", "--role", role, *flags)
    suffix = "" if role == "job" else f"-{role}@"
    name = f"polyrhythm-mine-job{suffix}.service"
    assert f"user/{name}" in unit, "it says where it belongs"
    (tmp_path / name).write_text(unit)
    done = subprocess.run(
        [ANALYZE, "verify", f"./{name}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    about_it = [line for line in done.stderr.splitlines() if "polyrhythm" in line]
    assert (done.returncode, about_it) == (0, []), done.stderr
    comments = [line for line in unit.splitlines() if line.startswith("#")]
    assert max(map(len, comments)) <= MOST_WIDTH


def test_the_command_has_the_options_as_they_were_given(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(worker): ...\n")
    text = 'a=50% -- $x "\\y" %H-%i'
    words = command(written(call, "mine.py", "--set", text, "--respawn", "--threads", "2"))
    assert (
        words[1:3] == ["train", str(tmp_path / "mine.py")]
        and words[words.index("--set") + 1] == text
    )
    assert "--respawn" in words and words[words.index("--threads") + 1] == "2"


def test_only_a_job_with_checkpoints_is_started_again(call: Call) -> None:
    plain = written(call, "digits")
    assert setting(plain, "Restart") == "no" and "[Install]" not in plain
    kept = written(call, "digits", "--checkpoint-every", "60s")
    assert setting(kept, "Restart") == "on-failure" and "[Install]" in kept
    for role in ("worker", "server"):
        assert setting(written(call, "digits", "--role", role), "Restart") == "on-failure"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["systemd", "--engine", "ray"], "has no --engine"),
        (["systemd", "--resources-per-worker", "CPU=2"], "its machine has no scheduler"),
        (["systemd", "--host", "10.0.0.5"], "give --insecure"),
        (["systemd", "--host", "0.0.0.0", "--insecure", "--role", "worker"], "could reach"),
        (["systemd", "--role", "lead"], "--role 'lead' is not known: choose one of job, worker"),
        (["systemd", "--local-workers", "9"], "--local-workers is 9"),
        (["systemd", "--image", "x"], "--image is for kubernetes and compose"),
        (["kubernetes", "--role", "job"], "--role is for systemd"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, args: list[str], says: str) -> None:
    launcher, *flags = args
    told = call("manifest", launcher, "digits", *flags)
    assert isinstance(told.exception, PolyrhythmError), told.output
    assert says in str(told.exception) and told.stdout == ""


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_units_are_a_job_that_a_worker_and_a_server_join_and_leave(
    call: Call, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--workers", 2, "--local-workers", 1, "--servers", 2, "--local-servers", 1)
    flags += ("--rounds", 100_000, "--min-step", "50ms", "--port", port)
    env = {"POLYRHYTHM_SECRET": "5" * 64}  # from the EnvironmentFile
    with Containers(tmp_path, {}) as units:
        worker, server, job = (
            units.start(
                command(unit := written(call, "digits", *flags, "--role", role)),
                env,
                Path(setting(unit, "WorkingDirectory")),
            )
            for role in ("worker", "server", "job")
        )

        def told(text: str) -> bool:
            assert job.poll() is None, units.logs()
            return text in units.log(2).read_text()

        wait_until(lambda: told("round 1 opened with 2 workers"), "it trains")
        assert "here-7 joined" in units.log(2).read_text()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, units.logs()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 128 + signal.SIGTERM, units.logs()
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 128 + signal.SIGTERM, units.logs()
    assert (tmp_path / "runs" / "digits" / "model.safetensors").is_file()
    assert "POLYRHYTHM_SECRET" not in os.environ
