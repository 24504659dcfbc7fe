"""A log that grows large is renamed, and its process goes on with a new one."""

from pathlib import Path

import pytest

from polyrhythm.api.hosts import child_requests
from polyrhythm.engines import output as logs
from polyrhythm.engines.choice import choose_engine
from polyrhythm.engines.engine import EngineWatch
from polyrhythm.observe.output import Output, log_file, older_log
from polyrhythm.wire.messages import JobSpec

JOB = """
import time
import torch

def main(worker):
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    number = 0
    while not worker.stopped:
        print("line", number)
        number += 1
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step(points=4)
        time.sleep(0.005)
    print("the end")
"""


def test_a_large_log_is_renamed_and_no_line_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_LOG_NBYTES", 300)
    monkeypatch.setattr(logs, "_LOOK_EVERY_S", 0.0)
    file = tmp_path / "job.py"
    file.write_text(JOB)
    job = JobSpec(job="j", name=str(file), path=str(file), workers=1, rounds=300)
    requests = child_requests(job, tmp_path)
    read, lines = Output(tmp_path), []

    def look() -> None:
        lines.extend(line for _, part in read.lines() for line in part)

    outcome = choose_engine("local").run(requests, EngineWatch(say=print, tick=look))
    look()
    assert outcome.failed is None
    log = log_file(tmp_path, "worker-0")
    assert older_log(log).stat().st_size >= 300
    # the log may have been replaced after the last line
    kept = older_log(log).read_text() + log.read_text()
    assert lines[-1] == "the end" and kept.endswith("the end\n")
    numbers = [int(line.removeprefix("line ")) for line in lines[:-1]]
    assert numbers == list(range(len(numbers))) and len(numbers) >= 300


KILLED = """
import os
import pathlib
import signal

rename = pathlib.Path.rename

def die(self, target):
    print("in the new log", flush=True)
    if AFTER:
        rename(self, target)
    os.kill(os.getpid(), signal.SIGKILL)

pathlib.Path.rename = die
"""


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_is_killed_while_it_begins_a_new_log_leaves_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The worker is killed before or after the first of the two renamings."""
    monkeypatch.setattr(logs, "MOST_LOG_NBYTES", 1000)
    monkeypatch.setattr(logs, "_LOOK_EVERY_S", 0.0)
    file = tmp_path / "job.py"
    killed = KILLED.replace("AFTER", str(after)).replace("\n", "\n    ")
    file.write_text(JOB.replace("    number = 0\n", f"    number = 0\n{killed}\n"))
    job = JobSpec(job="j", name=str(file), path=str(file), workers=1, max_seconds=60)
    requests = child_requests(job, tmp_path)
    read, lines = Output(tmp_path), []

    def look() -> None:
        lines.extend(line for _, part in read.lines() for line in part)

    outcome = choose_engine("local").run(requests, EngineWatch(say=print, tick=look))
    look()
    assert outcome.worker_failures == {"worker-0": "killed by SIGKILL"}
    log = log_file(tmp_path, "worker-0")
    assert sorted(path.name for path in log.parent.glob("worker-0*")) == [
        "worker-0.log",
        "worker-0.log.1",
    ]
    assert older_log(log).stat().st_size >= 1000
    # another thread of the worker may print lines until the worker is dead
    assert "in the new log" in log.read_text().splitlines()
    assert "in the new log" in lines


def test_a_log_is_replaced_only_if_an_earlier_look_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine looks at the size of a log twice before it lets the process begin a new one.
    Between these two looks a reader can read the rest of the previous log."""
    monkeypatch.setattr(logs, "MOST_LOG_NBYTES", 1000)
    monkeypatch.setattr(logs, "_LOOK_EVERY_S", 0.0)
    looks = logs.LogSizes(tmp_path)
    told: list[str] = []

    def look() -> None:
        told.extend(looks.large(["worker-0"]))

    log = log_file(tmp_path, "worker-0")
    log.parent.mkdir()
    look()
    for replaced in range(3):
        new = tmp_path / "new"
        new.write_bytes(b"x" * 1001)
        if log.exists():
            log.rename(older_log(log))
        new.rename(log)
        look()
        assert len(told) == replaced, "this look found the log"
        for _ in range(3):
            look()
            assert len(told) == replaced + 1, "a process is told once"
