"""The table of a worker's phases: every pair of phase and event is in the table or ignored on
purpose."""

from itertools import product

import pytest

from polyrhythm.core import events as ev
from polyrhythm.core.worker import machine as worker_machine
from polyrhythm.core.worker.lifecycle import EVENTS, TABLE, Phase
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m

BEFORE_ADMISSION = (
    m.Divided,
    m.Routing,
    m.Leased,
    m.Acknowledged,
    m.Release,
    m.Progressed,
    m.Withhold,
    m.Keep,
    m.Share,
    m.Appointed,
    m.Proceed,
    m.Evicted,
    ev.Linked,
)
"""Events that concern an incarnation. A worker that is not admitted yet has none."""
BEFORE_ROUTES = (ev.Skipped, ev.Landed)
AFTER_THE_LOOP = (ev.Enrolling, ev.Computed, ev.Exhausted, ev.PassedAll, ev.LeaveAsked)
IGNORED = {
    *product(Phase, [m.Pause]),
    *product(Phase, [m.Admitted]),
    *product([Phase.JOINING], BEFORE_ADMISSION),
    *product([Phase.JOINING, Phase.ADMITTED], BEFORE_ROUTES),
    *product([Phase.LEAVING], AFTER_THE_LOOP),
    *product([Phase.ENDED], EVENTS),
} - {
    (Phase.COMPUTING, m.Pause),
    # the last three phases occur if the user's code contributes while the worker rejoins
    *product([Phase.JOINING, Phase.WAITING, Phase.RESTING, Phase.PARTING], [m.Admitted]),
}


def test_every_pair_of_phase_and_event_is_in_the_table_or_ignored_on_purpose() -> None:
    handled = {(phase, event) for phase in Phase for event in TABLE[phase]}
    assert handled | IGNORED == set(product(Phase, EVENTS))
    assert not handled & IGNORED


def test_every_event_of_the_table_has_a_handler() -> None:
    assert set(worker_machine._HANDLERS) == EVENTS


def test_every_phase_is_reachable_and_every_phase_but_the_last_can_end() -> None:
    reached = {to for moves in TABLE.values() for phases in moves.values() for to in phases}
    assert reached == set(Phase)
    for phase in set(Phase) - {Phase.ENDED}:
        assert TABLE[phase][m.Stop] == {phase, Phase.ENDED}


def test_a_transition_that_is_not_in_the_table_is_refused() -> None:
    worker = WorkerMachine("anna")
    worker.handle(ev.LeadHeard(), 1)
    worker.check()
    worker._state.enter(Phase.COMPUTING, 1)
    moved = "LeadHeard changed the worker's phase from joining to computing"
    with pytest.raises(InvariantBroken, match=moved):
        worker.check()


@pytest.mark.parametrize("phase", [Phase.LEAVING, Phase.ENDED])
def test_a_worker_that_is_already_leaving_ignores_a_request_to_leave(phase: Phase) -> None:
    """Under psp the user's code may end while its last contribution is in flight. A worker that is
    asked to leave at that time must still end when the contribution is acknowledged."""
    worker = WorkerMachine("anna")
    worker._state.enter(phase, 1)
    assert worker.handle(ev.LeaveAsked(), 2) == []
    assert worker.state is phase
