"""Every server but the lead's is restarted, one after the other, while a job trains."""

from itertools import pairwise

import pytest

from tests.sim.staged_run import Run

JOB = """
[job]
sync = "{sync}"
kind = "{kind}"
interval = "50ms"
max_time = "6s"
points = 100000
servers = 4
replicas = 1
timer = "off"
model = "100kB"
slice = "10kB"
[objective]
halving = 4000
at_once = 5000
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
count = 3
step = "20ms"
"""
EVENT = '[[events]]\nat = "{at}s"\nwhat = "{what}"\nserver = {server}\n'


@pytest.mark.guarantee("rolling-restart", k=(1,))
@pytest.mark.parametrize("sync", ["bsp", "ssp:2", "asp", "psp", "fsp"])
def test_the_objective_keeps_falling(sync: str) -> None:
    text = JOB.format(sync=sync, kind="local" if sync == "psp" else "gradient")
    for turn, server in enumerate((1, 2, 3)):
        text += EVENT.format(at=1 + 1.5 * turn, what="crash", server=server)
        text += EVENT.format(at=1.5 + 1.5 * turn, what="join", server=server)
    run = Run(text, check=False)
    assert [line["server"] for line in run.lines("server-lost")] == [1, 2, 3]
    assert len(run.lines("server-joined")) == 4 + 3
    assert not run.end.failed
    curve = [
        (line["at_s"], line["objective"])
        for line in run.lines("rounds")
        if line.get("objective") is not None
    ]
    assert len(curve) >= 6, "one line a second"
    assert all(later - earlier < 1.3 for (earlier, _), (later, _) in pairwise(curve))
    assert all(later < earlier for (_, earlier), (_, later) in pairwise(curve))
