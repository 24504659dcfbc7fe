"""A worker that is stopped for longer than links are kept: its links are freed, and it can come back."""

import pytest

from tests.sim.staged_run import Run

JOB = """
[job]
sync = "{sync}"
rounds = 250
servers = 2
model = "100kB"
timer = "off"
heartbeat = "500ms"
lead_timeout = "20s"
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
count = 3
step = "400ms"
[[events]]
at = "5s"
what = "stop"
worker = "worker-1"
"""
WAKES = '[[events]]\nat = "{at}"\nwhat = "continue"\nworker = "worker-1"\n'


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_no_server_keeps_the_link_of_a_worker_that_does_not_wake(sync: str) -> None:
    run = Run(JOB.format(sync=sync))
    assert [line["name"] for line in run.lines("evicted")] == ["worker-1"]
    for server in run.simulation.servers:
        assert "w1" not in server.links.table.links


@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize("at", ["30s", "80s"], ids=["within the time", "after it"])
def test_it_joins_again_when_it_wakes(sync: str, at: str) -> None:
    """The message that the worker was evicted is sent before its link is closed, so the worker
    reads this message first, and joins again."""
    run = Run(JOB.format(sync=sync) + WAKES.format(at=at))
    assert [line["name"] for line in run.lines("rejoined")] == ["worker-1"]
    assert run.simulation.workers["worker-1"].failure is None
