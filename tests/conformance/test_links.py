"""The same tests for every kind of link: tcp over loopback, local over an abstract socket, memory,
and a link whose carrier changes every byte (`masked.py`)."""

import contextlib
import fcntl
import gc
import mmap
import os
import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from polyrhythm.errors import FrameError, LinkEnded, LinkError
from polyrhythm.io.link import Link
from polyrhythm.io.local import dial_local, listen_local, local_link
from polyrhythm.io.memory import memory_pair
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.io.stream import undelivered_nbytes, unread_nbytes
from polyrhythm.io.tcp import dial_tcp, listen_tcp, tcp_link
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import FLAG_REFERENCE, MEMBER, Limits, encode
from polyrhythm.wire.messages.reasons import failed
from tests.cluster.processes import wait_until
from tests.conformance.masked import masked_pair

MIB = 1024 * 1024


@dataclass
class Pair:
    """The two ends of a link. In most tests `here` sends and `there` receives."""

    kind: str
    here: Any
    there: Any

    def agree(self, digest: Digest, limits: Limits = MEMBER) -> None:
        self.here.agree(digest, limits)
        self.there.agree(digest, limits)


def connect(kind: str) -> Pair:
    if kind == "memory":
        return Pair(kind, *memory_pair("here", "there"))
    if kind == "masked":
        return Pair(kind, *masked_pair())
    if kind == "tcp":
        with listen_tcp("127.0.0.1", 0) as listener:
            here: Link = dial_tcp(*listener.getsockname(), "there")
            sock, _ = listener.accept()
        return Pair(kind, here, tcp_link(sock, "here"))
    name = f"polyrhythm-test-{uuid.uuid4().hex}"
    with listen_local(name) as listener:
        here = dial_local(name, "there")
        sock, _ = listener.accept()
    return Pair(kind, here, local_link(sock, "here"))


def disconnect(pair: Pair) -> None:
    for link in (pair.here, pair.there):
        link.close()
        if hasattr(link, "_sock"):
            link._sock.close()


