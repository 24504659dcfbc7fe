"""A peer that does not belong to a running job gets a clear refusal on the job's port, and the job
reaches its goal."""

import os
import random
import socket
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import msgspec
import pytest

from polyrhythm.errors import LinkError, Refused
from polyrhythm.io.local import dial_local, host_identity
from polyrhythm.observe.reasons import in_words
from polyrhythm.runtime.net.dial import SocketDialer
from polyrhythm.runtime.net.handshake import introduce
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import header_nbytes
from polyrhythm.wire.messages.reasons import refused
from tests.cluster.handshakes import HOST, Peer, frame, reason_in, secret_of
from tests.cluster.processes import Command, wait_until

ROUNDS = 80
GATED = """
import os, time
import torch


def main(worker):
    if worker.name == "worker-0":
        with open("job_id", "w") as file:
            file.write(worker._job.job)  # users have no use for it, strangers would
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        while worker.version == 60 and not os.path.exists("go"):
            time.sleep(0.01)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
        time.sleep(0.06)
"""
"""A job that trains while peers are refused, and ends only when the test allows it."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A job that must reach its goal after all attempts of strangers. Only its two workers take
    part, and neither leaves before the end."""
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "gated.py").write_text(GATED)
    flags = ["--workers", 2, "--servers", 2, "--rounds", ROUNDS, "--timer", "off", "--json"]
    with Command("gated.py", *flags, cwd=folder) as command:
        command.await_round(0)
        yield command
        names = {line["name"] for line in command.journal("joined")}
        (folder / "go").touch()
        assert command.wait() == 0, command.stderr()
        assert command.stderr() == ""
        ended = command.journal("ended")
        assert [line["rounds"] for line in ended] == [ROUNDS]
        assert names >= {"worker-0", "worker-1"}
        left = {line["name"]: line["reason"] for line in command.journal("left")}
        assert left["worker-0"] == left["worker-1"] == "done"
        assert sum(line["contributions"] for line in command.journal("rounds")) == 2 * ROUNDS
        wait_until(lambda: not command.pids(), "every process ended")


@pytest.fixture(params=[0, 1], ids=["lead", "server"])
def port(job: Command, request: pytest.FixtureRequest) -> int:
    """The port of the lead's server, or of a server that does not lead."""
    job.assert_alive()
    return job.ports(job.servers()[request.param])[0]


@pytest.fixture
def lead_port(job: Command) -> int:
    job.assert_alive()
    return job.ports(job.servers()[0])[0]


def hello(name: str = "stranger", job_id: str = "another", **fields: object) -> m.WorkerHello:
    return m.WorkerHello(name=name, job=job_id, identity="", digests=(Digest.XXH3,), **fields)


def answer_to(data: bytes, port: int) -> str:
    """Send these bytes and return the reason of the refusal. The other end must close the link."""
    with Peer(port) as peer:
        peer.sock.sendall(data)
        return reason_in(peer.rest())


def answer_to_member(job: Command, port: int, hello: m.WorkerHello, then: bytes = b"") -> str:
    """Send these bytes from a peer that knows the job's secret, and return the reason of the
    refusal."""
    with Peer(port) as peer:
        peer.prove(hello, secret_of(job.run_dir))
        peer.sock.sendall(then)
        return reason_in(peer.rest())


@contextmanager
def member(job: Command, name: str) -> Iterator[m.WorkerHello]:
    """Join at the lead, and return the hello that this peer sends to the other servers."""
    with Peer(job.ports(job.servers()[0])[0]) as peer:
        greeting = hello(name=name, job_id=job_id_of(job))
        peer.prove(greeting, secret_of(job.run_dir))
        while not isinstance(message := peer.receive(), m.Admitted):
            assert message is not None and not isinstance(message, m.Refusal), message
        numbers = {"worker": message.worker, "incarnation": message.incarnation}
        yield msgspec.structs.replace(greeting, **numbers)


def claiming(data: bytes, nbytes: int, *, hello: bool = True) -> bytes:
    """Return the frame with another body length (bytes 16 to 24) and a header checksum that matches
    it."""
    checksum = header_nbytes(Digest.XXH3, hello=hello) - 4
    header = bytearray(data[:checksum])
    header[16:24] = nbytes.to_bytes(8, "little")
    rest = data[checksum + 4 :]
    return bytes(header) + zlib.crc32(header).to_bytes(4, "little") + rest


