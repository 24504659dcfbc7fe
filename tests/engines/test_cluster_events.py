"""What the supervisor does with the events of a cluster: a machine has died, or is taken away."""

import signal
from pathlib import Path

from polyrhythm.core.machine import Reason
from polyrhythm.engines.host import Exited, MustLeave, Noticed, ProcessReported
from polyrhythm.engines.requests import Told
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
        "its machine is taken away"
    ]
