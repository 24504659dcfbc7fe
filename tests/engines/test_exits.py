"""The reports of the fork server arrive in order, and no report is held back until a later one
arrives."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyrhythm.engines.engine import EngineWatch
from polyrhythm.engines.exits import ending
from polyrhythm.engines.host import Exited, HostLost, ProcessReported
from polyrhythm.engines.local import LocalHost
from polyrhythm.engines.requests import STEPS, ChildRequest, Exit, Told, pack_line
from polyrhythm.errors import JobFailed
from polyrhythm.wire.messages import JobSpec

Ends = tuple[socket.socket, LocalHost]


def request(number: int, folder: Path) -> ChildRequest:
    job = JobSpec(job="j", name="digits")
    name = f"worker-{number}"
    return ChildRequest(role="worker", number=number, name=name, job=job, run_dir=str(folder))


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """A fork server of which the test is the other end, and a host that was asked to start two
    processes."""
    fork_server, engine = socket.socketpair()
    requests = [request(number, tmp_path) for number in range(2)]
    host = LocalHost(requests, EngineWatch(say=lambda line: None))
    monkeypatch.setattr(host, "_fork_server_end", lambda: "killed by SIGKILL")
    with fork_server, engine:
        host.read_reports_of(engine)
        for each in requests:
            host.start(each)
        yield fork_server, host
        host.close()


def control_of(fork_server: socket.socket) -> socket.socket:
    """The end of the process of the control socket that the next request contains."""
    _, (fd,), _, _ = socket.recv_fds(fork_server, 65536, 1)
    return socket.socket(fileno=fd)


def test_a_start_and_an_exit_may_arrive_together(ends: Ends) -> None:
    fork_server, host = ends
    reports = Exit(started=7), Exit(started=8), Exit(exited=7, status=-9)
    fork_server.sendall(b"".join(map(pack_line, reports)))
    assert host.wait(5) == [Exited("worker-0", -9, "killed by SIGKILL")]
    assert host.wait(0) == []


def test_an_incomplete_line_waits_for_its_rest(ends: Ends) -> None:
    fork_server, host = ends
    fork_server.sendall(pack_line(Exit(started=7)) + pack_line(Exit(started=8)))
    line = pack_line(Exit(exited=8))
    fork_server.sendall(line[:5])
    assert host.wait(5) == []
    fork_server.sendall(line[5:] + pack_line(Exit(exited=7)))
    assert [event.name for event in host.wait(5) if isinstance(event, Exited)] == [
        "worker-1",
        "worker-0",
    ]


def test_the_last_messages_of_a_process_come_before_its_exit(ends: Ends) -> None:
    """The messages are longer than what one read returns."""
    fork_server, host = ends
    with control_of(fork_server) as control:
        fork_server.sendall(pack_line(Exit(started=7)) + pack_line(Exit(started=8)))
        assert host.wait(5) == []
        failed = [Told(failed="x" * 70_000), Told(failed="the end")]
        for told in failed:
            control.sendall(pack_line(told))
        fork_server.sendall(pack_line(Exit(exited=7, status=1)))
        events = []
        while not events or not isinstance(events[-1], Exited):
            events += host.wait(5)
    assert events == [
        *(ProcessReported("worker-0", told) for told in failed),
        Exited("worker-0", 1, "exit status 1"),
    ]


def test_a_signal_for_a_process_that_is_not_started_yet_is_sent_when_it_is(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_server, host = ends
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("polyrhythm.engines.local.os.kill", lambda *each: sent.append(each))
    host.signal("worker-1", signal.SIGTERM)
    assert not sent
    fork_server.sendall(pack_line(Exit(started=7)) + pack_line(Exit(started=8)))
    host.wait(5)
    assert sent == [(8, signal.SIGTERM)]


def test_the_end_of_the_fork_server_is_reported(ends: Ends) -> None:
    fork_server, host = ends
    fork_server.close()
    events = host.wait(5)
    assert [event.how for event in events if isinstance(event, HostLost)] == [
        "the process that starts the others died (killed by SIGKILL)"
    ]


def test_when_the_fork_server_is_dead_a_process_ends_with_its_control_socket(ends: Ends) -> None:
    fork_server, host = ends
    with control_of(fork_server), control_of(fork_server):
        fork_server.close()
        assert [type(event) for event in host.wait(5)] == [HostLost]
    events = [*host.wait(5), *host.wait(0)]
    assert {event.name for event in events if isinstance(event, Exited)} == {
        "worker-0",
        "worker-1",
    }
    assert all(isinstance(event, Exited) and event.status is None for event in events)


def test_a_fork_server_that_died_with_unread_requests_is_noticed(ends: Ends) -> None:
    fork_server, host = ends
    fork_server.recv(1)
    fork_server.close()
    assert any(isinstance(event, HostLost) for event in host.wait(5))


def test_a_process_that_could_not_be_started_ends_the_job(ends: Ends) -> None:
    fork_server, host = ends
    fork_server.sendall(pack_line(Exit(fault="no descriptor is left")))
    with pytest.raises(JobFailed, match="no descriptor is left"):
        host.wait(5)


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "exit status 3"), (-11, "killed by SIGSEGV"), (-40, "killed by signal 40")],
)
def test_an_exit_status_in_words(status: int, words: str) -> None:
    assert ending(status) == words


@pytest.mark.parametrize(("kind", "steps"), [("local", True), ("gradient", False)])
def test_the_fork_server_loads_the_compiler_if_workers_make_steps(
    kind: str, steps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    popen = SimpleNamespace(
        Popen=lambda command, **how: commands.append(command), DEVNULL=subprocess.DEVNULL
    )
    monkeypatch.setattr("polyrhythm.engines.local.subprocess", popen)
    job = JobSpec(job="j", name="digits", kind=kind)
    only = ChildRequest(role="worker", number=0, name="w", job=job, run_dir=str(tmp_path))
    host = LocalHost([only], EngineWatch(say=lambda line: None))
    monkeypatch.setattr(host, "read_reports_of", socket.socket.close)
    host.open()
    (command,) = commands
    assert (STEPS in command) is steps
