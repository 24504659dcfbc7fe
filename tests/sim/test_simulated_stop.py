"""A job that is stopped on request, in virtual time: every worker ends its loop and then leaves."""

import pytest

from polyrhythm.core.lead.ending import PATIENCE_NS
from polyrhythm.errors import UsageError
from polyrhythm.wire import messages as m
from tests.sim.staged_run import Run

SYNCS = ["bsp", "asp", "ssp:0", "ssp:3", "ssp-restart:2", "psp", "fsp"]
JOB = """
[job]
epochs = 1000
points = 2000
batch = 10
servers = 2
model = "100kB"
timer = "off"
heartbeat = "{heartbeat}"
sync = "{sync}"
{more}
[link]
delay = "1ms"
bandwidth = "1Gbit"
[[workers]]
count = 3
step = "10ms"
step_noise = 0.2
[[events]]
at = "{at}"
what = "end"
"""


def stop(
    sync: str, at: str, *events: str, heartbeat: str = "500ms", more: str = "", seed: int = 0
) -> Run:
    text = JOB.format(sync=sync, at=at, heartbeat=heartbeat, more=more)
    for event in events:
        when, what, worker = event.split()
        text += f'[[events]]\nat = "{when}"\nwhat = "{what}"\nworker = "{worker}"\n'
    return Run(text, seed=seed)


def assert_in_order(run: Run) -> None:
    assert run.end.reason.code == "stopped" and not run.end.failed
    assert [worker.failure for worker in run.simulation.workers.values()] == [None] * 3
    assert {line["reason"] for line in run.lines("left")} == {"done"}
    assert len(run.lines("left")) == 3


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("number", range(20))
def test_every_worker_leaves_its_loop_in_order(sync: str, number: int) -> None:
    assert_in_order(stop(sync, f"{200 + 1.7 * number}ms", seed=number))


@pytest.mark.parametrize("sync", ["bsp", "psp", "fsp"])
def test_with_rounds_every_slice_holds_the_same_contributions(sync: str) -> None:
    run = stop(sync, "211ms")
    assert_in_order(run)
    assert run.given()


@pytest.mark.parametrize("sync", ["bsp", "psp", "fsp"])
def test_a_worker_that_is_stuck_delays_the_others_by_the_patience_at_most(sync: str) -> None:
    """Worker-2 is stopped until long after the patience. Its heartbeats are rare, so it is not
    evicted."""
    run = stop(sync, "211ms", "205ms stop worker-2", "40s continue worker-2", heartbeat="100s")
    assert_in_order(run)
    early = [line for line in run.lines("left") if line["name"] != "worker-2"]
    assert [line["at_s"] < 0.3 + PATIENCE_NS / 1e9 for line in early] == [True, True]


def test_local_steps_are_cut_short() -> None:
    """A contribution has 1,000 steps of 10 ms. A stop does not wait for the remaining steps."""
    run = stop("bsp", "500ms", more='kind = "local"\nlocal_steps = 1000')
    assert_in_order(run)
    assert run.lines("ended")[0]["at_s"] < 1.0
    assert run.lines("ended")[0]["rounds"] == 1, "what they had learned counts"


@pytest.mark.parametrize("sync", SYNCS)
def test_an_operator_stops_the_job_in_order_and_gets_answers(sync: str) -> None:
    run = Run(
        JOB.format(sync=sync, at="211ms", heartbeat="500ms", more="") + 'operator = "anna@host"\n'
    )
    assert_in_order(run)
    assert run.lines("stopping")[0]["by"] == run.end.reason.fields["by"] == "anna@host"
    (operator,) = run.simulation.operators
    assert all(isinstance(answer, m.OperatorAnswer) for answer in operator.answers)
    numbers = [answer.reason.fields["workers"] for answer in operator.answers]
    assert numbers[0] == 3 and numbers == sorted(numbers, reverse=True)


def test_only_an_end_has_an_operator() -> None:
    with pytest.raises(UsageError, match="operator can be given only with"):
        Run(
            JOB.format(sync="bsp", at="1s", heartbeat="1s", more="")
            + '[[events]]\nat = "1s"\nwhat = "crash"\nworker = "worker-0"\noperator = "anna"\n'
        )


def test_an_end_names_no_worker() -> None:
    with pytest.raises(UsageError, match="give no worker and no server"):
        Run(JOB.format(sync="bsp", at="1s", heartbeat="1s", more="") + 'worker = "worker-0"\n')
