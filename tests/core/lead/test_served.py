"""A served job: others start its workers, so it waits for them when all have left."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import failed
from tests.core.stage import Stage, of, sent


def begun(*, served: bool, workers: int = 1) -> Stage:
    return Stage(workers=workers, servers=1, served=served).begin()


@pytest.mark.parametrize("gone", ["left", "died", "failed"])
def test_a_served_job_without_workers_waits_and_goes_on_with_the_next_one(gone: str) -> None:
    lead = begun(served=True)
    if gone == "died":
        effects = lead.closed("w0")
    else:
        raised = gone == "failed"
        leave = m.Leave(**lead.who(0), reason=failed("no"), failed=raised)
        effects = lead.tell(leave)
    assert not of(effects, fx.End) and not of(lead.tick(1_000.0), fx.End)
    assert lead.why == "no worker is in the job: it waits for others to join"
    lead.hello("worker-1")
    lead.attach(1)
    assert sent(lead.folded(1), m.Release, "w1")


def test_another_job_without_workers_ends() -> None:
    lead = begun(served=False)
    (end,) = of([*lead.closed("w0"), *lead.tick(60.0)], fx.End)
    assert end.failed and end.reason.code == "deserted"


def test_a_served_job_without_workers_can_be_stopped() -> None:
    lead = begun(served=True)
    lead.closed("w0")
    (end,) = of(lead.tell(ev.StopAsked()), fx.End)
    assert end.reason.code == "stopped" and not end.failed


@pytest.mark.parametrize("served", [True, False])
def test_a_worker_that_left_before_round_1_is_replaced_in_a_served_job(served: bool) -> None:
    """A served job opens round 1 when it has `--workers` members, so a worker that has left must be
    replaced. In other jobs a worker that has left before round 1 still counts."""
    lead = Stage(workers=2, servers=1, served=served)
    lead.hello("worker-0")
    lead.tell(m.Leave(**lead.who(0)))
    lead.hello("worker-1")
    lead.attach(1)
    lead.from_servers(m.Placed)
    effects = lead.from_servers(m.Seeded)
    assert bool(sent(effects, m.Fold)) is not served
