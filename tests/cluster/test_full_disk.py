"""A disk that is full, or fills up while a job runs, ends the job with one clear line.

The disk is a small tmpfs that the test mounts; the test is skipped if it cannot be mounted.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import call
from tests.cluster.test_bad_input import TALKATIVE

SIZE = 64 * 1024
SCENARIO = """
[job]
rounds = 3
[[workers]]
count = 2
step = "10ms"
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with a job in it, on a small disk of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "polyrhythm-test", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a disk cannot be mounted here: {error}")
    try:
        (path / "talkative.py").write_text(TALKATIVE)
        (path / "scenario.toml").write_text(SCENARIO)
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=20)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            pass  # writing fails when the disk is full


def the_line(disk: Path, *args: object) -> str:
    done = call(*args, cwd=disk)
    assert done.returncode == 1, done.stdout
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("polyrhythm: cannot ") and line.endswith("No space left on device")
    return line


ENDLESS = ("--rounds", 1_000_000, "--servers", 2, "--workers", 2, "--json", "--max-seconds", 80)


def test_a_disk_that_fills_up_with_the_journal_ends_the_job_with_one_line(disk: Path) -> None:
    assert "journal.jsonl" in the_line(disk, "train", "talkative.py", *ENDLESS)
    assert not list(disk.glob("runs/*/*.part"))


def test_a_disk_that_fills_up_with_traces_ends_the_job_with_one_line(disk: Path) -> None:
    job = disk / "talkative.py"
    job.write_text("".join(line for line in TALKATIVE.splitlines(True) if "report(" not in line))
    line = the_line(disk, "train", "talkative.py", *ENDLESS, "--trace")
    assert "s0.trace" in line or "journal.jsonl" in line


@pytest.mark.parametrize(
    "command",
    [
        ("train", "talkative.py", *ENDLESS),
        ("train", "talkative.py", *ENDLESS, "--trace"),
        ("simulate", "scenario.toml", "--json"),
        ("new", "clouds"),
    ],
    ids=lambda command: " ".join(word for word in command if not isinstance(word, int)),
)
def test_a_full_disk_ends_every_command_with_one_line(
    disk: Path, command: tuple[object, ...]
) -> None:
    fill(disk)
    the_line(disk, *command)
