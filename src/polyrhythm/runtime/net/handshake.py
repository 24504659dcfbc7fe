"""The handshake of a link: the hello, the proofs of both ends over TCP, and the digest of all later
frames.

The frames of the handshake have xxh3 digests. The opener offers digests for later frames, in its
order of preference. The acceptor chooses one, and answers with a `HelloReply` or a `Refusal`. A
local link needs no proofs, because the kernel names the user at the other end (`io/local.py`). A
memory link needs none either, because it stays within the process.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from polyrhythm.core.kinds import sums_only
from polyrhythm.core.link_kinds import LinkKind
from polyrhythm.core.placement.division import most_slice_nbytes
from polyrhythm.core.seat import UNKNOWN_SEAT, Seat
from polyrhythm.core.values import name_fault, plain_reason
from polyrhythm.errors import FrameError, LinkError, Refused
from polyrhythm.io.link import Link
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER, Limits
from polyrhythm.wire.proof import NONCE_NBYTES, Acceptor, Hello, Opener, Secret


def offers(digest: str, kind: LinkKind) -> tuple[int, ...]:
    """The digests that an opener offers, the preferred one first. If the user chose a digest, only
    this one is offered. With `auto`, all are offered: xxh3 is preferred on links that need a
    digest, and `none` on others."""
    if digest != "auto":
        return (int(Digest.named(digest)),)
    preferred = Digest.XXH3 if kind.needs_digest else Digest.NONE
    return (preferred, *(other for other in Digest if other is not preferred))


def limits_for(job: m.JobSpec) -> Limits:
    """The limits that the end that was dialled accepts. *A worker that shares its state sends
    parameters of half precision as float32, which have twice the bytes of their slice*
    (`--optimizer-on workers`)."""
    nbytes = most_slice_nbytes(job) * (2 if sums_only(job) else 1)
    return Limits(MEMBER.head_nbytes, max(nbytes, 64 * 1024))


@contextmanager
def patience(link: Link, seconds: float = 10.0) -> Iterator[threading.Event]:
    """Close the link if the body of the `with` statement takes longer than `seconds`, because the
    peer does not answer. The body receives an event that is set in this case."""
    expired = threading.Event()

    def give_up() -> None:
        expired.set()
        link.close()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()


def must_prove(link: Link) -> bool:
    """Whether both ends of this link must prove that they know the job's secret."""
    return not link.kind.is_within_host


# -- the end that dialled ----------------------------------------------------------------------


def introduce(
    link: Link, hello: Hello, secret: Secret | None = None, seat: Seat = UNKNOWN_SEAT
) -> m.HelloReply:
    """Perform the opener's part of the handshake. If it fails, close the link. `seat`: names the
    process that must answer on a link to the lead."""
    try:
        return _introduce(link, hello, secret, seat)
    except BaseException:
        link.close()
        link.dispose()
        raise


def _introduce(link: Link, hello: Hello, secret: Secret | None, seat: Seat) -> m.HelloReply:
    if must_prove(link):
        hello = msgspec.structs.replace(hello, nonce=secrets.token_bytes(NONCE_NBYTES))
        _prove(link, hello, secret, seat.process_of(link.peer))
    else:
        link.send(hello)
    answer, _ = link.receive()
    if isinstance(answer, m.Refusal):
        raise Refused(in_words(plain_reason(answer.reason)))
    if not isinstance(answer, m.HelloReply):
        raise LinkError(f"{link.peer} did not answer the hello: it sent {type(answer).__name__}")
    if answer.protocol != m.PROTOCOL:
        raise LinkError(
            f"{link.peer} speaks protocol {answer.protocol}, and {hello.name} speaks {m.PROTOCOL};"
            " install the same version of polyrhythm on both sides"
        )
    if answer.digest not in hello.digests:
        raise LinkError(f"{link.peer} chose digest {answer.digest}, which was not offered")
    link.agree(Digest(answer.digest), MEMBER)
    return answer


def _prove(link: Link, hello: Hello, secret: Secret | None, expects: str) -> None:
    """Let both ends prove that they know the secret, the acceptor first. `expects`: the process
    that must answer."""
    if secret is None:
        raise LinkError(f"the job's secret is not known here, and {link.peer} is reached over TCP")
    opener = Opener(secret, hello, expects)
    link.send(hello)
    challenge, _ = link.receive()
    if isinstance(challenge, m.Refusal):
        raise Refused(in_words(plain_reason(challenge.reason)))
    if not isinstance(challenge, m.Challenge):
        raise LinkError(
            f"{link.peer} did not prove that it knows the job's secret:"
            f" it sent {type(challenge).__name__}"
        )
    try:
        proof = opener.answer(challenge)
    except LinkError as error:
        raise LinkError(
            f"a process answered as {link.peer}, but it is not that process: {error}"
        ) from None
    link.send(proof)


# -- the end that was dialled ------------------------------------------------------------------


def acceptor(link: Link, name: str, job: str, secret: Secret | None) -> Acceptor:
    """Make the object that performs the acceptor's part of the handshake. Raises LinkError for a
    TCP link if this server has no secret."""
    if must_prove(link) and secret is None:
        raise LinkError(f"{name} does not know its job's secret, so it takes no TCP links")
    nonce = secrets.token_bytes(NONCE_NBYTES)
    return Acceptor(name, job, secret if must_prove(link) else None, nonce)


def greet(
    link: Link, hello: Hello, name: str, address: m.Address, digest: str, job: m.JobSpec
) -> Hello:
    """Answer the hello of a peer that has proven its identity, and choose the digest of all later
    frames. Returns the hello without the nonce, which machines do not need."""
    if (fault := name_fault(hello.name)) is not None:
        raise FrameError(in_words(fault))
    if hello.job and hello.job != job.job:
        raise FrameError(f"{hello.name} was refused: it belongs to another job")
    known = [offer for offer in hello.digests if offer in Digest.__members__.values()]
    if digest != "auto":
        known = [offer for offer in known if offer == Digest.named(digest)]
    if not known:
        raise FrameError(f"{hello.name} offers no digest that {name} accepts ({digest})")
    greeting = m.HelloReply(
        name=name,
        digest=known[0],
        address=address,
        heartbeat_s=job.heartbeat_s,
        lead_timeout_s=job.lead_timeout_s,
    )
    link.send(greeting)
    link.agree(Digest(known[0]), limits_for(job))
    return msgspec.structs.replace(hello, nonce=b"")
