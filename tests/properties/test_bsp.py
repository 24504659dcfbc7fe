"""BSP never hangs, though workers join, leave, die, abstain or are late, with and without a timer."""

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

from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.barrier.bsp import Bsp
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.observe.reasons import in_words

SECOND_NS = 10**9
SEARCH = settings(max_examples=2000, phases=[Phase.generate], report_multiple_bugs=False)
"""Settings for tests that switch a rule off and expect a violation. The first violation is enough, so it
is not shrunk."""


class Barrier(RuleBasedStateMachine):
    """The events of a lead, and a model of what every worker is doing."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.next_worker = 0
        self.computing: set[int] = set()
        self.arrived: set[int] = set()
        self.joining: set[int] = set()
        self.counted_before: set[int] = set()
        self.released: set[int] = set()
        self.open = False
        self.folded = 0

    @initialize(workers=st.integers(1, 4), timer=st.sampled_from(["off", "5s"]))
    def begin(self, workers: int, timer: str) -> None:
        self.timed = timer != "off"
        self.policy = Bsp(Timer.parse(timer))
        for _ in range(workers):
            self.joining.add(self.next_worker)
            self.tell(sync.Joined(self.next_worker))
            self.next_worker += 1
        self.released, self.joining = self.joining, set()
        self.opened()

    def tell(self, event: sync.PolicyEvent) -> None:
        self.now_ns += 1
        decision = self.policy.on(event, self.now_ns)
        assert in_words(decision.reason)
        assert in_words(self.policy.why().reason)
        if decision.fold:
            assert self.open, "a fold was decided while another runs"
            assert decision.release == self.arrived | self.joining, "a worker is forgotten"
            self.released, self.arrived, self.joining = set(decision.release), set(), set()
            self.open = False
        elif decision.release:
            assert decision.release <= self.counted_before, "released without having contributed"
            self.counted_before -= decision.release
            self.computing |= decision.release

    def opened(self) -> None:
        self.computing |= self.released
        self.released = set()
        self.open = True
        self.tell(sync.Opened(self.folded))

    @rule()
    def join(self) -> None:
        worker, self.next_worker = self.next_worker, self.next_worker + 1
        self.joining.add(worker)
        self.tell(sync.Joined(worker))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        workers = self.computing | self.arrived | self.joining | self.counted_before | self.released
        if workers:
            worker = data.draw(st.sampled_from(sorted(workers)))
            for group in (
                self.computing,
                self.arrived,
                self.joining,
                self.counted_before,
                self.released,
            ):
                group.discard(worker)
            self.tell(sync.Left(worker))

    @precondition(lambda self: self.computing)
    @rule(data=st.data(), abstains=st.sampled_from([False] * 3 + [True]), in_time=st.booleans())
    def contribute(self, data: st.DataObject, abstains: bool, in_time: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.computing)))
        self.computing.discard(worker)
        if abstains:
            self.arrived.add(worker)
            self.tell(sync.MemberAbstained(worker))
        elif not self.open and in_time:
            self.counted_before.add(worker)
            self.tell(sync.MemberContributed(worker, self.folded + 1))
        else:
            self.arrived.add(worker)
            self.tell(sync.MemberContributed(worker, self.folded + (1 if self.open else 2)))

    @precondition(lambda self: not self.open)
    @rule()
    def folded_everywhere(self) -> None:
        self.folded += 1
        self.opened()

    @rule()
    def time_passes(self) -> None:
        self.now_ns += 3 * SECOND_NS
        self.tell(sync.TimePassed())

    @precondition(lambda self: self.open and self.timed and self.arrived)
    @rule()
    def the_timer_fires(self) -> None:
        until_ns = self.policy.why().until_ns
        assert until_ns is not None, "members are missing, but the timer is off"
        self.now_ns = max(self.now_ns, until_ns)
        self.tell(sync.TimePassed())
        assert not self.open, "the timer fired and the round still waits"

    @precondition(lambda self: self.open and self.timed and self.arrived and self.computing)
    @rule(in_time=st.booleans())
    def a_worker_is_late(self, in_time: bool) -> None:
        worker = min(self.computing)
        self.the_timer_fires()
        self.computing.discard(worker)
        (self.counted_before if in_time else self.arrived).add(worker)
        self.tell(sync.MemberContributed(worker, self.folded + (1 if in_time else 2)))

    @invariant()
    def no_worker_waits_without_need(self) -> None:
        if self.open:
            assert not self.counted_before, "a contribution is in, and its worker is not released"
            if not self.computing:
                assert not self.arrived and not self.joining, (
                    "all members have arrived, and no fold"
                )

    def teardown(self) -> None:
        """Check that a fold is decided in any state if all workers contribute."""
        if not hasattr(self, "policy"):
            return
        for _ in range(2):
            if not self.open:
                self.folded_everywhere()
            for worker in sorted(self.computing):
                if self.open:
                    self.computing.discard(worker)
                    self.arrived.add(worker)
                    self.tell(sync.MemberContributed(worker, self.folded + 1))
            self.no_worker_waits_without_need()


TestBarrier = Barrier.TestCase


def test_bsp_hangs_if_it_waits_for_members_that_left(monkeypatch) -> None:
    honest = Bsp.on
    monkeypatch.setattr(
        Bsp,
        "on",
        lambda self, event, now_ns: honest(
            self, sync.TimePassed() if isinstance(event, sync.Left) else event, now_ns
        ),
    )
    with pytest.raises(AssertionError, match=r"no fold|still waits|forgotten"):
        run_state_machine_as_test(Barrier, settings=SEARCH)


def counted_before() -> None:
    """A job has two members. The timer closes the round before the lead hears that the second
    member has contributed, but the servers had counted that contribution in the round."""
    barrier = Barrier()
    barrier.begin(workers=2, timer="5s")
    barrier.computing.discard(0)
    barrier.arrived.add(0)
    barrier.tell(sync.MemberContributed(0, 1))
    barrier.a_worker_is_late(in_time=True)
    barrier.folded_everywhere()
    barrier.no_worker_waits_without_need()


def test_a_late_worker_whose_contribution_was_counted_goes_on() -> None:
    counted_before()


def test_bsp_hangs_if_it_ignores_late_contributions_that_were_counted(monkeypatch) -> None:
    honest = Bsp.on

    def forgetful(self: Bsp, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        late = isinstance(event, sync.MemberContributed) and event.round <= self._decided
        return honest(self, sync.TimePassed() if late else event, now_ns)

    monkeypatch.setattr(Bsp, "on", forgetful)
    with pytest.raises(AssertionError, match="not released"):
        counted_before()
