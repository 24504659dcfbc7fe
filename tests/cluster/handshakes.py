"""A peer that connects to a job and sends frames one by one, with or without the job's secret."""

import secrets
import socket
import time
from pathlib import Path

import msgspec

from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER, Decoder, encode
from polyrhythm.wire.proof import NONCE_NBYTES, Hello, Secret, mac

HOST = "127.0.0.1"


def secret_of(run_dir: Path) -> Secret:
    return Secret((run_dir / "secret").read_text().strip())


def frame(message: m.Message, *, hello: bool = True) -> bytes:
    """Encode a message. `hello`: use the layout that frames have during the handshake."""
    return b"".join(encode(message, timestamp_ns=time.time_ns(), hello=hello))


def with_nonce(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, nonce=secrets.token_bytes(NONCE_NBYTES))


class Peer:
    """A TCP connection that sends and receives frames."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection((HOST, port), timeout=15)
        self._decoder = Decoder(Digest.XXH3, MEMBER, hello=True)
        self._proven = False

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, *messages: m.Message) -> None:
        self.sock.sendall(b"".join(frame(message, hello=not self._proven) for message in messages))

    def receive(self) -> m.Message | None:
        """Return the next message, or None if the other end has closed the link."""
        while (received := self._decoder.next()) is None:
            try:
                nbytes = self.sock.recv_into(self._decoder.target())
            except ConnectionResetError:
                return None  # the peer closed the link before it had read everything
            if not nbytes:
                return None
            self._decoder.on_landed(nbytes)
        if isinstance(received.message, m.HelloReply):
            self._decoder.agree(Digest(received.message.digest))
        return received.message

    def rest(self) -> list[m.Message]:
        """Return all messages until the other end closes the link. Fail if it does not close the
        link."""
        found = []
        while (message := self.receive()) is not None:
            found.append(message)
        return found

    def prove(self, hello: Hello, secret: Secret) -> None:
        """Send a hello and prove knowledge of the secret, without checking the challenge of the
        other end."""
        hello = with_nonce(hello)
        self.send(hello)
        challenge = self.receive()
        assert isinstance(challenge, m.Challenge), challenge
        self.send(m.Proof(proof=mac(secret, "opener", hello, challenge)))
        self._proven = True


def reason_in(messages: list[m.Message]) -> str:
    refusals = [in_words(message.reason) for message in messages if isinstance(message, m.Refusal)]
    assert len(refusals) == 1, messages
    return refusals[0]
