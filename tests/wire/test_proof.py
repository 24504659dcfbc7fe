"""The handshake: both ends prove that they know the secret. The proofs cover every field that
identifies the ends."""

import dataclasses
from typing import Any

import msgspec
import pytest

from polyrhythm.errors import FrameError, LinkError
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import NONCE_NBYTES, Acceptor, Opener, Secret
from tests.wire.samples import ADDRESS

SECRET, OTHER = Secret("0123456789abcdef" * 4), Secret("fedcba9876543210" * 4)
NEAR, FAR = b"n" * NONCE_NBYTES, b"f" * NONCE_NBYTES
WORKER = m.WorkerHello(
    worker=0, incarnation=1, name="worker-0", job="j", identity="i", digests=(1,), nonce=NEAR
)
SERVER = m.ServerHello(
    server=2, incarnation=3, name="s2", job="j", address=ADDRESS, identity="i", nonce=NEAR
)


def far(secret: Secret | None = SECRET) -> Acceptor:
    return Acceptor("s1", "j", secret, FAR)


def challenge_to(acceptor: Acceptor, hello: m.WorkerHello | m.ServerHello) -> m.Challenge:
    challenge = acceptor.take(hello)
    assert challenge is not None
    return challenge


@pytest.mark.parametrize("hello", [WORKER, SERVER])
def test_two_ends_that_know_the_secret_accept_each_other(hello: Any) -> None:
    acceptor, opener = far(), Opener(SECRET, hello, "s1")
    proof = opener.answer(challenge_to(acceptor, hello))
    assert acceptor.heard and acceptor.hello is None
    assert acceptor.take(proof) is None
    assert acceptor.hello == hello


def test_the_hello_is_not_handed_out_before_the_proof() -> None:
    acceptor = far()
    challenge_to(acceptor, WORKER)
    assert acceptor.hello is None
    with pytest.raises(FrameError, match="does not know this job's secret"):
        acceptor.take(m.Proof(proof=bytes(32)))
    assert acceptor.hello is None


def test_an_acceptor_that_does_not_know_the_secret_gets_no_proof() -> None:
    """A process that took the port of a dead server does not know the secret. It could forward the
    opener's proof to a live server, so the opener must send it none."""
    with pytest.raises(LinkError, match="does not know this secret"):
        Opener(SECRET, WORKER).answer(challenge_to(far(OTHER), WORKER))


def test_an_opener_that_does_not_know_the_secret_is_refused() -> None:
    acceptor = far()
    challenge = challenge_to(acceptor, WORKER)
    forged = Opener(OTHER, WORKER).answer(challenge_to(far(OTHER), WORKER))
    assert challenge.proof != forged.proof
    with pytest.raises(FrameError, match="does not know this job's secret"):
        acceptor.take(forged)


def test_the_acceptors_own_proof_sent_back_is_refused() -> None:
    acceptor = far()
    challenge = challenge_to(acceptor, WORKER)
    with pytest.raises(FrameError, match="does not know this job's secret"):
        acceptor.take(m.Proof(proof=challenge.proof))


def test_a_proof_of_an_earlier_link_is_refused() -> None:
    first = far()
    proof = Opener(SECRET, WORKER).answer(challenge_to(first, WORKER))
    later = Acceptor("s1", "j", SECRET, b"g" * NONCE_NBYTES)
    challenge_to(later, WORKER)
    with pytest.raises(FrameError, match="does not know this job's secret"):
        later.take(proof)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "worker-1"},
        {"incarnation": 2},
        {"worker": 1},
        {"job": "k"},
        {"nonce": b"x" * NONCE_NBYTES},
        {"digests": (0,)},
        {"identity": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_hello_that_was_changed_on_its_way_is_refused(change: dict[str, Any]) -> None:
    """The proofs of both ends cover the hello. The acceptor's proof is sent first, so the opener
    notices the change."""
    changed = msgspec.structs.replace(WORKER, **change)
    acceptor = far()
    challenge = challenge_to(acceptor, changed)
    with pytest.raises(LinkError):
        Opener(SECRET, WORKER).answer(challenge)


def test_a_proof_is_valid_only_for_the_role_in_which_it_was_made() -> None:
    as_worker = m.WorkerHello(name="s2", job="j", identity="i", nonce=NEAR)
    acceptor = far()
    challenge_to(acceptor, as_worker)
    as_server = m.ServerHello(name="s2", job="j", address=ADDRESS, identity="i", nonce=NEAR)
    proof = Opener(SECRET, as_server).answer(challenge_to(far(), as_server))
    with pytest.raises(FrameError, match="does not know this job's secret"):
        acceptor.take(proof)


@pytest.mark.parametrize("change", [{"nonce": b"y" * NONCE_NBYTES}, {"name": "s2"}, {"job": "k"}])
def test_a_challenge_that_was_changed_on_its_way_is_refused(change: dict[str, Any]) -> None:
    challenge = msgspec.structs.replace(challenge_to(far(), WORKER), **change)
    with pytest.raises(LinkError, match="does not know this secret"):
        Opener(SECRET, WORKER).answer(challenge)


def test_another_server_of_the_job_cannot_answer_for_the_dialled_one() -> None:
    """A process that took the port of a dead server could forward the handshake to a live server.
    The challenge names the server that made it, so the opener notices."""
    with pytest.raises(LinkError, match="is s1 and not s2"):
        Opener(SECRET, WORKER, "s2").answer(challenge_to(far(), WORKER))


def test_an_opener_that_names_no_job_accepts_any_job() -> None:
    hello = msgspec.structs.replace(WORKER, job="")
    acceptor = far()
    acceptor.take(Opener(SECRET, hello).answer(challenge_to(acceptor, hello)))
    assert acceptor.hello == hello


def test_a_hello_without_a_nonce_is_refused_where_there_is_a_secret() -> None:
    with pytest.raises(FrameError, match="no nonce"):
        far().take(msgspec.structs.replace(WORKER, nonce=b""))


def test_the_version_is_checked_before_the_proof() -> None:
    """The hello of an older version has neither a nonce nor a proof. It must be refused because of
    its version."""
    old = msgspec.structs.replace(WORKER, protocol=m.PROTOCOL + 1, nonce=b"")
    with pytest.raises(FrameError, match="install the same version"):
        far().take(old)


def test_the_hello_of_an_older_version_can_still_be_read() -> None:
    """In an older version, the fields of a hello end before the nonce."""
    fields = msgspec.msgpack.decode(m.encode_head(WORKER))
    nonce = m.WorkerHello.__struct_fields__.index("nonce")
    older = msgspec.msgpack.encode(fields[:nonce])
    decoded = m.DECODERS[m.EVENT_TYPES[m.WorkerHello]].decode(older)
    assert decoded == msgspec.structs.replace(WORKER, nonce=b"")


def test_nothing_but_a_proof_may_follow_the_challenge() -> None:
    acceptor = far()
    challenge_to(acceptor, WORKER)
    with pytest.raises(FrameError, match="has not proven that it knows the secret sent Leave"):
        acceptor.take(m.Leave(worker=0, incarnation=1))


def test_a_link_whose_user_is_known_needs_no_proof() -> None:
    acceptor = far(None)
    assert acceptor.take(msgspec.structs.replace(WORKER, nonce=b"")) is None
    assert acceptor.hello is not None


def test_a_secret_is_never_shown() -> None:
    held = dataclasses.make_dataclass("Held", ["secret"])(SECRET)
    for shown in (repr(SECRET), str(SECRET), repr(held), f"{held}"):
        assert SECRET.text not in shown
