"""A peer claims to be a server of the job, in its hello to a server that does not run the lead."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import encode
from tests.cluster.handshakes import Peer, frame, reason_in, secret_of, with_nonce
from tests.cluster.processes import Command, wait_until

JOB = """
import os, time
import torch


def main(worker):
    model = torch.nn.Linear(512, 512)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1e-6))
    while not worker.stopped:
        while worker.version == 20 and not os.path.exists("go"):
            time.sleep(0.01)
        model(torch.ones(2, 512)).sum().backward()
        optimizer.step(points=2)
"""
ROUNDS = 40
PAYLOAD = memoryview(bytes(1024 * 1024))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A job with replicas, so that servers copy from each other. It must reach its goal with all
    three servers."""
    folder = tmp_path_factory.mktemp("unnamed")
    (folder / "job.py").write_text(JOB)
    flags = ["--workers", 2, "--servers", 3, "--replicas", 1, "--rounds", ROUNDS, "--link", "tcp"]
    with Command("job.py", *flags, "--timer", "off", "--json", cwd=folder) as command:
        command.await_round(0)
        yield command
        (folder / "go").touch()
        assert command.wait() == 0, command.stderr()
        assert command.stderr() == ""
        assert [line["rounds"] for line in command.journal("ended")] == [ROUNDS]
        assert not command.journal("server-lost")


def hello(server: int, incarnation: int) -> m.ServerHello:
    return m.ServerHello(
        server=server,
        incarnation=incarnation,
        name=f"s{server}",
        job="",
        address=m.Address("127.0.0.1", 9, "", ""),
        identity="",
        digests=(Digest.XXH3,),
    )


def states(server: int, count: int, **fields: object) -> bytes:
    """Make incomplete slice states: one megabyte each, and each for a different slice."""
    pieces: list[bytes | memoryview] = []
    for number in range(count):
        usual = {"dtype": "float32", "shape": (PAYLOAD.nbytes // 4,), "name": f"{number}"}
        message = m.State(
            server=server,
            slice=number,
            slices=1,
            stamp=m.Stamp(number, 1, 1),
            parts=1000,
            **{**usual, **fields},
        )
        pieces += encode(message, [PAYLOAD], Digest.XXH3, 0)
    return b"".join(pieces)


def resident_kb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def send_what_is_taken(peer: Peer, data: bytes) -> None:
    """Send until the other end stops reading or closes the link."""
    peer.sock.setblocking(False)
    left = memoryview(data)
    try:
        while left:
            left = left[peer.sock.send(left) :]
    except (BlockingIOError, ConnectionError):
        pass
    peer.sock.settimeout(15)


@pytest.mark.parametrize(
    "fields",
    [{}, {"dtype": "complex1024"}, {"shape": (7, -1)}, {"routing": 0, "dtype": "int64"}],
    ids=["many", "dtype", "shape", "routing"],
)
def test_states_from_a_server_that_the_lead_has_not_named_are_refused_unread(
    job: Command, fields: dict[str, object]
) -> None:
    """The peer knows the secret, but the lead has not announced it to the servers."""
    pid = job.servers()[1]
    before_kb, folder = resident_kb(pid), Path(f"/proc/{pid}/fd")
    descriptors = len(list(folder.iterdir()))
    with Peer(job.ports(pid)[0]) as peer:
        peer.prove(hello(2, 9), secret_of(job.run_dir))
        assert isinstance(peer.receive(), m.HelloReply)
        send_what_is_taken(peer, states(2, 150, **fields))
        assert "the lead has not named s2, incarnation 9" in reason_in(peer.rest())
    assert resident_kb(pid) < before_kb + 32 * 1024
    wait_until(lambda: len(list(folder.iterdir())) <= descriptors, "its link is closed", 10)


def test_an_earlier_incarnation_of_a_named_server_is_refused_at_once(job: Command) -> None:
    with Peer(job.ports(job.servers()[1])[0]) as peer:
        peer.prove(hello(2, 0), secret_of(job.run_dir))
        assert "the lead has not named s2, incarnation 0" in reason_in(peer.rest())


def test_a_second_link_of_a_named_server_is_refused(job: Command) -> None:
    with Peer(job.ports(job.servers()[1])[0]) as peer:
        peer.prove(hello(2, 1), secret_of(job.run_dir))
        assert "s2 is linked to s1 already" in reason_in(peer.rest())


@pytest.mark.parametrize("server", [0, 1, 2])
def test_without_the_secret_a_peer_gets_no_hello_reply(job: Command, server: int) -> None:
    with Peer(job.ports(job.servers()[server])[0]) as peer:
        peer.sock.sendall(frame(with_nonce(hello(2, 1))))
        challenge = peer.receive()
        assert isinstance(challenge, m.Challenge)
        send_what_is_taken(peer, states(2, 3))
        heard = peer.rest()
    assert not any(isinstance(message, m.HelloReply) for message in heard)
