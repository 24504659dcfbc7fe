"""The lead learns on which hosts processes run, and what they have measured."""

import pytest
from msgspec.structs import replace

from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.wire import messages as m
from tests.core.stage import SECOND_NS, Stage

MB = 10**6


def address(host: str) -> m.Address:
    return m.Address(host, 1, "", f"boot-{host}/net/1000")


def on_hosts() -> Stage:
    """Two workers and a server, each on a host. The host of the second worker has the name of the
    first one's."""
    stage = Stage(workers=2, servers=0, sync="asp")
    stage.job = replace(stage.job, servers=1, slice_nbytes=MB)
    stage.lead = LeadMachine(stage.job)
    stage.server(0, address=address("c"), host="c")
    stage.hello("worker-0", host="a", identity="boot-a/net/1000")
    stage.hello("worker-1", host="a", identity="boot-b/net/1000")
    return stage


def report(stage: Stage, burst: m.Burst, **sender: int) -> None:
    received = m.Received(stage.now_ns, (burst,))
    stage.tell(m.RatesMeasured(**sender, received=received))


def test_the_lead_averages_what_processes_report() -> None:
    stage = on_hosts()
    network = stage.lead.parts.network
    assert network.hosts == ("a", "a-2", "c")
    assert network.host_of("w1") == "a-2"
    stage.now_ns += 5 * SECOND_NS
    burst = m.Burst("w1", stage.now_ns - 2 * SECOND_NS, stage.now_ns - SECOND_NS, 10 * MB)
    report(stage, burst, server=0)
    stage.tell(m.Alive(server=0))
    assert network.rate("a-2", "c") == pytest.approx(10 * MB)
    copy = LeadMachine.restore(stage.job, stage.lead.snapshot())
    assert copy.parts.network.rate("a-2", "c") == network.rate("a-2", "c")


def test_reports_of_unknown_processes_and_earlier_incarnations_are_ignored() -> None:
    stage = on_hosts()
    stage.now_ns += 5 * SECOND_NS
    burst = m.Burst("s0", stage.now_ns - 2 * SECOND_NS, stage.now_ns - SECOND_NS, 10 * MB)
    report(stage, burst, server=7)
    report(stage, burst, worker=1, incarnation=stage.incarnations[1] - 1)
    report(stage, burst, worker=9, incarnation=1)
    stage.tell(m.Alive(server=0))
    assert stage.lead.parts.network.rate("c", "a-2") is None


def test_a_worker_that_leaves_takes_its_host_along() -> None:
    stage = on_hosts()
    stage.tell(m.Leave(**stage.who(1)))
    assert stage.lead.parts.network.hosts == ("a", "c")


def test_processes_of_one_host_share_it_even_if_users_differ() -> None:
    stage = Stage(workers=1, servers=0)
    stage.server(0, address=m.Address("c", 1, "", "boot/net/1000"), host="c")
    stage.hello("worker-0", host="c", identity="boot/net/1001")
    assert stage.lead.parts.network.hosts == ("c",)
