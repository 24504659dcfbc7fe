"""A worker that died is named in the result, also if the job has ended before the engine learns of the
death. A worker that the engine has ended is not named."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyrhythm.api.hosts import child_requests
from polyrhythm.engines.choice import choose_engine
from polyrhythm.engines.engine import EngineWatch
from polyrhythm.engines.exits import ending
from polyrhythm.engines.host import Exited, ProcessReported
from polyrhythm.engines.requests import Told
from polyrhythm.observe.runs import Members
from polyrhythm.wire.messages import JobSpec
from tests.engines.hosts import supervisor_of

JOB = '''
"""Stops the fork server, so that the engine learns of the death late, and dies in the third step."""
import os
import signal
from pathlib import Path

import torch


def main(worker):
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step(points=4)
    Path(FILE).write_text(str(os.getppid()))
    os.kill(os.getppid(), signal.SIGSTOP)
    DIE
'''


@pytest.mark.parametrize(
    ("die", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os._exit(7)", "exit status 7"),
    ],
    ids=["killed", "exit"],
)
def test_a_worker_whose_death_ends_the_job_is_named(tmp_path: Path, die: str, how: str) -> None:
    stopped = tmp_path / "fork-server.pid"
    file = tmp_path / "job.py"
    file.write_text(JOB.replace("FILE", repr(str(stopped))).replace("DIE", die))
    job = JobSpec(job="j", name=str(file), path=str(file), workers=1, max_seconds=60)
    requests = child_requests(job, tmp_path)
    members = Members(tmp_path / "journal.jsonl")
    ticks_after_end = 0

    def tick() -> None:
        """Let the fork server go on when the engine knows that the job has ended: one turn after the
        journal has recorded it."""
        nonlocal ticks_after_end
        ticks_after_end += members.ended_by() is not None
        if ticks_after_end == 2:
            os.kill(int(stopped.read_text()), signal.SIGCONT)

    outcome = choose_engine("local").run(requests, EngineWatch(say=print, tick=tick))
    assert ticks_after_end >= 2
    assert outcome.ended == "all workers left before the job reached its goal"
    assert outcome.failed == f"{outcome.ended}: worker-0 failed: {how}"
    assert outcome.worker_failures == {"worker-0": how}


def test_a_worker_that_was_started_again_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    clock = SimpleNamespace(monotonic_ns=lambda: now_ns, monotonic=lambda: now_ns / 1e9)
    monkeypatch.setattr("polyrhythm.engines.supervisor.time", clock)
    job = JobSpec(job="j", name="digits", respawn=True)
    supervisor, host = supervisor_of(job, tmp_path, [])
    worker = supervisor._workers[0]
    supervisor._start(worker)
    host.events = [Exited("worker-0", -signal.SIGKILL, "killed by SIGKILL")]
    supervisor._turn()
    assert supervisor._run.worker_failures == {"worker-0": "killed by SIGKILL"}
    assert host.started == [worker], "it is started again after a delay"
    now_ns = 60 * 10**9
    supervisor._turn()
    assert host.started == [worker, worker]
    assert supervisor._run.respawned == {"worker-0": 1}
    assert not supervisor._run.worker_failures


def test_a_worker_is_not_started_again_after_the_end_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was to be started after a delay, in which the job has ended."""
    now_ns = 0
    clock = SimpleNamespace(monotonic_ns=lambda: now_ns, monotonic=lambda: now_ns / 1e9)
    monkeypatch.setattr("polyrhythm.engines.supervisor.time", clock)
    job = JobSpec(job="j", name="digits", respawn=True)
    supervisor, host = supervisor_of(job, tmp_path, [])
    worker = supervisor._workers[0]
    supervisor._start(worker)
    host.events = [Exited("worker-0", -signal.SIGKILL, "killed by SIGKILL")]
    supervisor._turn()
    assert supervisor._respawning
    supervisor._run.ended = "goal reached"
    now_ns = 60 * 10**9
    supervisor._turn()
    assert host.started == [worker]
    assert not supervisor._respawning, "the supervisor does not wait for it"


@pytest.mark.parametrize(
    ("status", "sent", "named"),
    [
        (-signal.SIGKILL, [], True),
        (-signal.SIGSEGV, [signal.SIGTERM], True),
        (-signal.SIGKILL, [signal.SIGTERM], True),
        (7, [signal.SIGTERM], True),
        (-signal.SIGTERM, [signal.SIGTERM], False),
        (-signal.SIGKILL, [signal.SIGTERM, signal.SIGKILL], False),
        (0, [signal.SIGTERM], False),
    ],
)
@pytest.mark.parametrize("told", [False, True], ids=["", "told"])
def test_after_the_end_a_worker_has_failed_unless_the_engine_ended_it(
    tmp_path: Path, status: int, sent: list[signal.Signals], named: bool, told: bool
) -> None:
    """`sent`: the signals that the supervisor has sent. `told`: whether the worker was told that the
    job has ended."""
    supervisor, host = supervisor_of(JobSpec(job="j", name="digits"), tmp_path, [])
    supervisor._start(supervisor._workers[0])
    supervisor._run.ended = "stopped on request"
    for number in sent:
        supervisor._processes.signal(supervisor._processes["worker-0"], number)
    assert host.sent == [("worker-0", number) for number in sent]
    supervisor._on_event(ProcessReported("worker-0", Told(whole_job=told)))
    supervisor._on_event(Exited("worker-0", status, ending(status)))
    assert list(supervisor._run.worker_failures) == (["worker-0"] if named and not told else [])


@pytest.mark.parametrize("failed", [False, True])
def test_a_process_whose_exit_status_is_unknown_has_failed_if_it_said_so(
    tmp_path: Path, failed: bool
) -> None:
    supervisor, _ = supervisor_of(JobSpec(job="j", name="digits"), tmp_path, [])
    supervisor._start(supervisor._workers[0])
    if failed:
        supervisor._on_event(ProcessReported("worker-0", Told(failed="it raised")))
    supervisor._on_event(Exited("worker-0", None, "its node was lost"))
    assert supervisor._run.worker_failures == ({"worker-0": "it raised"} if failed else {})
