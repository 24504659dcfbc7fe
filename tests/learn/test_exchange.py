"""What a worker's exchange does with steps and versions at the edges of a job: the parts around it are
replaced by recorders."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from polyrhythm.learn.exchange import Exchange
from polyrhythm.learn.objective import NOT_PROBED


def exchange(*, asked: bool = False, stopped: bool = False, rejoined: bool = False) -> Any:
    """An exchange of one model that trains through the barrier, with a contribution in flight whose
    version has arrived."""
    made: Any = Exchange.__new__(Exchange)
    terms = SimpleNamespace(rejoined=rejoined, probe=(0, 0))
    made._loop = SimpleNamespace(asked=asked, stopped=stopped, terms=terms)
    made._node, made._models, made._maker = MagicMock(), MagicMock(), MagicMock()
    made._node.displaced = False
    made._dropping, made.plan, made.job_steps = MagicMock(), MagicMock(), MagicMock()
    made.window, made.contributor = MagicMock(), MagicMock()
    made.contributor.in_flight = True
    made.contributor.due.return_value = False
    made.traits = SimpleNamespace(trains_through=True, gathers=False)
    made._kind = SimpleNamespace(steps_on_servers=False)
    made._copies, made._times_steps, made._several, made.probe = None, False, False, None
    made._contribute = MagicMock()
    made._abandons = MagicMock(return_value=False)
    return made


@pytest.mark.parametrize("rejoined", [False, True])
def test_only_a_worker_that_was_evicted_drops_its_steps_with_a_version(rejoined: bool) -> None:
    """The steps of an evicted worker do not count, and its parameters no longer contain them."""
    made = exchange(rejoined=rejoined)
    made._rebase()
    assert made.window.drop.called is rejoined
    assert not made.contributor.in_flight


@pytest.mark.parametrize("asked", [False, True])
def test_a_worker_that_was_told_to_leave_sends_its_rest_without_waiting(asked: bool) -> None:
    made = exchange(asked=asked)
    made.contribute_rest()
    assert made._node.await_version.called is not asked
    assert made._contribute.called


@pytest.mark.parametrize("stopped", [False, True])
def test_a_step_after_the_end_of_the_job_takes_the_final_version(stopped: bool) -> None:
    made = exchange(stopped=stopped)
    made._node.look.return_value = False
    made._end_step(None, skipped=False)
    assert made._node.await_version.called is stopped


@pytest.mark.parametrize("parts", [0, 4])
def test_the_loss_of_the_first_step_is_reported_only_if_the_policy_asks(parts: int) -> None:
    made = exchange()
    made.window.first_loss = (0.5, 8)
    made._loop.terms.probe = (0, parts)
    assert made._take_probe() == ((0.5, 8, 0) if parts else NOT_PROBED)
