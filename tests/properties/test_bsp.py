"""BSP never hangs: whoever joins, leaves, dies, abstains or is late, and whatever the timer does."""

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

SECOND_NS = 10**9
SEARCH = settings(max_examples=2000, phases=[Phase.generate], report_multiple_bugs=False)
"""For rules that are switched off: any violation will do, so do not make it small."""


class Barrier(RuleBasedStateMachine):
    """What the lead tells the policy, beside a model of what every worker is doing."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.next_worker = 0
        self.computing: set[int] = set()
        self.arrived: set[int] = set()
        self.joining: set[int] = set()
        self.late_but_in: set[int] = set()
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
        assert str(decision.reason)
        assert str(self.policy.why().reason)
        if decision.fold:
            assert self.open, "a fold was decided while another runs"
            assert decision.release == self.arrived | self.joining, "somebody is forgotten"
            self.released, self.arrived, self.joining = set(decision.release), set(), set()
            self.open = False
        elif decision.release:
            assert decision.release <= self.late_but_in, "released without having contributed"
            self.late_but_in -= decision.release
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
        everybody = self.computing | self.arrived | self.joining | self.late_but_in | self.released
        if everybody:
            worker = data.draw(st.sampled_from(sorted(everybody)))
            for workers in (
                self.computing,
                self.arrived,
                self.joining,
                self.late_but_in,
                self.released,
            ):
                workers.discard(worker)
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
            self.late_but_in.add(worker)
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
        assert until_ns is not None, "members are awaited without a timer"
        self.now_ns = max(self.now_ns, until_ns)
        self.tell(sync.TimePassed())
        assert not self.open, "the timer fired and the missing are still waited for"

    @precondition(lambda self: self.open and self.timed and self.arrived and self.computing)
    @rule(in_time=st.booleans())
    def somebody_is_late(self, in_time: bool) -> None:
        worker = min(self.computing)
        self.the_timer_fires()
        self.computing.discard(worker)
        (self.late_but_in if in_time else self.arrived).add(worker)
        self.tell(sync.MemberContributed(worker, self.folded + (1 if in_time else 2)))

    @invariant()
    def nobody_waits_for_nobody(self) -> None:
        if self.open:
            assert not self.late_but_in, "a contribution is in, and its worker is not released"
            if not self.computing:
                assert not self.arrived and not self.joining, "everybody has come, and no fold"

    def teardown(self) -> None:
        """From wherever it got: if all go on contributing, the next fold comes."""
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
            self.nobody_waits_for_nobody()


TestBarrier = Barrier.TestCase


def test_it_hangs_when_those_who_left_are_waited_for(monkeypatch) -> None:
    honest = Bsp.on
    monkeypatch.setattr(
        Bsp,
        "on",
        lambda self, event, now_ns: honest(
            self, sync.TimePassed() if isinstance(event, sync.Left) else event, now_ns
        ),
    )
    with pytest.raises(AssertionError, match=r"no fold|still waited for|forgotten"):
        run_state_machine_as_test(Barrier, settings=SEARCH)


def late_but_in() -> None:
    """Two members; the timer does not wait for the second, whose contribution is in all the same."""
    barrier = Barrier()
    barrier.begin(workers=2, timer="5s")
    barrier.computing.discard(0)
    barrier.arrived.add(0)
    barrier.tell(sync.MemberContributed(0, 1))
    barrier.somebody_is_late(in_time=True)
    barrier.folded_everywhere()
    barrier.nobody_waits_for_nobody()


def test_the_late_who_are_in_go_on() -> None:
    late_but_in()


def test_it_hangs_when_the_late_who_are_in_are_waited_for(monkeypatch) -> None:
    honest = Bsp.on

    def forgetful(self: Bsp, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        late = isinstance(event, sync.MemberContributed) and event.round <= self._decided
        return honest(self, sync.TimePassed() if late else event, now_ns)

    monkeypatch.setattr(Bsp, "on", forgetful)
    with pytest.raises(AssertionError, match="not released"):
        late_but_in()
