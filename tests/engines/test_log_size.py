"""A log that grows large is renamed, and its process goes on with a new one."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from polyrhythm.api.hosts import child_requests
from polyrhythm.engines import logs
from polyrhythm.engines.choice import choose_engine
from polyrhythm.engines.engine import EngineWatch
from polyrhythm.engines.processes import Processes
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
        time.sleep(0.001)
    print("the end")
"""


def test_a_large_log_is_renamed_and_no_line_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_LOG_NBYTES", 1000)
    monkeypatch.setattr(logs, "_LOOK_EVERY_S", 0.0)
    file = tmp_path / "job.py"
    file.write_text(JOB)
    job = JobSpec(job="j", name=str(file), path=str(file), workers=1, rounds=1000)
    requests = child_requests(job, tmp_path, link="auto", digest="auto")
    read, lines = Output(tmp_path), []

    def look() -> None:
        lines.extend(line for _, part in read.lines() for line in part)

    outcome = choose_engine("local").run(requests, EngineWatch(say=print, tick=look))
    look()
    assert outcome.failed is None
    log = log_file(tmp_path, "worker-0")
    assert older_log(log).stat().st_size >= 1000
    # the log may have been replaced after the last line
    kept = older_log(log).read_text() + log.read_text()
    assert lines[-1] == "the end" and kept.endswith("the end\n")
    numbers = [int(line.removeprefix("line ")) for line in lines[:-1]]
    assert numbers == list(range(len(numbers))) and len(numbers) >= 1000


def test_a_log_is_replaced_only_if_an_earlier_look_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine looks at the size of a log twice before it lets the process begin a new one.
    Between these two looks a reader can read the rest of the previous log."""
    monkeypatch.setattr(logs, "MOST_LOG_NBYTES", 1000)
    monkeypatch.setattr(logs, "_LOOK_EVERY_S", 0.0)
    told: list[object] = []
    child = SimpleNamespace(request=SimpleNamespace(name="worker-0"))
    processes = SimpleNamespace(all=[child], tell=lambda child, message: told.append(message))
    looks = logs.Logs(tmp_path, cast(Processes, processes))
    log = log_file(tmp_path, "worker-0")
    log.parent.mkdir()
    looks.limit()
    for replaced in range(3):
        new = tmp_path / "new"
        new.write_bytes(b"x" * 1001)
        if log.exists():
            log.rename(older_log(log))
        new.rename(log)
        looks.limit()
        assert len(told) == replaced, "this look found the log"
        for _ in range(3):
            looks.limit()
            assert len(told) == replaced + 1, "a process is told once"
