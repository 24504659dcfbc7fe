"""A process may open only a few files and sockets (`ulimit -n`). A job that needs more does not begin,
and a process that has opened all of them ends with one line."""

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.io import limits as descriptors
from tests.cluster.processes import Command, wait_until
from tests.commands.start import CLI, run, start_script

UNCHECKED = """
import polyrhythm.io.limits
from polyrhythm.cli.main import run

polyrhythm.io.limits.needed = lambda workers, servers: 0
run()
"""
"""The command `polyrhythm` without the check at the start of a job."""


@pytest.fixture
def soft_limit() -> Iterator[None]:
    """The soft limit of this process, and of the commands that it starts, is 24."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("most", [12, 24])
def test_a_job_that_needs_more_does_not_begin(tmp_path: Path, most: int) -> None:
    flags = ("--workers", 4, "--servers", 2, "--name", "run", "--quiet")
    ended = run("train", "digits", *flags, cwd=tmp_path, descriptors=most)
    assert ended.returncode == PolyrhythmError.status
    assert ended.stdout == ""
    assert ended.stderr == (
        f"polyrhythm: a process may open {most} files and sockets here (ulimit -n), and a job of 4"
        " workers and 2 servers needs about 60: run 'ulimit -n 60' before this command, as root if it"
        " is refused or in a new shell, or use fewer workers and servers\n"
    )
    assert not (tmp_path / "runs").exists()


def test_a_low_soft_limit_does_not_matter(tmp_path: Path, long_job: Path) -> None:
    """The command is not forked from a test process, which may have more files open than that."""
    limited = ["bash", "-c", 'ulimit -Sn 24; exec "$@"', "bash", CLI, "train", long_job]
    flags = ["--workers", "4", "--servers", "2", "--rounds", "3", "--quiet"]
    ended = subprocess.run([*limited, *flags], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("most", [12, 20])
def test_a_process_without_a_free_descriptor_ends_with_a_line(
    tmp_path: Path, long_job: Path, most: int
) -> None:
    script = tmp_path / "unchecked.py"
    script.write_text(UNCHECKED)
    flags = ("--workers", "4", "--servers", "2", "--rounds", "3", "--max-seconds", "20", "--quiet")
    pipe = subprocess.PIPE
    args = ("train", str(long_job), *flags)
    process = start_script(script, *args, cwd=tmp_path, stderr=pipe, stdout=pipe, descriptors=most)
    out, err = process.communicate(timeout=90)
    assert process.returncode == PolyrhythmError.status, out
    assert err is not None and "Traceback" not in err
    assert f"this process may open {most} files and sockets" in err.splitlines()[-1]


@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_process_that_joins_ends_with_a_line(tmp_path: Path, long_job: Path, role: str) -> None:
    flags = ("--workers", 2, "--servers", 2, f"--local-{role}s", 1)
    with Command(long_job, *flags, cwd=tmp_path) as command:
        (line,) = wait_until(lambda: command.journal("listening"), "the lead listens")
        address = f"127.0.0.1:{line['port']}"
        ended = run(role, "--connect", address, cwd=tmp_path, descriptors=8)
    assert ended.returncode == PolyrhythmError.status
    assert "Traceback" not in ended.stderr
    (last,) = ended.stderr.splitlines()[-1:]
    assert "may open 8 files and sockets" in last or "Too many open files" in last


@pytest.mark.parametrize("most", [5, 6])
def test_a_worker_that_can_open_almost_nothing_ends_with_a_line(
    tmp_path: Path, long_job: Path, most: int
) -> None:
    with Command(long_job, "--workers", 2, "--local-workers", 1, cwd=tmp_path) as command:
        (line,) = wait_until(lambda: command.journal("listening"), "the lead listens")
        limited = ["bash", "-c", f'ulimit -n {most}; exec "$@"', "bash", CLI, "worker"]
        address = f"127.0.0.1:{line['port']}"
        ended = subprocess.run(
            [*limited, "--connect", address], cwd=tmp_path, capture_output=True, text=True
        )
    assert ended.returncode == PolyrhythmError.status
    assert "Traceback" not in ended.stderr
    assert f"this process may open {most} files and sockets" in ended.stderr.splitlines()[-1]


def test_the_soft_limit_is_raised_and_the_hard_one_stays(soft_limit: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors.raise_limit()
    soft, still = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert still == hard
    assert soft == (min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536)


def test_the_largest_job_of_a_machine_fits_under_the_raised_limit() -> None:
    assert descriptors.needed(1_000, 1_000) < descriptors._ENOUGH
