"""dSyncPS: the message format (§3.3.1), the barrier's timer (§3.1.2) and heartbeats (§3.1.7). Each
test quotes the sentence that it checks.

Not implemented: sites with delayed synchronisation (§3.1.4 to §3.1.6), training packages and gates
(§3.2.1 to §3.2.3), and a worker's choice of its server (§3.2.4). So no message has the types
`TRAINMF`, `SRV_SYNC` and `WRK_REQ_SRVS` of Table 1, which exist only as names.
"""

import struct
import zlib

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.pacemaker import Pacemaker
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.registry import choose_policy
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.errors import FrameError
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.events import EventType
from polyrhythm.wire.frames import MEMBER, PREAMBLE, Decoder, encode
from tests.papers.simulated import Simulated

PAYLOAD = b"gradient"
ADDRESS = m.Address("127.0.0.1", 1, "", "")
SAMPLES: dict[type[m.Message], m.Message] = {
    m.ServerHello: m.ServerHello(name="s1", job="j", address=ADDRESS, identity=""),
    m.Alive: m.Alive(worker=3, incarnation=2),
    m.Seed: m.Seed(worker=1, slice=4),
    m.WorkerHello: m.WorkerHello(name="w", job="j", identity=""),
    m.Contribution: m.Contribution(worker=1, sequence=2, slices=1),
}
MESSAGE = m.Contribution(worker=1, sequence=2, slices=1)


def frame(digest: Digest = Digest.SHA1) -> bytes:
    return b"".join(encode(MESSAGE, [PAYLOAD], digest=digest, timestamp_ns=123456789))


def body() -> bytes:
    return m.encode_head(MESSAGE) + PAYLOAD


def test_preamble() -> None:
    """ "the preamble specifies the message delimiter, which is a fixed string of size
    PREAMBLE_SIZE (8 bytes by default)" """
    assert len(PREAMBLE) == 8
    assert frame()[:8] == PREAMBLE


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("SRV_BONJOUR", m.ServerHello),
        ("ALIVE", m.Alive),
        ("BONJOUR_MDES", m.Seed),
        ("WRK_BONJOUR", m.WorkerHello),
        ("WRK_UPDATE", m.Contribution),
    ],
)
def test_event_type(event: str, kind: type[m.Message]) -> None:
    """ "The evtType represents the type of a message. The specific types of message are shown in
    Table 1.": a frame with the type of a message is decoded to that message."""
    message = SAMPLES[kind]
    stream = b"".join(encode(message, [], digest=Digest.SHA1, timestamp_ns=0))
    assert stream[8] == EventType[event]
    decoder = Decoder(Digest.SHA1, MEMBER)
    decoder.target()[: len(stream)] = stream
    decoder.on_landed(len(stream))
    got = decoder.next()
    assert got is not None and got.message == message


@pytest.mark.parametrize("event", ["TRAINMF", "SRV_SYNC", "WRK_REQ_SRVS"])
def test_event_types_that_are_not_implemented_are_refused(event: str) -> None:
    """The types of Table 1 that are not implemented have names in the enum, but a frame of such a
    type ends its link."""
    stream = bytearray(frame())
    stream[8] = EventType[event]
    end = 36 + 20
    stream[end : end + 4] = struct.pack("<I", zlib.crc32(bytes(stream[:end])))
    decoder = Decoder(Digest.SHA1, MEMBER)
    decoder.target()[: len(stream)] = bytes(stream)
    with pytest.raises(FrameError):
        decoder.on_landed(len(stream))
        decoder.next()


def test_body_and_its_length() -> None:
    """ "The msgBody contains the message data of variable length and msgBodyLen shows the length of
    this message." The paper's length has 32 bits, which limits a
    message to 4 GB. The length here has 64 bits."""
    (length,) = struct.unpack_from("<Q", frame(), 16)
    assert length == len(body())
    assert frame().endswith(body())


def test_digest() -> None:
    """ "To guarantee message integrity, a 64-byte long SHA-1 hash value is included in hashVal,
    where SHA_DIGEST_LENGTH is 64 by default, and can be adjusted." A digest of SHA-1
    has 20 bytes, and one of blake2b has 64. Here the head and the payload each have a digest."""
    for digest, nbytes in ((Digest.SHA1, 20), (Digest.BLAKE2B, 64), (Digest.XXH3, 8)):
        head, payload = frame(digest)[36 : 36 + nbytes], frame(digest)[36 + nbytes :][:nbytes]
        assert head == digest.over([m.encode_head(MESSAGE)])
        assert payload == digest.over([PAYLOAD])
        assert digest.nbytes == nbytes


def test_timestamp() -> None:
    """ "The ts represents the timestamp when this message is generated." """
    (timestamp_ns,) = struct.unpack_from("<Q", frame(), 24)
    assert timestamp_ns == 123456789


def test_stream() -> None:
    """ "given that TCP is a stream-oriented protocol, a delimiter is necessary for a receiving node
    to determine the end of message in a data stream". The receiver must find every message in a
    stream."""
    decoder = Decoder(Digest.SHA1, MEMBER)
    stream = frame() + frame()
    decoder.target()[: len(stream)] = stream
    decoder.on_landed(len(stream))
    for _ in range(2):
        got = decoder.next()
        assert got is not None and got.message == MESSAGE and got.payload == PAYLOAD
    assert decoder.next() is None


