"""Finding the folders of runs, and deciding whether a run is alive."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from polyrhythm.errors import UsageError
from polyrhythm.observe import runs
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import refused
from tests.observe.journals import ended, opened, rounds


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "mine"
    path.mkdir(parents=True)
    runs.write_job(path, JobSpec(job="x", name="digits"))
    write_journal(path, [*opened(0, 1), rounds(2.0, 4)])
    return path


def write_journal(path: Path, lines: list[dict[str, object]]) -> None:
    (path / runs.JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which lives until its stdin closes."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def adopt(path: Path, pid: int) -> None:
    """Write `process.json` as if the process `pid` had started the run."""
    process = runs.RunProcess(
        pid=pid, host=socket.gethostname(), began=0.0, started=runs._started(pid)
    )
    (path / "process.json").write_bytes(msgspec.json.encode(process))


def test_a_living_run(folder: Path) -> None:
    runs.write_process(folder)
    run = runs.load_run(folder)
    assert (run.alive, run.word, run.reason) == (True, "running", None)
    assert run.job is not None and run.job.name == "digits"
    assert run.state.round == 4
    assert run.now_s >= run.state.at_s


def test_a_killed_run_ended_without_a_word(folder: Path, other: subprocess.Popen[bytes]) -> None:
    adopt(folder, other.pid)
    assert runs.load_run(folder).word == "running"
    other.kill()
    other.wait()
    run = runs.load_run(folder)
    assert (run.alive, run.word) == (False, "ended without a word")
    assert run.now_s == run.state.at_s


def test_a_zombie_is_dead(folder: Path, other: subprocess.Popen[bytes]) -> None:
    adopt(folder, other.pid)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert runs.load_run(folder).word == "ended without a word"


def test_another_process_with_the_same_number_is_not_the_run(folder: Path) -> None:
    runs.write_process(folder)
    process = msgspec.json.decode((folder / "process.json").read_bytes(), type=runs.RunProcess)
    assert process.started is not None
    older = msgspec.structs.replace(process, started=process.started - 1)
    assert runs.is_alive(process) and not runs.is_alive(older)


def test_without_proc_the_number_decides(folder: Path, other: subprocess.Popen[bytes]) -> None:
    process = runs.RunProcess(pid=other.pid, host=socket.gethostname(), began=0.0)
    assert runs.is_alive(process)
    other.kill()
    other.wait()
    assert not runs.is_alive(process)


def test_whether_a_run_on_another_machine_is_alive_is_unknown(folder: Path) -> None:
    process = runs.RunProcess(pid=1, host="elsewhere", began=0.0, started=1)
    (folder / "process.json").write_bytes(msgspec.json.encode(process))
    run = runs.load_run(folder)
    assert run.word == "unknown" and "elsewhere" in str(run.reason)


@pytest.mark.parametrize(("failed", "word"), [(False, "ended"), (True, "failed")])
def test_the_journal_has_the_last_word(folder: Path, failed: bool, word: str) -> None:
    runs.write_process(folder)
    write_journal(folder, [*opened(0), ended(3.0, refused("so it was"), failed=failed)])
    run = runs.load_run(folder)
    assert (run.word, run.reason) == (word, "so it was")


def test_what_only_the_command_knew(folder: Path) -> None:
    """The lead was killed, so the journal has no line about the end. The command wrote the reason
    to its result."""
    runs.write_result(folder, {"failed": "server s0 died"})
    run = runs.load_run(folder)
    assert (run.word, run.reason) == ("failed", "server s0 died")
    runs.write_result(folder, {"failed": None})
    assert runs.load_run(folder).word == "stopped"


def test_finding_runs(folder: Path) -> None:
    newer = folder.with_name("newer")
    newer.mkdir()
    runs.write_job(newer, JobSpec(job="y"))
    os.utime(folder / "job.json", ns=(1, 1))
    (folder.parent / "no-run").mkdir()
    assert list(runs.run_dirs(folder.parent)) == [folder, newer]
    assert runs.find_run(folder.parent, None) == newer
    assert runs.find_run(folder.parent, "mine") == folder
    assert runs.find_run(Path("elsewhere"), str(folder)) == folder
    with pytest.raises(UsageError, match="there is no run 'no-run'"):
        runs.find_run(folder.parent, "no-run")
    with pytest.raises(UsageError, match="start one with"):
        runs.find_run(folder.parent / "nowhere", None)


def test_a_run_of_which_there_is_only_a_folder_yet(tmp_path: Path) -> None:
    run = runs.load_run(tmp_path)
    assert (run.job, run.process, run.state.at_s) == (None, None, 0.0)
