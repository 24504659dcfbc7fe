"""Thousands of hostile inputs, sent within this process: each may end its own link, and nothing
else.

The tests send 20,000 inputs. POLYRHYTHM_FUZZ sets another number, and POLYRHYTHM_FUZZ_SEED another
seed (`make torture` sends 1,000,000). A failure is printed with the seed that repeats it. Some of
the inputs go over real ports (`test_fuzz_ports.py`).
"""

import contextlib
import gc
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polyrhythm.core.server import admission
from polyrhythm.errors import FrameError
from polyrhythm.wire import frames
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER, STRANGER, Decoder
from tests.hostile.inputs import KINDS, Inputs
from tests.hostile.leads import POLICIES, HostileLead
from tests.hostile.nodes import Session, Site

INPUTS = int(os.environ.get("POLYRHYTHM_FUZZ", "20000"))
SEED = int(os.environ.get("POLYRHYTHM_FUZZ_SEED", "1"))
DECODED = round(0.85 * INPUTS)
TO_LEADS = round(0.1 * INPUTS)
TO_NODES = round(0.03 * INPUTS)
_GROUPS = 4
_PER_LEAD = 50
_SLACK_KB = 48 * 1024
pytestmark = pytest.mark.timeout(120 + INPUTS // 100)


# -- the decoder -------------------------------------------------------------------------------


def decode(data: bytes, limits: frames.Limits, digest: Digest, *, hello: bool = False) -> None:
    """Feed bytes to a decoder as a link does. The decoder may raise nothing but FrameError."""
    decoder = Decoder(digest, limits, hello=hello)
    try:
        while data:
            target = decoder.target()
            size = min(len(target), len(data))
            target[:size] = data[:size]
            decoder.on_landed(size)
            data = data[size:]
            while decoder.next() is not None:
                pass
    except FrameError:
        pass


@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_decoder_refuses_or_accepts_and_raises_nothing_else(group: int) -> None:
    for number in range(group, DECODED, _GROUPS):
        rng = random.Random(f"{SEED} decoder {number}")
        inputs, kind = Inputs(rng), rng.choice(KINDS)
        hello = rng.random() < 0.3
        digest = Digest.XXH3 if hello else rng.choice((Digest.XXH3, Digest.NONE))
        data = inputs.odd_frame(kind, digest, hello=hello)
        if rng.random() < 0.3:
            data = inputs.damaged(data)
        try:
            decode(data, STRANGER if hello else MEMBER, digest, hello=hello)
        except Exception as error:
            raise AssertionError(
                f"input {number} of seed {SEED}, a {kind.__name__}: {data[:400]!r}"
            ) from error


def test_the_fuzzer_finds_a_decoder_that_does_not_catch_deep_nesting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The decoder of this test does not catch RecursionError. An earlier version did not either,
    and one frame ended the job."""

    class Uncaught(Exception): ...

    def decode_head(head: object) -> m.Message:
        try:
            return honest.decode(head)
        except RecursionError:
            raise Uncaught from None

    honest = m.DECODERS[m.EventType.WRK_BONJOUR]
    monkeypatch.setitem(m.DECODERS, m.EventType.WRK_BONJOUR, _Decoding(decode_head))
    with pytest.raises(Uncaught):
        for number in range(2_000):
            inputs = Inputs(random.Random(number))
            decode(inputs.odd_frame(m.WorkerHello), MEMBER, Digest.XXH3)


class _Decoding:
    def __init__(self, decode: object) -> None:
        self.decode = decode


# -- the lead ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("role", ["member", "server", "operator"])
def test_no_message_breaks_the_lead(policy: str, role: str) -> None:
    """A member, a server and an operator send every type of message, with wrong identities and
    values. The honest members continue to train."""
    lots = max(1, TO_LEADS // (3 * len(POLICIES) * _PER_LEAD))
    accepted = 0
    for lot in range(lots):
        seed = f"{SEED} {policy} {role} {lot}"
        rng = random.Random(seed)
        target = HostileLead(rng, role, policy)
        for number in range(_PER_LEAD):
            head, kind = target.attack()
            try:
                accepted += target.strike(head, kind)
                target.go_on(rng.randrange(8))
            except Exception as error:
                raise AssertionError(
                    f"input {number} of seed {seed!r}, a {kind.__name__}: {head!r}"
                ) from error
            if target.ended:  # a hostile server or operator may end the job, so a new one begins
                target = HostileLead(rng, role, policy)
    assert accepted > 5 * lots, "most inputs were refused before the lead saw them"


# -- nodes -------------------------------------------------------------------------------------


@pytest.fixture
def resources() -> Iterator[None]:
    """Assert that the process has as many threads and descriptors and as much memory after the test
    as before."""
    # let torch open its devices and start its threads before they are counted
    torch.ones(1, requires_grad=True).sum().backward()
    gc.collect()
    threads, descriptors = threading.active_count(), _descriptors()
    yield
    tries = 0
    while threading.active_count() > threads or len(_descriptors()) > len(descriptors):
        tries += 1
        gc.collect()
        names = [thread.name for thread in threading.enumerate()]
        assert tries < 300, f"left: {names}, {_descriptors() - descriptors}"
        threading.Event().wait(0.05)


def _descriptors() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        # the descriptor with which this loop read the folder is closed already
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{entry.name} {os.readlink(entry)}")
    return found


def _resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.usefixtures("resources")
@pytest.mark.parametrize("sync", ["asp", "bsp", "fsp"])
def test_no_link_breaks_a_server(sync: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers, members, servers and operators send arbitrary inputs to a job in this process. Its
    honest worker continues to train."""
    site, sent, number, before_kb = Site(sync), 0, 0, 0
    try:
        site.trains_on()
        # A server ends the link of a peer that the lead does not name in time. A short time keeps
        # the test short.
        monkeypatch.setattr(admission, "WAIT_NS", 10**7)
        while sent < TO_NODES // 3:
            number += 1
            seed = f"{SEED} {sync} {number}"
            session = Session(site, random.Random(seed), number)
            sent += session.run(TO_NODES)
            assert not site.failures, (
                f"link {number} of seed {seed!r}, a {session.role}: {session.sent}"
            )
            if sent > TO_NODES // 6 and not before_kb:
                before_kb = _resident_kb()
        site.trains_on()
        assert _resident_kb() < before_kb + _SLACK_KB
    finally:
        site.close()