def test_the_header_has_a_checksum_that_the_paper_does_not_have() -> None:
    """The paper has no checksum of the header. With a checksum, a frame with a damaged length
    is refused. Without it, the receiver would wait for bytes that never come."""
    header = frame()[: 36 + 20 + 20]
    (checksum,) = struct.unpack_from("<I", frame(), len(header))
    assert checksum == zlib.crc32(header)


# -- §3.1.2: the timer ---------------------------------------------------------------------------

SECOND = 10**9


def test_the_server_goes_on_without_late_workers() -> None:
    """ "If the parameter server does not receive the updated parameters from a worker node until the
    timer fires off, the parameter server continues without further waiting." """
    policy = choose_policy(m.JobSpec(job="j", sync="bsp", timer="30s"))
    for worker in (0, 1):
        policy.on(sync.Joined(worker), 0)
    policy.on(sync.Opened(0), 0)
    assert not policy.on(sync.MemberContributed(0, 1), SECOND).fold
    assert not policy.on(sync.TimePassed(), 30 * SECOND - 1).fold
    fired = policy.on(sync.TimePassed(), 30 * SECOND)
    assert fired.fold and fired.reason.code == "timer"


def test_the_timer_is_120_seconds_by_default() -> None:
    """ "By default, we set this timer to be 120 seconds, but this can be adjusted by the system
    operator." Here the timer becomes shorter once the duration of rounds is known."""
    policy = choose_policy(m.JobSpec(job="j", sync="bsp"))
    for worker in (0, 1):
        policy.on(sync.Joined(worker), 0)
    assert policy.on(sync.Opened(0), 0).wake_at == 120 * SECOND


def test_workers_join_and_leave_at_any_time() -> None:
    """ "This function updates the list of active worker nodes when a worker joins and leaves the
    training." """
    run = Simulated(
        """
[job]
rounds = 60
timer = "off"
model = "1kB"
[[workers]]
count = 2
step = "10ms"
[[workers]]
name = "late"
step = "10ms"
join = "200ms"
[[events]]
at = "400ms"
what = "leave"
worker = "worker-0"
"""
    )
    counts = {name: worker["contributions"] for name, worker in run.result["per_worker"].items()}
    assert counts["worker-1"] == 60
    assert 30 < counts["late"] < 50, "it joined in the middle"
    assert 30 < counts["worker-0"] < 50, (
        "it left in the middle, and the others went on without a timer"
    )


# -- §3.1.7: heartbeats --------------------------------------------------------------------------


def test_the_initiator_broadcasts_to_all_peers_periodically() -> None:
    """ "The heartbeat initiator broadcasts heartbeat message to all connect peers periodically":
    the lead sends heartbeats to all linked peers, and each peer sends heartbeats to the lead."""
    pacemaker = Pacemaker(m.JobSpec(job="j", heartbeat_s=0.5))
    beats = [pacemaker.handle(ev.Tick(), at * SECOND // 10) for at in range(10, 31)]
    assert [type(effect) for effects in beats for effect in effects] == [fx.BeatAll] * 5
    worker = WorkerMachine("w")
    worker.handle(m.Admitted(job=m.JobSpec(job="j", heartbeat_s=0.5), servers=()), SECOND)
    effects = [
        effect
        for at in range(10, 31)
        for effect in worker.handle(ev.Tick(), at * SECOND // 10)
        if isinstance(effect, fx.Beat)
    ]
    assert len(effects) == 4


STOPPED = """
[job]
sync = "asp"
rounds = 1500
servers = 2
model = "1kB"
lead_timeout = "4s"
[[workers]]
count = 2
step = "10ms"
[[events]]
at = "3s"
what = "stop"
{who}
"""


def test_a_silent_worker_is_removed() -> None:
    """ "If one node, either server or worker node, is not heard over within a predetermined time
    interval, it is considered disconnected. As a result, the disconnected node is removed from the
    status table maintained by its peers." Here the interval is computed from the node's own earlier
    heartbeats."""
    run = Simulated(STOPPED.format(who='worker = "worker-1"'))
    (evicted,) = run.noted("evicted")
    assert evicted["name"] == "worker-1"
    (left,) = [line for line in run.noted("left") if line["name"] == "worker-1"]
    assert 4.5 < left["at_s"] < 5.5


@pytest.mark.parametrize("machine", ["worker", "server"])
def test_workers_and_servers_disconnect_from_a_silent_lead(machine: str) -> None:
    """ "Such a module also exists in worker nodes." Workers and servers watch the heartbeats of the
    lead, and end when the lead is silent for too long."""
    node = WorkerMachine("w") if machine == "worker" else ServerMachine(1, m.JobSpec(job="j"))
    node.handle(ev.LeadLinked(0.5, 4.0), SECOND)
    seen = [
        effect
        for at in range(10, 61)
        for effect in node.handle(ev.Tick(), at * SECOND // 10)
        if isinstance(effect, fx.Fail | fx.End)
    ]
    (ending,) = seen
    assert ending.reason.code == "lead-lost"
