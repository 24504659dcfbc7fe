"""What a worker's exchange does with steps and versions at the edges of a job: the parts around it are
replaced by recorders."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from polyrhythm.errors import NotFinite
from polyrhythm.learn.exchange import Exchange
from polyrhythm.learn.objective import NOT_PROBED
from polyrhythm.learn.steps import reason_of


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


def test_a_contribution_that_is_left_out_leaves_nothing_behind() -> None:
    """Buffers get finite values again, and gathered gradients are forgotten; the worker abstains."""
    made = exchange()
    made._flat, made._abstain, why = (
        MagicMock(),
        MagicMock(),
        NotFinite("it is NaN", what="gradient"),
    )
    made._leave_out(why, 2)
    made._flat.restore_buffers.assert_called_once_with()
    made._abstain.assert_called_once_with(reason_of(why), 2)


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_is_in_flight_is_set_apart_from_the_next_contribution(in_flight: bool) -> None:
    made = exchange()
    del made._contribute
    made._take_probe = MagicMock(return_value=NOT_PROBED)
    made.contributor.in_flight = in_flight
    made.window.void = None
    made._flat, made._kind.fill = MagicMock(own_changed={}), MagicMock()
    made._own_changed = 0
    with patch("polyrhythm.learn.exchange.replace"):
        made._contribute()
    assert made._node.set_apart.called is in_flight


@pytest.mark.parametrize("several", [False, True])
def test_the_points_of_a_step_that_is_left_out_keep_their_weight_for_other_models(
    several: bool,
) -> None:
    made = exchange()
    made._several, made.window.new_points = several, 8.0
    assert made._unweighed() == (0.0 if several else 8.0)
