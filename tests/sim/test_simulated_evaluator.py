"""The evaluator in the simulator: whichever worker dies or comes back, exactly one worker
evaluates."""

import pytest

from tests.sim.staged_run import Run

POLICIES = ["bsp", "ssp:2", "asp", "psp", "fsp"]
JOB = """
[job]
sync = "{sync}"
epochs = 6
points = 480
batch = 8
servers = 2
workers = 3
model = "1MB"
min_batch = 1
[[workers]]
count = 3
step = "2ms"
[[events]]
at = "30ms"
what = "crash"
worker = "worker-0"
[[events]]
at = "60ms"
what = "{second}"
worker = "worker-1"
"""


@pytest.mark.parametrize("second", ["crash", "leave"])
@pytest.mark.parametrize("sync", POLICIES)
@pytest.mark.guarantee("evaluator-killed", k=(0,))
def test_the_next_worker_takes_over_when_the_evaluator_is_gone(sync: str, second: str) -> None:
    run = Run(JOB.format(sync=sync, second=second))
    assert run.end.reason.code == "goal"
    chosen = [(line["name"], line["reason"]) for line in run.lines("evaluator")]
    assert chosen == [
        ("worker-0", "lowest-number"),
        ("worker-1", "evaluator-gone"),
        ("worker-2", "evaluator-gone"),
    ]
    workers = run.simulation.workers.values()
    assert [worker.machine.name for worker in workers if worker.machine.evaluates][-1] == "worker-2"
