"""How much a link hashes before it writes, on hosts with few and with many cores."""

import socket
import threading
from collections.abc import Sequence

import pytest

from polyrhythm.io.stream import Amounts, StreamLink, amounts_for
from polyrhythm.io.tcp import ByteCarrier
from polyrhythm.wire.digests import LEAST_PIECE_NBYTES, Buffer, Digest
from polyrhythm.wire.frames import MEMBER
from polyrhythm.wire.messages import Contribution

PART = Contribution(worker=1, sequence=2, slice=3, weight=4.0, slices=5)
MIB = 2**20
FRAMES = 12


class Recording(ByteCarrier):
    """Records how many bytes each write offers to the socket."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.offered: list[int] = []

    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], wait: int) -> int:
        self.offered.append(sum(memoryview(buffer).nbytes for buffer in buffers))
        return super().write(buffers, descriptors, wait)


@pytest.mark.parametrize(
    ("amounts", "frames"), [(Amounts(256 * 1024, MIB), 1), (Amounts(8 * MIB, 4 * MIB), 8)]
)
def test_a_link_hashes_its_amount_before_the_first_write(amounts: Amounts, frames: int) -> None:
    here, there = socket.socketpair()
    carrier = Recording(here)
    sender, receiver = StreamLink(carrier, "there", amounts), StreamLink(ByteCarrier(there), "here")
    for link in (sender, receiver):
        link.agree(Digest.XXH3, MEMBER)
    payloads = [bytes([number]) * MIB for number in range(FRAMES)]
    received: list[bytes] = []

    def read() -> None:
        for _ in payloads:
            payload = receiver.receive()[1]
            assert payload is not None
            received.append(bytes(payload.view()))

    reader = threading.Thread(target=read)
    reader.start()
    for payload in payloads:
        sender.send(PART, [payload], flush=False)
    sender.flush()
    reader.join(60)
    assert received == payloads
    assert frames * MIB < carrier.offered[0] < (frames + 1) * MIB
    for link in (sender, receiver):
        link.close()
        link.dispose()


def test_hosts_with_few_cores_hash_large_amounts() -> None:
    assert amounts_for(1) == amounts_for(2)
    few, many = amounts_for(2), amounts_for(16)
    assert few.written_nbytes > many.written_nbytes >= LEAST_PIECE_NBYTES
    assert few.arriving_nbytes > many.arriving_nbytes >= LEAST_PIECE_NBYTES
