"""The lead's heartbeats in the runtime: a busy lead still sends them, and unread heartbeats do not
fill a link."""

from polyrhythm.engines.inline import Hub
from polyrhythm.io.memory import MemoryLink, memory_pair
from polyrhythm.runtime.net.handshake import introduce
from polyrhythm.runtime.net.peers import HeartbeatSender, Peers
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest


def test_a_busy_lead_still_sends_heartbeats() -> None:
    hub, job = Hub(), m.JobSpec(job="j", heartbeat_s=0.02, lead_timeout_s=7.0)
    lead = ServerNode(0, job, hub.address(0), lead=True, options=NodeOptions(), shared=False)
    hub.servers.append(lead)
    try:
        link = hub.dial(hub.address(0), "lead")
        hello = m.WorkerHello(name="w", job="j", identity="", digests=tuple(Digest))
        greeting = introduce(link, hello)
        assert (greeting.heartbeat_s, greeting.lead_timeout_s) == (0.02, 7.0)
        while not isinstance(link.receive()[0], m.Admitted):
            pass
        # the lead's driver is busy, as when it allocates memory for a large model
        with lead._driver._running:
            beats = [link.receive()[0] for _ in range(3)]
        assert beats == [m.Alive(term=1)] * 3
    finally:
        lead.close()


def pair(peers: Peers) -> tuple[MemoryLink, MemoryLink]:
    here, there = memory_pair("lead", "w0")
    peers.add(here)
    return here, there


def test_a_peer_that_does_not_read_gets_few_heartbeats() -> None:
    peers = Peers()
    here, there = pair(peers)
    beats = HeartbeatSender(peers)
    beats.confirm(here, m.Alive(worker=0, sequence=0))
    for _ in range(1000):
        beats.send(m.Alive(term=1))
    assert there._inbox.qsize() == 8
    beats.confirm(here, m.Alive(worker=0, sequence=8))
    for _ in range(1000):
        beats.send(m.Alive(term=1))
    assert there._inbox.qsize() == 16


def test_a_peer_that_waits_for_the_job_to_begin_gets_all_heartbeats() -> None:
    """A worker's own heartbeats report how many of the lead's heartbeats it has read. The worker sends
    none before it is admitted, so the lead must not wait for these reports."""
    peers = Peers()
    _, there = pair(peers)
    beats = HeartbeatSender(peers)
    for _ in range(100):
        beats.send(m.Alive(term=1))
    assert there._inbox.qsize() == 100
