"""Stops in the first moments of a job."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polyrhythm.api.hosts import child_requests
from polyrhythm.engines.choice import choose_engine
from polyrhythm.engines.engine import EngineRun, EngineWatch, Wanted
from polyrhythm.wire.messages import JobSpec
from tests.cluster.processes import wait_until

JOB = """
import pathlib
import torch


def main(worker):
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    folder = pathlib.Path(__file__).parent
    (folder / f"began-{worker.name}").touch()
    while not worker.stopped:
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    (folder / f"after-{worker.name}").touch()
"""


def test_a_signal_in_the_turn_that_started_the_workers_ends_the_job_in_order(
    tmp_path: Path,
) -> None:
    """The engine is busy from the moment at which it has started the workers until they train. Then
    the signal comes."""
    file = tmp_path / "job.py"
    file.write_text(JOB)
    said: list[str] = []
    listening = sent = False

    def listen() -> None:
        nonlocal listening
        listening = True

    def tick() -> None:
        nonlocal sent
        if listening and not sent:
            sent = True
            wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 2, "both workers train")
            signal.raise_signal(signal.SIGINT)

    job = JobSpec(job="j", name=str(file), path=str(file), workers=2, max_seconds=60)
    requests = child_requests(job, tmp_path)
    watch = EngineWatch(say=said.append, tick=tick, listening=lambda address: listen())
    outcome = choose_engine("local").run(requests, watch)
    assert outcome.interrupted == signal.SIGINT and outcome.ended == "stopped on request"
    assert len(list(tmp_path.glob("after-*"))) == 2, "the code after the loop did not run"
    assert not outcome.worker_failures and outcome.failed is None


def test_a_stop_does_not_wait_for_a_fork_server_that_imports_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`polyrhythm.serve` runs the engine in a thread, where no signal arrives. The fork server of this
    test never answers."""
    never = tmp_path / "never"
    never.write_text("#!/bin/sh\nexec sleep 600\n")
    never.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(never))
    monkeypatch.setattr("polyrhythm.engines.local.subprocess", subprocess)
    job = JobSpec(job="j", name="digits", workers=1, max_seconds=60)
    requests = child_requests(job, tmp_path)
    watch = EngineWatch(
        say=lambda line: None,
        tick=lambda: None,
        listening=lambda address: None,
        wanted=lambda: Wanted.STOP_NOW,
    )
    outcomes: list[EngineRun] = []

    def run() -> None:
        outcomes.append(choose_engine("local").run(requests, watch))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert [outcome.interrupted for outcome in outcomes] == [signal.SIGINT]