def resident_kb(pid: int) -> int:
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    )


def test_random_bytes_are_refused(job: Command, port: int) -> None:
    assert "not a polyrhythm frame" in answer_to(random.Random(1).randbytes(64), port)


@pytest.mark.parametrize("seed", range(4))
def test_a_flood_of_random_bytes_ends_the_link(job: Command, port: int, seed: int) -> None:
    """The server does not read all bytes, and may close the link while the peer still sends."""
    with socket.create_connection((HOST, port), timeout=15) as sock:
        try:
            sock.sendall(random.Random(seed).randbytes(4_000_000))
            while sock.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass  # the server may also reset the connection, which ends the link too


def test_an_http_request_is_refused(job: Command, port: int) -> None:
    assert "not a polyrhythm frame" in answer_to(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", port)


def test_a_damaged_hello(job: Command, port: int) -> None:
    data = bytearray(frame(hello()))
    data[-1] ^= 1
    assert "damaged frame" in answer_to(bytes(data), port)


def test_a_frame_that_claims_2_to_the_60_bytes_is_refused(job: Command, port: int) -> None:
    before_kb = sum(resident_kb(pid) for pid in job.servers())
    reason = answer_to(claiming(frame(hello()), 2**60), port)
    assert "a frame claims" in reason and "are accepted here" in reason
    assert sum(resident_kb(pid) for pid in job.servers()) < before_kb + 64 * 1024


def test_a_frame_that_claims_2_to_the_60_bytes_is_refused_after_a_handshake_with_the_lead(
    job: Command, lead_port: int
) -> None:
    greeting = hello(job_id=job_id_of(job), name="greedy")
    too_much = frame(m.Contribution(worker=40, slices=1), hello=False)
    reason = answer_to_member(job, lead_port, greeting, claiming(too_much, 2**60, hello=False))
    assert "a frame claims a payload of" in reason


def test_a_frame_that_claims_2_to_the_60_bytes_is_refused_after_a_handshake_with_a_server(
    job: Command,
) -> None:
    port = job.ports(job.servers()[1])[0]
    with member(job, "greedier") as greeting:
        too_much = frame(m.Contribution(worker=greeting.worker, slices=1), hello=False)
        reason = answer_to_member(job, port, greeting, claiming(too_much, 2**60, hello=False))
    assert "a frame claims a payload of" in reason


def test_a_first_frame_that_is_no_hello(job: Command, port: int) -> None:
    assert "must be a hello, not Stop" in answer_to(frame(m.Stop(reason=refused("please"))), port)


@pytest.mark.parametrize("protocol", [1, 99])
def test_another_protocol_version_is_refused(job: Command, port: int, protocol: int) -> None:
    """The refusal has a frame layout that every protocol version can read."""
    reason = answer_to(frame(hello(protocol=protocol)), port)
    assert f"speaks protocol {protocol}, this job speaks {m.PROTOCOL}" in reason


def test_an_unknown_digest(job: Command, port: int) -> None:
    greeting = m.WorkerHello(name="odd", job=job_id_of(job), identity="", digests=(77,))
    assert "offers no digest" in answer_to_member(job, port, greeting)


def test_a_worker_that_names_another_job_is_refused(job: Command, port: int) -> None:
    """The worker knows the secret of this job, but its hello names another job."""
    reason = answer_to_member(job, port, hello(name="lost", job_id="that-other-job"))
    assert "lost was refused: it belongs to another job" in reason


def job_id_of(job: Command) -> str:
    return (job.cwd / "job_id").read_text()


@pytest.mark.parametrize("link", ["tcp", "local"])
def test_a_second_worker_with_a_taken_name_is_refused(
    job: Command, lead_port: int, link: str
) -> None:
    lead = job.servers()[0]
    name = job.local_names(lead)[0]
    address = m.Address(HOST, lead_port, name, host_identity())
    options = NodeOptions(secret=secret_of(job.run_dir))
    node = WorkerNode("worker-0", job_id_of(job), SocketDialer(link), options)
    try:
        with pytest.raises(Refused, match="worker-0 was refused: a worker with this name is in"):
            node.join(address)
    finally:
        node.close()


def test_a_second_link_of_a_linked_worker_is_refused(job: Command) -> None:
    port = job.ports(job.servers()[1])[0]
    greeting = hello(name="worker-0", job_id=job_id_of(job), worker=0, incarnation=1)
    assert "w0 is linked to s1 already" in answer_to_member(job, port, greeting)


def test_incarnations_that_the_lead_has_not_given_are_refused(job: Command) -> None:
    """Peers that know the secret claim incarnations that the lead has given to no worker. The server
    waits for some seconds, because the lead may still announce them, and refuses them all then. It
    keeps the workers' own links: the fixture asserts that the workers train to the end."""
    port = job.ports(job.servers()[1])[0]
    with ExitStack() as opened:
        peers = {}
        for claim in product((0, 1), (3, 99)):
            worker, incarnation = claim
            peers[claim] = opened.enter_context(Peer(port))
            who = {"worker": worker, "incarnation": incarnation}
            greeting = hello(name=f"worker-{worker}", job_id=job_id_of(job), **who)
            peers[claim].prove(greeting, secret_of(job.run_dir))
        for (worker, incarnation), peer in peers.items():
            refusal = f"the lead has not named w{worker}, incarnation {incarnation}"
            assert refusal in reason_in(peer.rest())


def test_a_worker_that_the_lead_has_not_admitted_is_refused(job: Command) -> None:
    port = job.ports(job.servers()[1])[0]
    greeting = hello(name="unknown", job_id=job_id_of(job))
    assert "of an admitted worker" in answer_to_member(job, port, greeting)


@pytest.mark.parametrize("server", [0, 1], ids=["lead", "server"])
@pytest.mark.parametrize("greeted", [False, True], ids=["at once", "after hello"])
def test_a_segment_that_is_not_sealed_is_refused(job: Command, server: int, greeted: bool) -> None:
    # the worker that joined in the test before may still be a member of the job
    name = f"soft-{server}-{greeted}"
    with member(job, name) as greeting:
        if server == 0:
            greeting = hello(name=f"{name}-er", job_id=job_id_of(job))
        _offer_an_unsealed_segment(job, server, greeting if greeted else None)


def _offer_an_unsealed_segment(job: Command, server: int, hello: m.WorkerHello | None) -> None:
    greeted = hello is not None
    link = dial_local(job.local_names(job.servers()[server])[0], "s")
    if hello is not None:
        introduce(link, hello)
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 4096)
        with socket.socket(fileno=os.dup(link.fileno())) as sock:
            offer = m.SegmentOffered(segment=1, nbytes=4096)
            socket.send_fds(sock, [frame(offer, hello=not greeted)], [fd])
        message = None
        while not isinstance(message, m.Refusal):
            message, _ = link.receive()
        assert "not sealed against shrinking" in in_words(message.reason)
        with pytest.raises(LinkError):
            link.receive()
    finally:
        os.close(fd)
        link.close()
        link.dispose()


def test_a_segment_without_its_descriptor_is_refused(job: Command) -> None:
    link = dial_local(job.local_names(job.servers()[0])[0], "s0")
    link.send(m.SegmentOffered(segment=1, nbytes=4096))
    message, _ = link.receive()
    assert isinstance(message, m.Refusal) and "without its descriptor" in in_words(message.reason)
    link.close()
    link.dispose()


def test_silent_connections_do_not_keep_a_peer_from_an_answer(job: Command, lead_port: int) -> None:
    """Each silent connection takes one link until the server closes it. A later peer must still get
    an answer."""
    silent = [socket.create_connection((HOST, lead_port)) for _ in range(30)]
    try:
        assert "another job" in answer_to_member(job, lead_port, hello())
    finally:
        for sock in silent:
            sock.close()


def test_refused_peers_leave_no_open_descriptor(job: Command, port: int) -> None:
    pid = next(pid for pid in job.servers() if port in job.ports(pid))
    folder = Path(f"/proc/{pid}/fd")
    before = len(list(folder.iterdir()))
    for _ in range(40):
        answer_to(b"who is there? nobody you know", port)
    wait_until(lambda: len(list(folder.iterdir())) <= before + 2, "their links are closed", 10)
