"""A flood of connections uses only a few links, no threads, and none of the descriptors that
members need."""

import os
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from polyrhythm.core.server.admission import MOST
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from tests.cluster.handshakes import HOST, Peer, secret_of
from tests.cluster.processes import Command, wait_until

FLOOD = 2_000
JOB = """
import os, time
import torch


def main(worker):
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        while worker.version == 20 and not os.path.exists("go"):
            open(f"gate-{worker.name}", "w").close()
            time.sleep(0.01)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
"""


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def await_gate(folder: Path) -> None:
    """Wait until both workers wait at round 20. By then the job has all its links."""
    wait_until(lambda: len(list(folder.glob("gate-*"))) == 2, "round 20")


def flood(port: int, count: int) -> list[socket.socket]:
    """Open silent connections. Do not wait until the server has accepted one before opening the
    next."""
    socks = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((HOST, port))
        socks.append(sock)
    return socks


@pytest.fixture(scope="module", autouse=True)
def many_descriptors() -> None:
    """Raise the descriptor limit of this process, which holds the client ends of the
    connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * FLOOD), hard))


@pytest.mark.parametrize("server", [0, 1], ids=["lead", "server"])
def test_silent_connections_cost_no_threads_and_few_links(tmp_path: Path, server: int) -> None:
    """A member joins in the middle of the flood."""
    (tmp_path / "job.py").write_text(JOB)
    flags = ["--workers", 2, "--servers", 2, "--rounds", 40, "--timer", "off", "--json"]
    with Command("job.py", *flags, cwd=tmp_path) as command:
        await_gate(tmp_path)
        pid = command.servers()[server]
        (port,) = command.ports(pid)
        threads, descriptors = threads_of(pid), descriptors_of(pid)
        socks = flood(port, FLOOD)
        try:
            most_threads = most_descriptors = 0
            for _ in range(50):
                most_threads = max(most_threads, threads_of(pid))
                most_descriptors = max(most_descriptors, descriptors_of(pid))
                time.sleep(0.01)
            assert most_threads <= threads + 3
            assert most_descriptors <= descriptors + MOST + 8
            with Peer(port) as peer:
                hello = m.WorkerHello(
                    name="member", job="", identity="", digests=(Digest.XXH3,), worker=41
                )
                peer.prove(hello, secret_of(command.run_dir))
                assert isinstance(peer.receive(), m.HelloReply)
        finally:
            for sock in socks:
                sock.close()
        wait_until(lambda: descriptors_of(pid) <= descriptors + 2, "the links are closed")
        (tmp_path / "go").touch()
        assert command.wait() == 0, command.stderr()
        assert command.stderr() == ""
        grown = len(command.journal("turned-away"))
        # the journal gets at most one line a second about refused connections
        assert server == 1 or 1 <= grown <= 60


@pytest.mark.timeout(300)
def test_with_few_descriptors_a_job_with_replicas_survives_a_flood_and_the_loss_of_a_server(
    tmp_path: Path,
) -> None:
    """The processes of the job may have 64 descriptors (`ulimit -n 64`). Every server gets 100
    silent connections, and one server dies."""
    (tmp_path / "job.py").write_text(JOB)
    flags = ["--workers", 2, "--servers", 3, "--replicas", 1, "--rounds", 40, "--timer", "off"]
    with Command("job.py", *flags, "--respawn", cwd=tmp_path, descriptors=64) as command:
        await_gate(tmp_path)
        servers = command.servers()
        ports = [command.ports(pid)[0] for pid in servers]
        socks = [sock for port in ports for sock in flood(port, 100)]
        try:
            wait_until(lambda: descriptors_of(servers[1]) >= 44, "descriptors are scarce")
            os.kill(servers[2], signal.SIGKILL)
            wait_until(lambda: command.journal("server-lost"), "the lead has noticed")
            wait_until(lambda: len(command.journal("server-joined")) == 4, "another has come")
            (tmp_path / "go").touch()
            assert command.wait() == 0, command.stderr()
        finally:
            for sock in socks:
                sock.close()
        assert [line["rounds"] for line in command.journal("ended")] == [40]


def test_without_a_free_descriptor_a_connection_is_refused_and_the_acceptor_continues(
    tmp_path: Path,
) -> None:
    """The test runs in a process of its own, because it uses up all descriptors of the process in which
    it runs."""
    code = """
import os, socket, threading
from polyrhythm.runtime.net.acceptor import ConnectionAcceptor, Listeners
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import Secret

refused = []
listeners = Listeners("127.0.0.1", 0)
options = NodeOptions(secret=Secret("x" * 32))
door = ConnectionAcceptor("s0", m.JobSpec(job="j"), listeners.address, options,
    accept_link=lambda link, hello: None, end_link=lambda link, error: None,
    report_refusal=refused.append)
clients = [socket.socket() for _ in range(4)]
hogs = []
while True:
    try:
        hogs.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break
door.listen(listeners)
for client in clients:
    client.settimeout(15)
    client.connect(("127.0.0.1", listeners.address.port))
for client in clients:
    try:
        assert client.recv(1) == b""
    except ConnectionResetError:
        pass
for hog in hogs:
    os.close(hog)
late = socket.create_connection(("127.0.0.1", listeners.address.port), timeout=15)
late.sendall(b"not a frame at all")
assert b"not a polyrhythm frame" in late.recv(65536)
door.close()
print("alive")
"""
    import sys

    done = subprocess.run(
        ["bash", "-c", f'ulimit -n 48; exec "{sys.executable}" -W error -c "$0"', code],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout == "alive\n", done.stderr
