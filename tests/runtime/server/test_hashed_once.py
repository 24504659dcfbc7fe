"""A version is hashed once for all its readers, and an aggregate once for all its replicas. After
the next fold, the new contents are hashed."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core.effects import Build
from polyrhythm.core.names import worker_name
from polyrhythm.io.link import Link
from polyrhythm.io.segments import Piece, Segment, piece_for_many
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import dial_tcp, listen_tcp, tcp_link
from polyrhythm.runtime.net.peers import Peers
from polyrhythm.runtime.server.publishing import Publishing
from polyrhythm.runtime.server.slice_store import SliceStore, choose_slice_store
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Buffer, Digest
from polyrhythm.wire.frames import MEMBER, nbytes_of

LENGTH, SLICES, READERS = 100_000, 3, 3
NBYTES = 4 * LENGTH
SPEC = m.ModelSpec(
    tuple(m.TensorSpec(f"t{n}", (LENGTH,), "float32", 0, (1,)) for n in range(SLICES)),
    m.OptimizerSpec("SGD", ({"lr": 0.5, "momentum": 0.5},)),
)
ROUTING = 1
SLOTS = 3


class Hashed:
    """Records each hash that is computed for sending: the number of bytes, and the thread."""

    def __init__(self) -> None:
        self.log: list[tuple[int, threading.Thread]] = []

    def payloads(self) -> list[threading.Thread]:
        """Return the threads that hashed complete slices since the last call."""
        log, self.log = self.log, []
        return [thread for nbytes, thread in log if nbytes >= NBYTES // 2]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    seen, real = Hashed(), Digest.over

    def over(self: Digest, parts: Sequence[Buffer]) -> bytes:
        seen.log.append((nbytes_of(parts), threading.current_thread()))
        return real(self, parts)

    monkeypatch.setattr(Digest, "over", over)
    return seen


@pytest.fixture
def pairs() -> Iterator[list[tuple[StreamLink, StreamLink]]]:
    """Pairs of TCP links: the sending end and the receiving end."""
    made = []
    with listen_tcp("127.0.0.1", 0) as listener:
        for number in range(READERS):
            here = dial_tcp(*listener.getsockname(), worker_name(number))
            sock, _ = listener.accept()
            made.append((here, tcp_link(sock, "server")))
    for pair in made:
        for link in pair:
            link.agree(Digest.XXH3, MEMBER)
    yield made
    for pair in made:
        for link in pair:
            link.close()
            link.dispose()


def receive_all(links: Sequence[Link], count: int) -> list[dict[int, bytes]]:
    """Receive `count` slices from each link, and return them by slice number. Links verify every
    payload."""
    got: list[dict[int, bytes]] = [{} for _ in links]

    def read(number: int) -> None:
        for _ in range(count):
            message, payload = links[number].receive()
            assert payload is not None
            got[number][message.slice] = bytes(payload.view())

    readers = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(len(links))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    return got


def make_store(*, replicas: int = 0, tell: Any = None, **job: Any) -> SliceStore:
    spec = m.JobSpec(job="j", workers=READERS, replicas=replicas, slice_nbytes=NBYTES, **job)
    route = m.Route(0, tuple(range(1, replicas + 1)))
    made = choose_slice_store(spec)(
        0,
        Build(SPEC, (route,) * SLICES, ROUTING),
        spec,
        lambda nbytes: Segment(nbytes, shared=False),
        tell=tell or (lambda server, message, payload: None),
    )
    made.enlist([m.MemberSpec(worker, 1, f"w{worker}") for worker in range(READERS)])
    itemsize = made.primary.slots.dtypes[0].itemsize
    for slice_ in range(SLICES):
        made.seed(m.Seed(slice=slice_, routing=ROUTING), memoryview(bytes(LENGTH * itemsize)))
    return made


def contribute(held: SliceStore, sequence: int, worker: int = 0) -> None:
    for slice_ in range(SLICES):
        value = torch.full((LENGTH,), float(sequence + slice_), dtype=held.primary.slots.dtypes[0])
        message = m.Contribution(
            worker=worker,
            incarnation=1,
            sequence=sequence,
            slice=slice_,
            slices=SLICES,
            weight=1.0,
            rate=0.5,
            routing=ROUTING,
        )
        held.add(message, memoryview(value.view(torch.uint8).numpy()))


def fold(held: SliceStore, round_: int) -> int:
    """Fold a round and return the slot of the new version. The slot is used again three rounds
    later."""
    slot = round_ % SLOTS
    held.fold(round_, slot, (round_ + 1) % SLOTS)
    return slot


class _Driver:
    """A driver that ignores all events, because no test here depends on them."""

    def put(self, machine: str, event: object) -> None: ...

    def post(self, machine: str, event: object) -> None: ...


def test_memory_that_many_links_send_is_hashed_once(hashed: Hashed, pairs) -> None:
    data = bytes(range(256)) * (NBYTES // 256)
    piece = piece_for_many(memoryview(data))
    for here, _ in pairs:
        here.send(m.Parameters(slice=0), (piece,))
    assert receive_all([there for _, there in pairs], 1) == [{0: data}] * READERS
    assert len(hashed.payloads()) == 1


def test_memory_that_may_change_is_hashed_every_time(hashed: Hashed, pairs) -> None:
    memory = bytearray(NBYTES)
    segment_piece = Piece(None, 0, NBYTES, memoryview(memory))
    (here, there), *_ = pairs
    for value in (b"a", b"b"):
        memory[:] = value * NBYTES
        here.send(m.Parameters(slice=0), (segment_piece,))
        assert receive_all([there], 1) == [{0: value * NBYTES}]
    assert len(hashed.payloads()) == 2


def test_large_payloads_are_hashed_by_the_thread_that_sends_them(hashed: Hashed, pairs) -> None:
    """Each link has its own sending thread, so links hash in parallel, and a caller of `send` does
    not wait for the hash."""
    for here, _ in pairs:
        here.send(m.Contribution(slice=0, slices=1), (memoryview(bytes(NBYTES)),))
    receive_all([there for _, there in pairs], 1)
    threads = hashed.payloads()
    assert len(set(threads)) == READERS
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("updater", ["optimizer", "addition"])
def test_a_version_is_hashed_once_for_all_its_readers(hashed: Hashed, pairs, updater) -> None:
    held, peers = make_store(updater=updater), Peers()
    for here, _ in pairs:
        here.incarnation = 1
        peers.add(here)
    publishing = Publishing(0, lambda: held, peers, _Driver(), workers=READERS)  # type: ignore[arg-type]
    before: list[dict[int, bytes]] = []
    for round_ in range(1, 2 * SLOTS + 1):
        contribute(held, round_)
        slot = fold(held, round_)
        for worker in range(READERS):
            publishing.publish(publish(worker, round_, slot))
        peers.flush()
        got = receive_all([there for _, there in pairs], SLICES)
        pieces = held.primary.slots.at(slot).pieces
        assert got == [{n: bytes(piece.memory) for n, piece in enumerate(pieces)}] * READERS
        assert got != before
        assert len(hashed.payloads()) == SLICES
        before = got


def publish(worker: int, round_: int, slot: int) -> fx.Publish:
    return fx.Publish(
        worker=worker, incarnation=1, round=round_, slot=slot, sequence=0, view=0, routing=ROUTING
    )


def test_readers_begin_at_different_slices() -> None:
    publishing = Publishing(0, None, None, None, workers=4)  # type: ignore[arg-type]
    assert [publishing._first_for(worker, 48) for worker in range(6)] == [0, 12, 24, 36, 0, 12]
    assert [publishing._first_for(worker, 1) for worker in range(6)] == [0] * 6
    assert publishing._first_for(3, 0) == 0


@pytest.mark.parametrize("updater", ["optimizer", "addition"])
def test_an_aggregate_is_hashed_once_for_all_its_replicas(hashed: Hashed, updater) -> None:
    told: list[tuple[int, m.Message, Sequence[Any]]] = []
    held = make_store(
        replicas=2, servers=3, updater=updater, tell=lambda *letter: told.append(letter)
    )
    for round_ in range(1, 2 * SLOTS + 1):
        contribute(held, round_)
        told.clear()
        fold(held, round_)
        copies = [letter for letter in told if isinstance(letter[1], m.Copy)]
        assert len(copies) == 2 * SLICES
        for _, _, (piece,) in copies:
            digest = piece.fingerprint.by(Digest.XXH3)
            assert digest == Digest.XXH3.over([bytes(piece.memory)])
        hashes = hashed.payloads()
        # subtract the one hash per `Copy` that the test itself has computed
        assert len(hashes) - len(copies) == SLICES


def test_a_contribution_is_hashed_once_for_all_replicas_without_rounds(hashed: Hashed) -> None:
    told: list[tuple[int, m.Message, Sequence[Any]]] = []
    held = make_store(replicas=2, servers=3, sync="asp", tell=lambda *letter: told.append(letter))
    contribute(held, 1)
    for _, message, (piece,) in told:
        assert isinstance(message, m.Copy)
        piece.fingerprint.by(Digest.XXH3)
    assert len(told) == 2 * SLICES
    assert len(hashed.payloads()) == SLICES


JOBS: dict[str, dict[str, Any]] = {
    "rounds": {},
    "addition": {"updater": "addition"},
    "replicas": {"replicas": 2, "servers": 3},
    "addition with replicas": {"updater": "addition", "replicas": 2, "servers": 3},
    "bf16": {"wire_dtype": "bf16"},
    "bf16 with replicas": {"wire_dtype": "bf16", "replicas": 2, "servers": 3},
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_fingerprint_is_always_that_of_the_version(job: dict[str, Any]) -> None:
    held = make_store(**job)
    for round_ in range(1, 3 * SLOTS + 1):
        contribute(held, round_)
        slot = fold(held, round_)
        for piece in held.primary.slots.at(slot).pieces:
            assert piece.fingerprint is not None
            assert piece.fingerprint.by(Digest.XXH3) == Digest.XXH3.over([piece.memory])


@pytest.mark.parametrize("job", [{}, {"wire_dtype": "bf16"}, {"replicas": 1, "servers": 2}])
def test_a_fingerprint_is_always_that_of_the_version_without_rounds(job: dict[str, Any]) -> None:
    held = make_store(sync="asp", **job)
    for sequence in range(1, 10):
        contribute(held, sequence)
        ticket = sequence
        slots = held.lease(sequence % 2, ticket)
        for index, slot in enumerate(slots):
            piece = held.primary.slots.at(slot).pieces[index]
            assert piece.fingerprint is not None
            assert piece.fingerprint.by(Digest.XXH3) == Digest.XXH3.over([piece.memory])
        if sequence % 3 == 0:
            held.unlease(0, None)
            held.unlease(1, None)