@pytest.fixture(params=["tcp", "local", "memory", "masked"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = connect(request.param)
    pair.agree(Digest.XXH3)
    yield pair
    disconnect(pair)


@pytest.fixture
def local() -> Iterator[Pair]:
    pair = connect("local")
    pair.agree(Digest.XXH3)
    yield pair
    disconnect(pair)


def part(number: int = 0) -> m.Contribution:
    return m.Contribution(worker=1, sequence=number, slices=1)


def piece_of(data: bytes, *, shared: bool = True, room: int = 0) -> Piece:
    segment = Segment(len(data) + room, shared=shared)
    segment.memory[room:] = data
    return segment.piece(room, len(data))


def received(link: Link) -> bytes:
    _, payload = link.receive()
    assert payload is not None
    data = bytes(payload.view())
    payload.done()
    return data


class Reader(threading.Thread):
    """Receives a number of messages on another thread."""

    def __init__(self, link: Link, count: int) -> None:
        super().__init__(daemon=True)
        self.link, self.count = link, count
        self.got: list[tuple[m.Message, bytes | None]] = []
        self.start()

    def run(self) -> None:
        for _ in range(self.count):
            message, payload = self.link.receive()
            self.got.append((message, None if payload is None else bytes(payload.view())))

    def finish(self) -> list[tuple[m.Message, bytes | None]]:
        self.join(30)
        assert not self.is_alive(), f"{len(self.got)} of {self.count} messages came"
        return self.got


# -- every link ----------------------------------------------------------------------------------


def test_messages_arrive_in_order_and_both_ways(pair: Pair) -> None:
    for number in range(100):
        pair.here.send(part(number))
    pair.there.send(m.Alive(sequence=5))
    assert [pair.there.receive()[0].sequence for _ in range(100)] == list(range(100))
    assert pair.here.receive() == (m.Alive(sequence=5), None)


@pytest.mark.parametrize("nbytes", [1, 1000, 2 * MIB])
@pytest.mark.parametrize("shared", [True, False])
def test_payloads_arrive_unchanged(pair: Pair, nbytes: int, shared: bool) -> None:
    data = os.urandom(nbytes)
    reader = Reader(pair.there, 2)
    pair.here.send(part(), (piece_of(data, shared=shared, room=64),))
    pair.here.send(m.Alive())
    assert reader.finish() == [(part(), data), (m.Alive(), None)]


def test_memory_without_a_segment_is_sent(pair: Pair) -> None:
    reader = Reader(pair.there, 2)
    pair.here.send(part(), (memoryview(b"bare"),))
    pair.here.send(part(1), (memoryview(b"two "), memoryview(b"parts")))
    assert reader.finish() == [(part(), b"bare"), (part(1), b"two parts")]


def test_an_empty_payload_arrives_as_none_or_empty(pair: Pair) -> None:
    pair.here.send(part(), (piece_of(b"", shared=True),))
    message, payload = pair.there.receive()
    assert message == part()
    assert payload is None or bytes(payload.view()) == b""


def test_sending_never_blocks_while_the_peer_does_not_read(pair: Pair) -> None:
    """The payloads are larger than any socket buffer. If sending blocked, this thread would
    hang."""
    data = os.urandom(MIB)
    piece = piece_of(data)
    for number in range(40):
        pair.here.send(part(number), (piece,))
        pair.here.send(m.Alive(sequence=number))
    got = Reader(pair.there, 80).finish()
    assert [message.sequence for message, _ in got] == [n // 2 for n in range(80)]
    assert all(payload == data for message, payload in got if type(message) is m.Contribution)


def test_sending_many_small_frames_does_not_block(pair: Pair) -> None:
    for number in range(20_000):
        pair.here.send(m.Alive(sequence=number))
    got = Reader(pair.there, 20_000).finish()
    assert [message.sequence for message, _ in got] == list(range(20_000))


def test_the_reader_of_a_reference_sees_later_writes(pair: Pair) -> None:
    piece = piece_of(b"before")
    pair.here.send(part(), (piece,))
    _, payload = pair.there.receive()
    assert payload is not None
    assert bytes(payload.view()) == b"before"
    piece.memory[:] = b"after!"
    assert bytes(payload.view()) == (
        b"after!" if pair.here.kind.has_payload_references else b"before"
    )
    assert pair.here.kind.has_payload_references == (pair.kind not in ("tcp", "masked"))


def test_a_payload_cannot_be_used_after_done(pair: Pair) -> None:
    pair.here.send(part(), (piece_of(b"data"),))
    _, payload = pair.there.receive()
    assert payload is not None
    payload.done()
    with pytest.raises(AssertionError, match=r"after done\(\)"):
        payload.view()


@pytest.mark.parametrize("nbytes", [10, 4 * MIB])
def test_done_is_called_when_the_memory_is_no_longer_needed(pair: Pair, nbytes: int) -> None:
    done = threading.Event()
    reader = Reader(pair.there, 1)
    pair.here.send(part(), (piece_of(bytes(nbytes)),), done=done.set)
    reader.finish()
    assert done.wait(10)


def test_over_tcp_done_is_called_after_the_bytes_were_written() -> None:
    pair = connect("tcp")
    pair.agree(Digest.NONE)
    done = threading.Event()
    pair.here.send(part(), (memoryview(bytes(32 * MIB)),), done=done.set)
    assert not done.is_set(), "the peer has not read, and no socket buffer is that large"
    Reader(pair.there, 1).finish()
    assert done.wait(10)
    disconnect(pair)


def until_arrived(link: Any, nbytes: int) -> None:
    """Wait until this many bytes are in the socket's buffer, or more."""
    wait_until(lambda: unread_nbytes(link._sock) >= nbytes, "the bytes are here")


def test_a_frame_that_was_here_before_its_head_was_read_does_not_begin_a_burst() -> None:
    """Its rate is not known, so the next frame cannot be said to follow without a break."""
    pair = connect("tcp")
    pair.agree(Digest.NONE)
    bursts: list[tuple[int, int]] = []
    pair.there.measure_with(lambda peer, began, ended, nbytes: bursts.append((ended, nbytes)))
    for _ in range(2):
        pair.here.send(part(), (memoryview(bytes(192 * 1024)),))
        until_arrived(pair.there, 192 * 1024)
        pair.there.receive()
    assert [nbytes for _, nbytes in bursts] == [0, 0]
    disconnect(pair)


def test_over_tcp_a_link_is_closed_when_all_bytes_have_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the peer has sent bytes that are never read, the kernel drops the bytes that are on the way."""
    pair = connect("tcp")
    pair.agree(Digest.NONE)
    written, nbytes = threading.Event(), 768 * 1024
    pair.here.send(part(), (memoryview(bytes(nbytes)),), done=written.set)
    pair.there.send(part())
    until_arrived(pair.here, 1)
    assert written.wait(10)
    assert undelivered_nbytes(pair.here._sock), "some bytes wait until the peer reads"
    shut, on_the_way = pair.here._shut, []

    def note_and_shut() -> None:
        on_the_way.append(undelivered_nbytes(pair.here._sock))
        shut()

    looked = threading.Event()

    def look(sock: socket.socket) -> int:
        looked.set()
        return undelivered_nbytes(sock)

    monkeypatch.setattr(pair.here, "_shut", note_and_shut)
    monkeypatch.setattr("polyrhythm.io.stream.undelivered_nbytes", look)
    closing = threading.Thread(target=pair.here.close)
    closing.start()
    wait_until(lambda: looked.is_set() or not closing.is_alive(), "it waits for the peer")
    assert len(received(pair.there)) == nbytes
    closing.join(10)
    assert on_the_way == [0]
    disconnect(pair)


@pytest.mark.parametrize("thread", ["closing", "reading"])
def test_a_tcp_link_may_be_disposed_of_while_another_thread_counts_its_bytes(
    monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    """Otherwise the number of its socket may belong to another file, or to none, when it counts."""
    pair = connect("tcp")
    pair.agree(Digest.NONE)
    end, sock = pair.there, pair.there._sock
    end.measure_with(lambda peer, began, ended, nbytes: None)
    pair.here.send(part(), (memoryview(bytes(192 * 1024)),))
    disposing = threading.Thread(target=end.dispose)

    def count(fd: int, what: int, argument: bytes) -> bytes:
        """Before the first count, let another thread dispose of the link, unless a lock prevents it."""
        if disposing.ident is None:
            disposing.start()
            wait_until(lambda: end._lock.locked() or not disposing.is_alive(), "the other's turn")
        return fcntl.ioctl(fd, what, argument)

    monkeypatch.setattr("polyrhythm.io.stream.fcntl", SimpleNamespace(ioctl=count))
    if thread == "closing":
        end.close()
    else:
        with contextlib.suppress(LinkEnded):  # the link may end before its last byte is read
            end.receive()
    disposing.join(10)
    assert sock.fileno() < 0
    disconnect(pair)


def test_unflushed_frames_are_sent_with_the_next_frame(pair: Pair) -> None:
    piece = piece_of(b"lazy")
    pair.here.send(part(1), flush=False)
    pair.here.send(part(2), (piece,), flush=False)
    pair.here.send(part(3))
    assert pair.there.receive()[0] == part(1)
    assert received(pair.there) == b"lazy"
    assert pair.there.receive()[0] == part(3)


def test_unflushed_frames_are_sent_by_a_flush(pair: Pair) -> None:
    pair.here.send(part(1), flush=False)
    pair.here.flush()
    assert pair.there.receive()[0] == part(1)


def test_both_ends_notice_that_a_link_is_closed(pair: Pair) -> None:
    pair.here.send(m.Leave(reason=failed("bye")))
    pair.here.close()
    assert pair.there.receive()[0] == m.Leave(reason=failed("bye"))
    with pytest.raises(LinkError, match="here closed the link"):
        pair.there.receive()
    with pytest.raises(LinkError):
        pair.here.receive()


def test_closing_wakes_a_waiting_reader(pair: Pair) -> None:
    errors: list[LinkError] = []

    def wait() -> None:
        try:
            pair.there.receive()
        except LinkError as error:
            errors.append(error)

    reader = threading.Thread(target=wait, daemon=True)
    reader.start()
    pair.there.close()
    reader.join(10)
    assert len(errors) == 1


def test_sending_on_a_closed_link_does_nothing(pair: Pair) -> None:
    pair.there.close()
    pair.here.close()
    pair.here.send(part(), (piece_of(b"lost"),))
    pair.here.close()


def test_messages_sent_before_closing_arrive(pair: Pair) -> None:
    data = os.urandom(3 * MIB)
    reader = Reader(pair.there, 1)
    pair.here.send(part(), (piece_of(data),))
    pair.here.close()
    assert reader.finish() == [(part(), data)]


@pytest.mark.parametrize("digest", list(Digest))
def test_every_agreed_digest_works(pair: Pair, digest: Digest) -> None:
    pair.agree(digest)
    reader = Reader(pair.there, 2)
    pair.here.send(part(), (piece_of(b"x" * 5000),))
    pair.here.send(m.Alive())
    assert reader.finish() == [(part(), b"x" * 5000), (m.Alive(), None)]


def test_the_repr_of_a_link_names_its_kind_and_peer(pair: Pair) -> None:
    assert pair.here.kind.name == pair.kind
    assert pair.here.peer == "there"
    assert f"{pair.kind} link to there" in repr(pair.here)


# -- streams only ---------------------------------------------------------------------------------


@pytest.fixture(params=["tcp", "local"])
def stream(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = connect(request.param)
    yield pair
    disconnect(pair)


def test_payloads_are_refused_before_the_handshake(stream: Pair) -> None:
    stream.here.send(part(), (memoryview(b"tensor"),))
    with pytest.raises(FrameError, match="at most 0 are accepted here"):
        stream.there.receive()


def test_limits_hold_after_the_handshake(stream: Pair) -> None:
    stream.agree(Digest.XXH3, Limits(1000, 100))
    stream.here.send(part(), (memoryview(bytes(100)),))
    assert received(stream.there) == bytes(100)
    stream.here.send(part(), (memoryview(bytes(101)),))
    with pytest.raises(FrameError, match="payload of 101 bytes"):
        stream.there.receive()


def test_another_digest_than_agreed_is_refused(stream: Pair) -> None:
    stream.here.agree(Digest.SHA1, MEMBER)
    stream.there.agree(Digest.BLAKE2B, MEMBER)
    for _ in range(3):
        stream.here.send(m.Alive())
    with pytest.raises(FrameError, match="another digest than agreed"):
        stream.there.receive()


def test_random_bytes_are_refused(stream: Pair) -> None:
    stream.here._sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(FrameError, match="not a polyrhythm frame"):
        stream.there.receive()


def test_the_end_of_a_link_amid_a_frame_is_reported(stream: Pair) -> None:
    stream.here._sock.sendall(b"plrhy")
    stream.here.close()
    with pytest.raises(LinkError, match="in the middle of a frame"):
        stream.there.receive()


def test_payloads_are_received_into_their_final_memory(stream: Pair) -> None:
    stream.agree(Digest.XXH3)
    place = bytearray(3 * MIB)
    stream.there.land_with(lambda message, nbytes: memoryview(place)[MIB:])
    data = os.urandom(2 * MIB)
    reader = Reader(stream.there, 1)
    stream.here.send(part(), (memoryview(data),))
    reader.finish()
    assert place[MIB:] == data
    assert place[:MIB] == bytes(MIB)


def test_frames_that_were_read_together_are_all_received(stream: Pair) -> None:
    for number in range(5):
        stream.here.send(part(number), flush=False)
    stream.here.flush()
    first, _ = stream.there.receive()
    rest = [message for message, _ in stream.there.take_buffered()]
    while len(rest) < 4:
        rest.append(stream.there.receive()[0])
    assert [message.sequence for message in (first, *rest)] == list(range(5))


def test_receive_ready_returns_nothing_if_nothing_has_arrived(stream: Pair) -> None:
    assert list(stream.there.receive_ready()) == []


def test_a_thread_that_has_nothing_else_to_do_waits_for_the_rest_of_a_payload(stream: Pair) -> None:
    """The first bytes of the payload come together with the header, and the rest later."""
    stream.agree(Digest.NONE)
    data = os.urandom(40_000)
    frame = b"".join(encode(part(), (data,), Digest.NONE))
    place, placed = bytearray(len(data)), threading.Event()

    def land(message: m.Message, nbytes: int) -> memoryview:
        placed.set()
        return memoryview(place)[:nbytes]

    def send() -> None:
        stream.here._sock.sendall(frame[:10_000])
        placed.wait(10)
        stream.here._sock.sendall(frame[10_000:])

    stream.there.land_with(land)
    sender = threading.Thread(target=send)
    sender.start()
    while not stream.there.readable():
        pass
    received = list(stream.there.receive_ready(finish=True))
    sender.join()
    assert [message.sequence for message, _ in received] == [part().sequence]
    assert place == data


def test_a_dead_peer_does_not_harm_the_sender(stream: Pair) -> None:
    stream.agree(Digest.NONE)
    stream.there._sock.close()
    for _ in range(20):
        stream.here.send(part(), (memoryview(bytes(MIB)),))
    with pytest.raises(LinkError):
        stream.here.receive()


# -- a link and its carrier ------------------------------------------------------------------------


def test_a_carrier_that_changes_every_byte_carries_a_link() -> None:
    """Every byte of a link passes through `Carrier.read` and `Carrier.write`."""
    pair = connect("masked")
    pair.agree(Digest.XXH3)
    data = os.urandom(100_000)
    pair.here.send(part(), (memoryview(data),))
    seen = bytearray()
    raw = pair.there._sock
    while len(seen) < len(data):
        seen += raw.recv(65536, socket.MSG_DONTWAIT)
    assert b"plrhythm" not in seen
    assert b"plrhythm".translate(bytes(range(255, -1, -1))) in seen
    disconnect(pair)


def test_messages_that_the_carrier_holds_back_are_received_without_a_poller() -> None:
    """A carrier may have read records from the socket that the link has not taken yet. A poller
    does not see them, so the link must ask the carrier."""
    pair = connect("masked")
    for number in range(5):
        pair.here.send(part(number))
    first, _ = pair.there.receive()
    assert pair.there.readable()
    rest = [message.sequence for message, _ in pair.there.receive_ready()]
    assert [first.sequence, *rest] == list(range(5))
    assert not pair.there.readable()
    disconnect(pair)


# -- local only ----------------------------------------------------------------------------------


def offer(pair: Pair, fd: int | None, nbytes: int) -> None:
    """Offer a segment by hand, with frames that a correct link would not send."""
    message = m.SegmentOffered(segment=7, nbytes=nbytes)
    frame = encode(message, digest=Digest.XXH3, timestamp_ns=0)
    fds = [] if fd is None else [fd]
    socket.send_fds(pair.here._sock, frame, fds)


def refer(pair: Pair, offset: int, nbytes: int, segment: int = 7) -> None:
    reference = struct.pack("<IQQ", segment, offset, nbytes)
    frame = encode(part(), [reference], digest=Digest.XXH3, timestamp_ns=0, flags=FLAG_REFERENCE)
    pair.here._sock.sendall(b"".join(frame))


def test_an_unsealed_descriptor_is_refused(local: Pair) -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 100)
    offer(local, fd, 100)
    os.close(fd)
    with pytest.raises(LinkError, match="not sealed against shrinking"):
        local.there.receive()


def test_a_descriptor_without_memory_is_refused(local: Pair) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    offer(local, fd, 100)
    os.close(fd)
    with pytest.raises(LinkError, match="not sealed"):
        local.there.receive()


def test_a_segment_smaller_than_its_stated_size_is_refused(local: Pair) -> None:
    segment = Segment(100, shared=True)
    assert segment.fd is not None
    offer(local, segment.fd, 2**40)
    with pytest.raises(LinkError, match="smaller than the offer says"):
        local.there.receive()


def test_an_offer_without_its_descriptor_is_refused(local: Pair) -> None:
    offer(local, None, 100)
    with pytest.raises(LinkError, match="without its descriptor"):
        local.there.receive()


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 101), (100, 1), (2**63, 2**63), (2**64 - 1, 1), (0, 2**64 - 1)]
)
def test_a_reference_out_of_bounds_is_refused(local: Pair, offset: int, nbytes: int) -> None:
    segment = Segment(100, shared=True)
    assert segment.fd is not None
    offer(local, segment.fd, 100)
    refer(local, offset, nbytes)
    with pytest.raises(LinkError, match="outside the memory it offered"):
        local.there.receive()


def test_a_reference_to_a_segment_that_was_not_offered_is_refused(local: Pair) -> None:
    refer(local, 0, 1, segment=99)
    with pytest.raises(LinkError, match="outside the memory it offered"):
        local.there.receive()


def test_a_reference_over_tcp_is_refused() -> None:
    pair = connect("tcp")
    pair.agree(Digest.XXH3)
    refer(pair, 0, 1)
    with pytest.raises(LinkError, match="carries only bytes"):
        pair.there.receive()
    disconnect(pair)


def test_a_mapped_segment_cannot_be_written_by_the_peer(local: Pair) -> None:
    piece = piece_of(b"mine")
    local.here.send(part(), (piece,))
    _, payload = local.there.receive()
    assert payload is not None
    view = payload.view()
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 0
    assert bytes(piece.memory) == b"mine"


def test_a_segment_cannot_be_shrunk_grown_or_mapped_for_writing() -> None:
    segment = Segment(4096, shared=True)
    assert segment.fd is not None
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, size)
    with pytest.raises(PermissionError):
        mmap.mmap(segment.fd, 4096)


def test_a_segment_is_offered_once(local: Pair) -> None:
    segment = Segment(1000, shared=True)
    segment.memory[:] = bytes(range(250)) * 4
    for offset in (0, 500, 999):
        local.here.send(part(offset), (segment.piece(offset, 1),))
    for offset in (0, 500, 999):
        assert received(local.there) == bytes([offset % 250])
    assert len(local.there._carrier._maps) == 1


def test_a_segment_that_is_closed_before_its_frame_is_sent_still_arrives(local: Pair) -> None:
    mine = piece_of(b"mine")
    number = mine.segment.fd
    local.here.send(part(), (mine,), flush=False)
    mine.segment.close()
    other = piece_of(b"else")
    assert other.segment.fd == number, "the test needs the number to be in use again"
    local.here.flush()
    assert received(local.there) == b"mine"


def test_a_descriptor_whose_frame_is_never_sent_is_closed() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    pair = connect("local")
    pair.agree(Digest.NONE)
    segment = Segment(1000, shared=True)
    disconnect(Pair(pair.kind, pair.there, pair.there))
    # the write fails, and the link is broken from now on
    pair.here.send(part(), (segment.piece(0, 10),))
    # a broken link drops what is sent
    pair.here.send(part(), (Segment(10, shared=True).piece(0, 10),))
    segment.close()
    disconnect(pair)
    del segment, pair
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_descriptor_is_left_when_links_and_segments_are_closed() -> None:
    """A descriptor of a segment is closed when the last view of the segment and the link that
    mapped it are gone."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    pair = connect("local")
    pair.agree(Digest.NONE)
    segment = Segment(1000, shared=True)
    pair.here.send(part(), (segment.piece(0, 10),))
    received(pair.there)
    assert len(os.listdir("/proc/self/fd")) > before
    segment.close()
    segment.close()
    disconnect(pair)
    del segment, pair
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
