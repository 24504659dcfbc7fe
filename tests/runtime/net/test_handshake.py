"""Both ends of the handshake, after the proof."""

import threading
from typing import Any

import pytest

from polyrhythm.core.machine import Reason
from polyrhythm.errors import FrameError, LinkError, PolyrhythmError
from polyrhythm.io.memory import memory_pair
from polyrhythm.runtime.net.handshake import acceptor, greet, introduce, limits_for, patience
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER
from polyrhythm.wire.proof import NONCE_NBYTES, Acceptor, Secret


@pytest.mark.parametrize("protocol", [m.PROTOCOL - 1, m.PROTOCOL + 1])
def test_a_server_that_speaks_another_protocol_is_left(protocol: int) -> None:
    """Its acceptor has not refused this worker, so the worker itself must."""
    here, there = memory_pair("w0", "s1")
    reply = m.HelloReply(
        name="s1",
        digest=Digest.NONE,
        address=m.Address("", 0, "", ""),
        protocol=protocol,
    )
    answers = threading.Thread(target=lambda: (there.receive(), there.send(reply)))
    answers.start()
    hello = m.WorkerHello(name="w", job="j", identity="", digests=tuple(Digest))
    spoken = f"s1 speaks protocol {protocol}, and w speaks {m.PROTOCOL}"
    with pytest.raises(LinkError, match=spoken):
        introduce(here, hello)
    answers.join()
    with pytest.raises(LinkError):
        there.receive()


def test_a_server_that_chooses_a_digest_that_was_not_offered_is_left() -> None:
    here, there = memory_pair("w0", "s1")
    address = m.Address("", 0, "", "")
    there.send(m.HelloReply(name="s1", digest=Digest.NONE, address=address))
    with pytest.raises(LinkError, match=r"s1 chose digest 0, which was not offered"):
        introduce(here, hello(digests=(Digest.XXH3,)))


def test_a_link_stays_open_after_the_handshake() -> None:
    """The time limit of the handshake does not close it later."""
    here, there = memory_pair("w0", "s1")
    before = set(threading.enumerate())
    with patience(here, 60.0) as expired:
        (timer,) = set(threading.enumerate()) - before
    timer.join(10)
    assert not timer.is_alive() and not expired.is_set()
    here.send(hello())
    assert isinstance(there.receive()[0], m.WorkerHello)


def hello(**fields: Any) -> m.WorkerHello:
    given = {"name": "w", "job": "j", "identity": "", "digests": tuple(Digest), **fields}
    return m.WorkerHello(**given)


def greeted(hello: m.WorkerHello, digest: str) -> m.HelloReply:
    here, there = memory_pair("s1", "w0")
    greet(here, hello, "s1", m.Address("", 0, "", ""), digest, m.JobSpec(job="j"))
    reply, _ = there.receive()
    assert isinstance(reply, m.HelloReply)
    return reply


def test_a_server_uses_the_digest_that_it_was_told_to_use() -> None:
    assert greeted(hello(), "sha1").digest == Digest.SHA1
    with pytest.raises(FrameError, match=r"w offers no digest that s1 accepts \(sha1\)"):
        greeted(hello(digests=(Digest.XXH3,)), "sha1")


@pytest.mark.parametrize("order", [tuple(Digest), tuple(reversed(Digest))])
def test_a_server_chooses_the_digest_that_its_peer_prefers(order: tuple[Digest, ...]) -> None:
    assert greeted(hello(digests=(99, *order)), "auto").digest == order[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"job": "another"}, "w was refused: it belongs to another job"),
        ({"digests": (99,)}, "w offers no digest that s1 accepts"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FrameError, match=said):
        greeted(hello(**fields), "auto")


def test_a_process_of_the_same_host_proves_nothing() -> None:
    """Also at a server that knows a secret: the kernel has shown whose process it is."""
    here, _ = memory_pair("s1", "w0")
    for secret in (None, Secret("s" * 40)):
        end = acceptor(here, "s1", "j", secret)
        assert end.take(hello()) is None and end.hello == hello()


def test_what_a_machine_learns_of_a_hello_has_no_nonce() -> None:
    here, there = memory_pair("s1", "w0")
    address, job = m.Address("", 0, "", ""), m.JobSpec(job="j")
    assert greet(here, hello(nonce=bytes(32)), "s1", address, "auto", job).nonce == b""
    assert isinstance(there.receive()[0], m.HelloReply)


def test_a_link_whose_handshake_fails_gives_its_memory_back() -> None:
    here, there = memory_pair("w0", "s1")
    disposed: list[bool] = []
    here.dispose = lambda: disposed.append(True)  # type: ignore[method-assign]
    there.close()
    with pytest.raises(LinkError):
        introduce(here, hello())
    assert disposed == [True]


def test_a_hello_that_names_no_job_is_accepted() -> None:
    assert greeted(hello(job=""), "auto").name == "s1"


def test_a_server_accepts_no_larger_payloads_than_the_slices_of_its_job() -> None:
    here, _ = memory_pair("s1", "w0")
    agreed: list[Any] = []
    here.agree = lambda digest, limits: agreed.append(limits)  # type: ignore[method-assign]
    job = m.JobSpec(job="j", slice_nbytes=256 * 1024)
    greet(here, hello(), "s1", m.Address("", 0, "", ""), "auto", job)
    assert agreed == [limits_for(job)] and agreed[0].payload_nbytes < MEMBER.payload_nbytes


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let links in memory need proofs, as links over TCP do."""
    monkeypatch.setattr("polyrhythm.runtime.net.handshake.must_prove", lambda link: True)


def challenged(by: str, secret: Secret) -> tuple[m.WorkerHello, str]:
    """Dial server 1, and let the server `by`, which knows the secret, answer with a challenge. Returns
    the hello that it got, and the error that the opener raises."""
    here, there = memory_pair("w0", "s1")
    heard: list[m.WorkerHello] = []

    def challenge() -> None:
        message, _ = there.receive()
        assert isinstance(message, m.WorkerHello)
        heard.append(message)
        answer = Acceptor(by, "j", secret, bytes(NONCE_NBYTES)).take(message)
        assert answer is not None
        there.send(answer)
        there.send(m.Refusal(reason=Reason("full")))

    answers = threading.Thread(target=challenge)
    answers.start()
    with pytest.raises(PolyrhythmError) as raised:
        introduce(here, hello(), secret)
    answers.join()
    return heard[0], str(raised.value)


@pytest.mark.usefixtures("strangers")
def test_another_server_of_the_job_at_the_address_is_left() -> None:
    """It knows the secret, because it belongs to the job, but it has other slices."""
    secret = Secret("s" * 40)
    said = (
        "a process answered as s1, but it is not that process:"
        " the process at this address is s2 and not s1"
    )
    assert challenged("s2", secret)[1] == said
    assert said not in challenged("s1", secret)[1]


@pytest.mark.usefixtures("strangers")
def test_every_handshake_has_a_nonce_of_its_own() -> None:
    """Otherwise a process that has recorded the proof of a server could answer with it again."""
    secret = Secret("s" * 40)
    nonces = {challenged("s1", secret)[0].nonce for _ in range(3)}
    assert len(nonces) == 3
