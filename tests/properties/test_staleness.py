"""Policies without rounds, while workers join, leave, abstain and return. Clocks stay within the
bound, and no worker is held or released against the rule. Tests that switch a rule off must find a
violation."""

from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.arrival.on_arrival import Clocks, OnArrival, ViewChange
from polyrhythm.core.sync.arrival.restart import Restart
from polyrhythm.core.sync.arrival.staleness import Staleness
from polyrhythm.observe.reasons import in_words

SEARCH = settings(stateful_step_count=40)
HUNT = settings(
    SEARCH, max_examples=1000, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False
)
"""Settings for tests that switch a rule off. The first violation that hypothesis finds is enough,
so hypothesis does not look for a smaller one."""


class Gate(RuleBasedStateMachine):
    """The events of a lead, and a model of what every worker is doing."""

    gate: ClassVar[type[Staleness | Restart]]
    clocks_class: ClassVar[type[Clocks]] = Clocks
    view_change_class: ClassVar[type[ViewChange]] = ViewChange
    bounds: ClassVar[tuple[int | None, ...]]
    asks = True
    """Whether a worker that has contributed waits for the lead's permission."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.workers = 0
        self.joining: set[int] = set()
        self.entering: set[int] = set()
        self.going: set[int] = set()
        self.waiting: set[int] = set()
        self.resting: set[int] = set()
        self.view_change: set[int] | None = None
        """The workers that are released when every server knows the new view. None if no view
        change is under way."""

    @initialize(data=st.data(), workers=st.integers(1, 4))
    def begin(self, data: st.DataObject, workers: int) -> None:
        self.bound = data.draw(st.sampled_from(self.bounds))
        self.policy = OnArrival(self.gate(self.bound))  # type: ignore[arg-type]
        self.policy.clocks = self.clocks_class()
        self.policy._view_change = self.view_change_class()
        for _ in range(workers):
            decision = self.policy.on(sync.Joined(self.workers), self.now_ns)
            assert not decision.fold and not decision.release
            self.entering.add(self.workers)
            self.workers += 1
        self.view_change = set(self.entering)
        self.every_server_knows()

    def tell(self, event: sync.PolicyEvent) -> sync.Decision:
        self.now_ns += 1
        decision = self.policy.on(event, self.now_ns)
        assert in_words(decision.reason)
        assert in_words(self.policy.why().reason)
        may = self.waiting | self.joining
        if isinstance(event, sync.Returned):
            may = may | {event.worker}
        assert decision.release <= may, "released without having arrived"
        if decision.fold:
            assert self.view_change is None, "two view changes at a time"
            self.view_change = set(decision.release)
            assert self.joining <= self.view_change, "a view change forgets a joiner"
            self.entering, self.joining = self.joining, set()
        else:
            assert not decision.release & self.joining, "a joiner goes on before servers know it"
            self.go(set(decision.release))
        return decision

    def go(self, workers: set[int]) -> None:
        for group in (self.entering, self.waiting, self.resting):
            group -= workers
        self.going |= workers

    # -- what happens ----------------------------------------------------------------------------

    @rule()
    def join(self) -> None:
        worker, self.workers = self.workers, self.workers + 1
        self.joining.add(worker)
        self.tell(sync.Joined(worker))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        groups = (self.joining, self.entering, self.going, self.waiting, self.resting)
        if workers := sorted(set().union(*groups)):
            worker = data.draw(st.sampled_from(workers))
            for group in groups:
                group.discard(worker)
            if self.view_change is not None:
                self.view_change.discard(worker)
            self.tell(sync.Left(worker))

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.going)))
        if self.asks:
            self.going.remove(worker)
            self.waiting.add(worker)
        self.tell(sync.MemberContributed(worker, 0))

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def abstain(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.going)))
        self.going.remove(worker)
        self.resting.add(worker)
        self.tell(sync.MemberAbstained(worker))

    @precondition(lambda self: self.resting)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.resting)))
        decision = self.tell(sync.Returned(worker))
        assert worker in decision.release, "a worker that returned is held"

    @precondition(lambda self: self.view_change is not None)
    @rule()
    def every_server_knows(self) -> None:
        assert self.view_change is not None
        released, self.view_change = self.view_change, None
        self.go(released)
        self.tell(sync.Opened(0))

    @rule()
    def time_passes(self) -> None:
        self.tell(sync.TimePassed())

    # -- what must hold --------------------------------------------------------------------------

    @property
    def clocks(self) -> dict[int, int]:
        clocks = self.policy.clocks
        return {worker: clocks[worker] for worker in clocks.workers()}

    @invariant()
    def a_worker_is_running(self) -> None:
        if self.waiting:
            assert self.going or self.view_change is not None, "all workers wait"

    @invariant()
    def joiners_are_in_the_next_view_change(self) -> None:
        assert not self.entering or self.view_change is not None, "a joiner is never released"
        assert not self.joining or self.view_change is not None, (
            "a joiner waits without a view change"
        )

    @invariant()
    def only_members_that_do_not_rest_have_clocks(self) -> None:
        if hasattr(self, "policy"):
            assert set(self.clocks) == self.entering | self.going | self.waiting


class Ssp(Gate):
    gate = Staleness
    bounds = (0, 1, 3)

    @invariant()
    def clocks_stay_together(self) -> None:
        if hasattr(self, "policy") and self.clocks:
            gap = max(self.clocks.values()) - min(self.clocks.values())
            assert gap <= self.bound + 1, f"the gap of clocks is {gap}"

    @invariant()
    def no_worker_within_the_bound_is_held(self) -> None:
        """Brute force: examine every waiting worker after every event."""
        if hasattr(self, "policy") and self.waiting:
            least = min(self.clocks.values())
            held = {w for w in self.waiting if self.clocks[w] - least <= self.bound}
            held -= self.view_change or set()
            assert not held, f"{held} may go on, but are held"


class Asp(Gate):
    gate = Staleness
    bounds = (None,)
    asks = False

    @invariant()
    def no_worker_is_held(self) -> None:
        if hasattr(self, "policy"):
            assert self.policy.why().reason.code == "going", "a worker is held"


class SspRestart(Gate):
    gate = Restart
    bounds = (0, 1, 3)

    def tell(self, event: sync.PolicyEvent) -> sync.Decision:
        arriving = {event.worker} if isinstance(event, sync.MemberContributed) else set()
        stopped = self.waiting - arriving - (self.view_change or set())
        others = (self.going | self.entering | self.joining) - arriving
        decision = super().tell(event)
        released = decision.release & (stopped | arriving)
        if stopped and released:
            assert released == stopped | arriving, "not all are released together"
            assert not others & set(self.clocks), "released before all have stopped"
            assert set(self.clocks.values()) <= {0}, "clocks differ after a restart"
        return decision

    @invariant()
    def clocks_stay_together(self) -> None:
        if hasattr(self, "policy") and self.clocks:
            gap = max(self.clocks.values()) - min(self.clocks.values())
            assert gap <= max(1, self.bound), f"the gap of clocks is {gap}"


@pytest.mark.parametrize("policy", [Ssp, Asp, SspRestart])
def test_clocks_stay_within_the_bound_and_workers_go_on(policy: type[Gate]) -> None:
    run_state_machine_as_test(policy, settings=SEARCH)


# -- each rule switched off ----------------------------------------------------------------------


def hunt(policy: type[Gate], **changes: object) -> None:
    run_state_machine_as_test(type("Mutant", (policy,), changes), settings=HUNT)


class JoinsAtZero(Clocks):
    def enter(self, workers: frozenset[int]) -> None:
        for worker in workers:
            self._at.put(worker, 0)


def test_the_gap_grows_if_joiners_start_at_zero() -> None:
    with pytest.raises(AssertionError, match="the gap of clocks is"):
        hunt(Ssp, clocks_class=JoinsAtZero)


class ExaminesArrivalsOnly(Staleness):
    def open(self, clocks: Clocks, now_ns: int) -> tuple[frozenset[int], Reason]:
        self._least = clocks.least
        return super().open(clocks, now_ns)


def test_releases_are_lost_if_only_arriving_workers_are_examined() -> None:
    with pytest.raises(AssertionError, match="may go on, but are held|all workers wait"):
        hunt(Ssp, gate=ExaminesArrivalsOnly)


def test_asp_holds_workers_if_there_is_a_bound() -> None:
    with pytest.raises(AssertionError, match="a worker is held|without having arrived"):
        hunt(Asp, bounds=(0,))


class ReturnsBelowTheMinimum(Clocks):
    """A resting worker keeps its clock, even below the minimum."""

    def resume(self, worker: int) -> bool:
        floor, self._floor = self._floor, 0
        came = super().resume(worker)
        self._floor = floor
        return came


def test_the_gap_grows_if_a_resting_worker_returns_below_the_minimum() -> None:
    with pytest.raises(AssertionError, match="the gap of clocks is"):
        hunt(Ssp, clocks_class=ReturnsBelowTheMinimum)


class ForgetfulViewChange(ViewChange):
    def join(self, worker: int) -> None:
        self._joining.add(worker)

    def leave(self, worker: int) -> None:
        self._joining.discard(worker)


def test_joiners_wait_for_ever_if_the_view_does_not_change() -> None:
    with pytest.raises(AssertionError, match="a joiner waits without a view change"):
        hunt(Ssp, view_change_class=ForgetfulViewChange)


class GoesOnRegardless(Restart):
    def on_arrived(self, worker: int, clocks: Clocks, now_ns: int) -> None:
        stopped, self._stopped = self._stopped, set()
        super().on_arrived(worker, clocks, now_ns)
        self._stopped |= stopped


def test_a_worker_goes_on_alone_if_stopped_workers_are_ignored() -> None:
    with pytest.raises(AssertionError, match="not all are released together"):
        hunt(SspRestart, gate=GoesOnRegardless)


class KeepsRunning(Clocks):
    def restart(self) -> None:
        pass


def test_clocks_differ_if_a_restart_does_not_reset_them() -> None:
    with pytest.raises(AssertionError, match="clocks differ|the gap of clocks"):
        hunt(SspRestart, clocks_class=KeepsRunning)


class ReleasesOne(Restart):
    def open(self, clocks: Clocks, now_ns: int) -> tuple[frozenset[int], Reason]:
        released, reason = super().open(clocks, now_ns)
        if reason.code != "restart":
            return released, reason
        self._stopped = set(released) - {max(released)}
        return frozenset((max(released),)), reason


def test_workers_are_left_behind_if_a_restart_releases_only_one() -> None:
    with pytest.raises(AssertionError, match="not all are released together"):
        hunt(SspRestart, gate=ReleasesOne)


def test_a_joiner_starts_at_the_members_minimum() -> None:
    """A worker has just joined. A member that is one step ahead still goes on, because the clock of
    the new worker does not start at 0."""
    policy = OnArrival(Staleness(2))
    for worker in (0, 1):
        policy.on(sync.Joined(worker), 0)
    policy.on(sync.Opened(0), 0)
    for _ in range(5):
        for worker in (0, 1):
            policy.on(sync.MemberContributed(worker, 1), 1)
    policy.on(sync.Joined(2), 2)
    policy.on(sync.Opened(1), 3)
    assert 0 in policy.on(sync.MemberContributed(0, 1), 4).release
