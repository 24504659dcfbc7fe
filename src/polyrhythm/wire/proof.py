"""The handshake by which both ends of a link prove that they know the job's secret.

    opener                                  acceptor
    hello (nonce)               ->
                                <-          challenge (nonce, job, name, the acceptor's proof)
    proof                       ->
                                <-          hello reply

*A proof is an HMAC-SHA-256 under the secret. It covers the side that makes it, the opener's role
and whole hello (nonce, name, number, incarnation, job, digests), and the acceptor's nonce, name and
job. Neither end uses anything that its peer has sent before it has verified the peer's proof.* A
proof cannot be replayed, because it covers both nonces. It cannot be sent back to the end that made
it, because it covers the side. It covers the acceptor's name, so that a process that has taken the
port of a dead server cannot pass the handshake on to another server.

This module does no I/O: each end is an object that takes the peer's messages and returns the next
message to send. The caller supplies the nonces.
"""

import hashlib
import hmac

import msgspec

from polyrhythm.errors import FrameError, LinkError
from polyrhythm.wire import messages as m

NONCE_NBYTES = 32
FEWEST_CHARACTERS = 16
"""The least length of a secret. Every process that connects receives an HMAC under the secret, and
could find a short secret by trying all short secrets."""
_PURPOSE = "polyrhythm link"

Hello = m.WorkerHello | m.ServerHello | m.OperatorHello


class Secret(msgspec.Struct, frozen=True, array_like=True):
    """The secret that the processes of a job share. Its `repr` does not show it."""

    text: str

    @property
    def key(self) -> bytes:
        return self.text.encode()

    def __repr__(self) -> str:
        return "Secret(...)"


def mac(secret: Secret, side: str, hello: Hello, challenge: m.Challenge) -> bytes:
    """The proof of one side. `side` is `opener` or `acceptor`."""
    covered = (
        _PURPOSE,
        side,
        type(hello).__name__,
        m.encode_head(hello),
        challenge.nonce,
        challenge.name,
        challenge.job,
    )
    return hmac.digest(secret.key, msgspec.msgpack.encode(covered), hashlib.sha256)


class Opener:
    """The end that dialled. `hello` must carry this end's nonce; `expects` is the name of the
    server that was dialled, or empty if it is not known."""

    def __init__(self, secret: Secret, hello: Hello, expects: str = "") -> None:
        assert len(hello.nonce) == NONCE_NBYTES
        self._secret = secret
        self._hello = hello
        self._expects = expects

    def answer(self, challenge: m.Challenge) -> m.Proof:
        """Verify the acceptor's proof and return the opener's proof. Raises LinkError if the
        acceptor's proof, job or name is wrong."""
        if len(challenge.nonce) != NONCE_NBYTES:
            raise LinkError("the challenge has no nonce of the right length")
        expected = mac(self._secret, "acceptor", self._hello, challenge)
        if not hmac.compare_digest(expected, challenge.proof):
            raise LinkError(
                "the process at this address does not know this secret, which may belong to"
                " another job"
            )
        if self._hello.job and challenge.job != self._hello.job:
            raise LinkError("the process at this address belongs to another job")
        if self._expects and challenge.name != self._expects:
            raise LinkError(
                f"the process at this address is {challenge.name} and not {self._expects}"
            )
        return m.Proof(proof=mac(self._secret, "opener", self._hello, challenge))


class Acceptor:
    """The end that was dialled. `secret` is None on links that need no proof: the kernel names the
    user at the other end of a local socket, and a memory link does not leave the process."""

    def __init__(self, name: str, job: str, secret: Secret | None, nonce: bytes) -> None:
        assert len(nonce) == NONCE_NBYTES
        self._name = name
        self._job = job
        self._secret = secret
        self._nonce = nonce
        self._challenge: m.Challenge | None = None
        self._hello: Hello | None = None
        self._proven = False

    @property
    def heard(self) -> bool:
        """Whether the peer's hello has arrived."""
        return self._hello is not None

    @property
    def hello(self) -> Hello | None:
        """The peer's hello; None until the peer has proven that it knows the secret."""
        return self._hello if self._proven else None

    def take(self, message: m.Message) -> m.Challenge | None:
        """Handle the next message of the peer. Returns the challenge to send, or None if there is
        nothing to send. Raises FrameError if the peer must be refused."""
        if self._hello is None:
            return self._take_hello(message)
        assert self._secret is not None and self._challenge is not None and not self._proven
        if not isinstance(message, m.Proof):
            raise FrameError(
                f"a peer that has not proven that it knows the secret sent {type(message).__name__}"
            )
        expected = mac(self._secret, "opener", self._hello, self._challenge)
        if not hmac.compare_digest(expected, message.proof):
            raise FrameError("the peer does not know this job's secret")
        self._proven = True
        return None

    def _take_hello(self, message: m.Message) -> m.Challenge | None:
        if not isinstance(message, Hello):
            raise FrameError(
                f"the first frame of a link must be a hello, not {type(message).__name__}"
            )
        if message.protocol != m.PROTOCOL:
            raise FrameError(
                f"the peer speaks protocol {message.protocol}, this job speaks {m.PROTOCOL};"
                " install the same version of polyrhythm on both sides"
            )
        if self._secret is not None and len(message.nonce) != NONCE_NBYTES:
            raise FrameError(
                "the hello has no nonce, so the peer cannot prove that it knows this job's secret"
            )
        self._hello = message
        if self._secret is None:
            self._proven = True
            return None
        unproven = m.Challenge(nonce=self._nonce, name=self._name, job=self._job)
        proof = mac(self._secret, "acceptor", message, unproven)
        self._challenge = msgspec.structs.replace(unproven, proof=proof)
        return self._challenge
