"""What the supervisor does with the events of a cluster: a machine has died, or is taken away."""

import signal
from pathlib import Path

import msgspec
import pytest

from polyrhythm.core.machine import Reason
from polyrhythm.engines.host import Exited, MustLeave, Noticed, ProcessReported
from polyrhythm.engines.requests import Told
from polyrhythm.observe.journal import JournalPart, read_journal
from polyrhythm.observe.runs import JOURNAL
from polyrhythm.wire.messages import Address, JobSpec
from tests.engines.hosts import supervisor_of

LEAD = Address("10.0.0.1", 4000, "", "")


def test_what_the_host_notices_is_said_and_recorded(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor, host = supervisor_of(JobSpec(job="j"), tmp_path, said)
    lost = Reason("node-lost", {"node": "10.0.0.7", "on_it": "worker-0", "detail": ""})
    died = Reason("actor-died", {"name": "worker-0", "detail": "it crashed"})
    host.events = [
        ProcessReported("s0", Told(address=LEAD)),
        Noticed(lost),
        Noticed(died, said=False),
        ProcessReported("s0", Told(ended="enough", whole_job=True)),
        Exited("s0", 0, "exit status 0"),
        Exited("worker-0", 0, "exit status 0"),
    ]
    assert supervisor.run().ended == "enough"
    assert said == ["node 10.0.0.7 died; on it: worker-0"]
    notes = [told.note for name, told in host.told if name == "s0" and told.note is not None]
    assert [(note.what, note.fields) for note in notes] == [
        (lost.code, lost.fields),
        (died.code, died.fields),
    ]


def test_workers_whose_machine_is_taken_away_leave_and_are_started_elsewhere(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    job = JobSpec(job="j", respawn=True, workers=2)
    supervisor, host = supervisor_of(job, tmp_path, said, workers=2)
    started = host.start

    def start(request: object) -> None:
        started(request)  # type: ignore[arg-type]
        if len(host.started) == 4:  # worker-0 for the second time
            assert host.prepared == ["worker-0"], "its place is sought before the pause is over"
            host.events = [
                ProcessReported("s0", Told(ended="enough", whole_job=True)),
                Exited("s0", 0, "exit status 0"),
                Exited("worker-0", 0, "exit status 0"),
                Exited("worker-1", 0, "exit status 0"),
            ]

    host.start = start  # type: ignore[method-assign]
    host.events = [
        ProcessReported("s0", Told(address=LEAD)),
        MustLeave(["worker-0"]),
        Exited("worker-0", 0, "exit status 0"),
    ]
    run = supervisor.run()
    assert ("worker-0", signal.SIGTERM) in host.sent
    assert ("worker-1", signal.SIGTERM) not in host.sent
    assert run.respawned == {"worker-0": 1} and not run.worker_failures
    assert "worker-0 was started again" in said
    notes = [told.note for _, told in host.told if told.note is not None]
    assert [note.fields["detail"] for note in notes if note.what == "respawn"] == [
        "its machine will be removed"
    ]


def test_servers_whose_machine_is_taken_away_are_told_to_leave(tmp_path: Path) -> None:
    """A server that no lead counts on yet is started again even without --respawn."""
    said: list[str] = []
    job = JobSpec(job="j", servers=2)
    supervisor, host = supervisor_of(job, tmp_path, said, servers=2)
    started = host.start

    def start(request: object) -> None:
        started(request)  # type: ignore[arg-type]
        if len(host.started) == 4:  # s1 for the second time
            host.events = [
                ProcessReported("s0", Told(ended="enough", whole_job=True)),
                Exited("s0", 0, "exit status 0"),
                Exited("s1", 0, "exit status 0"),
                Exited("worker-0", 0, "exit status 0"),
            ]

    host.start = start  # type: ignore[method-assign]
    host.events = [
        ProcessReported("s0", Told(address=LEAD)),
        MustLeave(["s0", "s1"]),
        Exited("s1", 0, "exit status 0"),
    ]
    run = supervisor.run()
    told = [name for name, told in host.told if told.leave]
    assert told == ["s0", "s1"] and not host.sent
    assert run.respawned == {"s1": 1} and run.lost == 0


@pytest.mark.parametrize("removed", [False, True])
def test_a_server_that_ends_with_the_lead_does_not_count_as_lost(
    tmp_path: Path, removed: bool
) -> None:
    """s1 may end before the lead's process says that the job is over. A job that resumes would go on
    without it. A server that the lead has removed is lost."""
    supervisor, host = supervisor_of(JobSpec(job="j", servers=2), tmp_path, [], servers=2)
    lines = [{"at_s": 1.0, "what": "server-joined", "server": server} for server in (0, 1)]
    if removed:
        lines.append({"at_s": 2.0, "what": "server-lost", "server": 1, "reason": "died"})
    part = JournalPart(None, [msgspec.Raw(msgspec.json.encode(line)) for line in lines])
    host.events = [
        ProcessReported("s0", Told(address=LEAD, journal=part)),
        ProcessReported("s1", Told(failed="the lead is gone", orphaned=True)),
        Exited("s1", 1, "exit status 1"),
        ProcessReported("s0", Told(ended="s2 died", failed="s2 died", whole_job=True)),
        Exited("s0", 0, "exit status 0"),
        Exited("worker-0", 0, "exit status 0"),
    ]
    assert supervisor.run().lost == removed


def test_a_line_about_the_death_of_the_lead_is_written_by_the_engine(tmp_path: Path) -> None:
    supervisor, host = supervisor_of(JobSpec(job="j"), tmp_path, [])
    lost = Reason("node-lost", {"node": "10.0.0.7", "on_it": "s0, worker-0", "detail": ""})
    line = {"at_s": 3.5, "what": "listening", "host": "10.0.0.1", "port": 4000}
    part = JournalPart(None, [msgspec.Raw(msgspec.json.encode(line))])
    host.events = [
        ProcessReported("s0", Told(address=LEAD)),
        ProcessReported("s0", Told(journal=part)),
        Exited("s0", 1, "node 10.0.0.7 died"),
        Noticed(lost),
        Exited("worker-0", 1, "node 10.0.0.7 died"),
    ]
    run = supervisor.run()
    assert run.lead_lost and run.failed is not None and "s0 died (node 10.0.0.7 died)" in run.failed
    journal = list(read_journal(tmp_path / JOURNAL))
    assert [each["what"] for each in journal] == ["listening", "node-lost"]
    assert journal[1]["on_it"] == "s0, worker-0" and journal[1]["at_s"] >= 3.5
    assert not [told for _, told in host.told if told.note is not None]
