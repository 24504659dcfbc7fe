"""Simulated processes measure the network in virtual time, and the lead knows its rates.

A simulated card serves links in turns of 64 KiB. So a rate that is measured over a frame of a few turns
is too high by up to a turn.
"""

import pytest

from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.names import LEAD
from polyrhythm.core.placement.network import Network
from tests.sim.staged_run import Run

MB = 10**6
JOB = """
[job]
sync = "bsp"
rounds = 8
servers = 4
model = "8MB"
slice = "500kB"
fold_rate = "1000GB"
[[workers]]
count = 4
step = "1ms"
"""


def host(
    number: int, outgoing: int, incoming: int | None = None, *, worker: int | None = None
) -> str:
    servers = [] if worker is not None else [number]
    workers = [f"worker-{number if worker is None else worker}"]
    return f"""
[[hosts]]
servers = {servers}
workers = {workers}
outgoing = "{outgoing}B"
incoming = "{incoming or outgoing}B"
"""


def network(run: Run) -> Network:
    lead = run.simulation.servers[0].machines[LEAD]
    assert isinstance(lead, LeadMachine)
    return lead.parts.network


def test_equal_cards_are_measured() -> None:
    measured = network(Run(JOB + "".join(host(number, 10 * MB) for number in range(4))))
    assert measured.hosts == ("host-0", "host-1", "host-2", "host-3")
    for name in measured.hosts:
        assert measured.throughput(name) == pytest.approx(10 * MB, rel=0.2)


def test_the_throughput_of_a_host_is_that_of_its_slower_direction() -> None:
    hosts = [host(0, 10 * MB), host(1, 4 * MB, 10 * MB), host(2, 10 * MB, 3 * MB), host(3, 10 * MB)]
    measured = network(Run(JOB + "".join(hosts)))
    assert measured.throughput("host-1") == pytest.approx(4 * MB, rel=0.2)
    assert measured.throughput("host-2") == pytest.approx(3 * MB, rel=0.2)


def test_fast_hosts_show_more_than_slow_ones_although_all_wait_for_the_slowest() -> None:
    rates = [20, 12, 6, 3]
    hosts = "".join(host(number, rate * MB) for number, rate in enumerate(rates))
    measured = network(Run(JOB + hosts))
    seen = [(measured.throughput(f"host-{number}") or 0) / MB for number in range(4)]
    assert seen[1:] == pytest.approx(rates[1:], rel=0.2)
    assert seen[0] > 10, "its peers together cannot use more than 12 + 6 + 3"


def test_a_new_rate_is_seen_within_three_rounds() -> None:
    change = """
[[events]]
at = "{at}s"
what = "rate"
host = 1
outgoing = "2MB"
incoming = "2MB"
"""
    hosts = "".join(host(number, 10 * MB) for number in range(4))
    whole = Run(JOB.replace("rounds = 8", "rounds = 4") + hosts)
    ended_s = whole.lines("rounds")[-1]["at_s"]
    run = Run(JOB.replace("rounds = 8", "rounds = 7") + hosts + change.format(at=round(ended_s, 3)))
    assert network(run).throughput("host-1") == pytest.approx(2 * MB, rel=0.2)


@pytest.mark.parametrize("sync", ["asp", "ssp:2", "fsp"])
def test_every_policy_measures(sync: str) -> None:
    hosts = "".join(host(number, 10 * MB) for number in range(4))
    measured = network(Run(JOB.replace('"bsp"', f'"{sync}"') + hosts))
    assert all(measured.throughput(name) for name in measured.hosts)
