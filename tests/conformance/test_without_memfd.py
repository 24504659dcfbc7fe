"""TCP works on hosts without memfd. `--link auto` chooses the link by the location of the peer."""

import uuid
from collections.abc import Iterator

import pytest

from polyrhythm.errors import LinkError, UsageError
from polyrhythm.io import local, segments
from polyrhythm.io.segments import Segment
from polyrhythm.io.tcp import dial_tcp, listen_tcp, tcp_link
from polyrhythm.runtime.net import dial
from polyrhythm.runtime.net.dial import SocketDialer
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER

IDENTITY = local.host_identity()


@pytest.fixture
def _no_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SHAREABLE", False)
    monkeypatch.setattr(local, "AVAILABLE", False)
    monkeypatch.setattr(dial, "AVAILABLE", False)


@pytest.fixture
def address() -> Iterator[m.Address]:
    """The address of a server on this host that listens on TCP and on a local socket."""
    name = f"polyrhythm-test-{uuid.uuid4().hex}"
    tcp, unix = listen_tcp("127.0.0.1", 0), local.listen_local(name)
    host, port = tcp.getsockname()
    yield m.Address(host, port, name, IDENTITY)
    tcp.close()
    unix.close()


def close(link) -> None:
    link.close()
    link._sock.close()


@pytest.mark.usefixtures("_no_memfd")
def test_a_shared_segment_falls_back_to_private_memory() -> None:
    segment = Segment(100, shared=True)
    assert segment.fd is None
    assert segment.memory.nbytes == 100
    segment.memory[:3] = b"abc"
    assert bytes(segment.piece(1, 2).memory) == b"bc"


@pytest.mark.usefixtures("_no_memfd")
def test_pieces_travel_over_tcp_as_bytes() -> None:
    with listen_tcp("127.0.0.1", 0) as listener:
        here = dial_tcp(*listener.getsockname(), "there")
        sock, _ = listener.accept()
    there = tcp_link(sock, "here")
    for link in (here, there):
        link.agree(Digest.XXH3, MEMBER)
    segment = Segment(1000, shared=True)
    segment.memory[:] = bytes(range(250)) * 4
    here.send(m.Seed(slice=1), (segment.piece(10, 20),))
    _, payload = there.receive()
    assert payload is not None
    assert bytes(payload.view()) == bytes(range(10, 30))
    close(here)
    close(there)


@pytest.mark.usefixtures("_no_memfd")
def test_auto_dials_tcp_without_memfd(address: m.Address) -> None:
    assert local.host_identity() == ""
    dialer = SocketDialer("auto")
    assert not dialer.shared
    link = dialer.dial(address, "s0")
    assert link.kind.name == "tcp"
    close(link)


@pytest.mark.usefixtures("_no_memfd")
def test_a_server_without_memfd_is_dialled_over_tcp(address: m.Address) -> None:
    """Without memfd a host has no identity. Two empty identities do not mean the same host."""
    nowhere = m.Address(address.host, address.port, "", "")
    link = SocketDialer("auto").dial(nowhere, "s0")
    assert link.kind.name == "tcp"
    close(link)


@pytest.mark.usefixtures("_no_memfd")
def test_local_is_refused_without_memfd() -> None:
    with pytest.raises(UsageError, match="use --link tcp here"):
        SocketDialer("local")


@pytest.mark.parametrize(
    ("choice", "kind"), [("auto", "local"), ("local", "local"), ("tcp", "tcp")]
)
def test_on_one_host_the_flag_chooses_the_link(address: m.Address, choice: str, kind: str) -> None:
    link = SocketDialer(choice).dial(address, "s0")
    assert link.kind.name == kind
    close(link)


def test_another_host_is_reached_over_tcp_or_refused(address: m.Address) -> None:
    elsewhere = m.Address(address.host, address.port, address.local, "another boot")
    link = SocketDialer("auto").dial(elsewhere, "s0")
    assert link.kind.name == "tcp"
    close(link)
    with pytest.raises(LinkError, match="another host"):
        SocketDialer("local").dial(elsewhere, "s0")


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(UsageError, match="--link 'rdma' is not known"):
        SocketDialer("rdma")


def test_a_peer_that_does_not_listen_gives_a_clear_error() -> None:
    with listen_tcp("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
    with pytest.raises(LinkError, match=f"could not reach s0 at {host}:{port}"):
        dial_tcp(host, port, "s0")
    with pytest.raises(LinkError, match="could not reach s0 over its local socket"):
        local.dial_local("polyrhythm-test-nobody", "s0")


def test_a_port_in_use_gives_a_clear_error() -> None:
    with listen_tcp("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        with pytest.raises(LinkError, match="a free --port or 0 for any"):
            listen_tcp(host, port)
