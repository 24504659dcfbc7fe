"""A carrier that changes every byte and sends records of its own format, as TLS does."""

import socket
import struct
from collections.abc import Sequence

from polyrhythm.core.link_kinds import LinkKind
from polyrhythm.io.carrier import NOW, SOME
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import ByteCarrier
from polyrhythm.wire.digests import Buffer

_LENGTH = struct.Struct("<H")
_MOST_NBYTES = 16 * 1024
_MASK = bytes(255 - value for value in range(256))


class MaskedCarrier(ByteCarrier):
    """Sends records of at most 16 KiB. A record begins with its length, and all of its bytes are
    inverted."""

    kind = LinkKind("masked", has_payload_references=False, is_within_host=False, is_encrypted=True)

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._unsent = b""
        self._taken = 0
        self._received = b""
        self._plain = b""

    @property
    def pending(self) -> bool:  # type: ignore[override]
        return bool(self._plain) or self._whole()

    def _whole(self) -> bool:
        """Whether a whole record has arrived."""
        if len(self._received) < _LENGTH.size:
            return False
        return len(self._received) >= _LENGTH.size + _LENGTH.unpack_from(self._received)[0]

    def read(self, target: memoryview, wait: int) -> int:
        while not self._plain:
            while not self._whole():
                part = self.sock.recv(65536, NOW if wait == NOW else SOME)
                if not part:
                    return 0
                self._received += part
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            self._plain = self._received[_LENGTH.size : end].translate(_MASK)
            self._received = self._received[end:]
        nbytes = min(len(target), len(self._plain))
        target[:nbytes] = self._plain[:nbytes]
        self._plain = self._plain[nbytes:]
        return nbytes

    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], wait: int) -> int:
        """Finish the record that was written in part before starting another one, as TLS
        requires."""
        if not self._unsent:
            text = b""
            for buffer in buffers:
                text += bytes(memoryview(buffer)[: _MOST_NBYTES - len(text)])
            self._unsent = _LENGTH.pack(len(text)) + text.translate(_MASK)
            self._taken = len(text)
        while self._unsent:
            self._unsent = self._unsent[self.sock.send(self._unsent, wait) :]
        return self._taken


def masked_pair() -> tuple[StreamLink, StreamLink]:
    here, there = socket.socketpair()
    return StreamLink(MaskedCarrier(here), "there"), StreamLink(MaskedCarrier(there), "here")
