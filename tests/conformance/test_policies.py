"""The same tests for every sync policy of the registry.

Hypothesis chooses what workers do: they contribute, abstain, join, leave, ask for the barrier, and
come back, at any time. Every policy must keep the rules that `policy_lead` checks. Further policies
each break one rule on purpose, and the tests must notice it.

A new policy needs one row in `ROWS`: jobs that use it, with the options that change its behaviour.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from polyrhythm.core.kinds import KINDS
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.policy import PolicyEntry, SyncPolicy
from polyrhythm.core.sync.registry import POLICIES, choose_kind, choose_policy
from polyrhythm.observe.templates import SENTENCES
from polyrhythm.wire.messages import JobSpec
from tests.conformance.policy_lead import (
    STEPS_NS,
    Action,
    Ending,
    ModelLead,
    Violation,
    drive,
    replay_restored,
)

ROWS: dict[str, list[dict[str, Any]]] = {
    "bsp": [{"sync": "bsp", "timer": "off"}, {"sync": "bsp", "timer": "5s"}, {"sync": "bsp"}],
    "psp": [{"sync": "psp", "timer": "5s"}, {"sync": "psp", "most_steps": 2}],
    "fsp": [
        {"sync": "fsp"},
        {"sync": "fsp", "coordination": "central", "interval": "50ms", "timer": "5s"},
        {"sync": "fsp", "coordination": "central", "interval": "binary"},
        {"sync": "fsp", "abandon": "1ms", "interval": "1ms", "timer": "off"},
    ],
    "ssp": [{"sync": "ssp:0"}, {"sync": "ssp:2"}],
    "ssp-restart": [{"sync": "ssp-restart:1"}, {"sync": "ssp-restart:3"}],
    "asp": [{"sync": "asp"}],
    "bspb": [{"sync": "bspb", "timer": "5s"}],
    "bspv": [{"sync": "bspv", "timer": "off"}],
    "bspg": [{"sync": "bspg:16", "timer": "off"}, {"sync": "bspg:24", "timer": "5s"}],
}
CASES = [
    pytest.param(name, options, id=" ".join(map(str, options.values())))
    for name, rows in ROWS.items()
    for options in rows
]
EVENTS = st.lists(st.integers(0, len(Action) * len(STEPS_NS) * 8 - 1), min_size=10, max_size=60)
MEMBERS = st.integers(1, 4)
ENDINGS = st.sampled_from(Ending)
SEARCH = settings(max_examples=3 * settings().max_examples)


def job_of(options: dict[str, Any]) -> JobSpec:
    return choose_kind(JobSpec(**{"job": "j", "kind": "auto", **options}))


def test_every_policy_of_the_registry_has_a_row() -> None:
    assert set(ROWS) == set(POLICIES)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_entry_and_the_policy_declare_the_same_traits(
    name: str, options: dict[str, Any]
) -> None:
    entry, policy = POLICIES[name], choose_policy(job_of(options))
    assert policy.traits == entry.traits
    assert entry.traits.kinds & set(KINDS)
    assert entry.traits.preferred_kind in entry.traits.kinds


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_policy_keeps_the_rules_of_all_policies(name: str, options: dict[str, Any]) -> None:
    hunt(POLICIES[name], job_of(options), SEARCH)


def hunt(entry: PolicyEntry, job: JobSpec, config: settings) -> None:
    """Look for a sequence of events that makes the policy break a rule."""

    @given(MEMBERS, EVENTS, ENDINGS)
    def search(members: int, codes: list[int], ending: Ending) -> None:
        drive(entry, job, members, codes, ending)

    config(search)()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_policy_that_is_restored_after_every_event_gives_the_same_answers(
    name: str, options: dict[str, Any]
) -> None:
    @given(MEMBERS, EVENTS)
    @settings(max_examples=10)
    def search(members: int, codes: list[int]) -> None:
        lead = ModelLead(POLICIES[name], job_of(options))
        lead.begin(members)
        for code in codes:
            lead.act(code)
        replay_restored(POLICIES[name], job_of(options), lead.calls)

    search()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_reason_of_a_policy_has_a_text(name: str, options: dict[str, Any]) -> None:
    @given(MEMBERS, EVENTS)
    @settings(max_examples=10)
    def search(members: int, codes: list[int]) -> None:
        seen: set[str] = set()

        def build(job: JobSpec) -> SyncPolicy:
            return Noting(POLICIES[name].build(job), seen)

        lead = ModelLead(replace(POLICIES[name], build=build), job_of(options))
        lead.begin(members)
        for code in codes:
            lead.act(code)
        assert seen <= set(SENTENCES)

    search()


# -- policies that break one rule each -----------------------------------------------------------


class Wrapped:
    """Passes all calls to another policy. A subclass changes some of the answers."""

    def __init__(self, policy: SyncPolicy) -> None:
        self.policy = policy
        self.traits = policy.traits

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        return self.policy.on(event, now_ns)

    def terms(self, worker: int) -> sync.RoundTerms:
        return self.policy.terms(worker)

    def why(self) -> Waiting:
        return self.policy.why()


class Noting(Wrapped):
    """Records the codes of all reasons."""

    def __init__(self, policy: SyncPolicy, seen: set[str]) -> None:
        super().__init__(policy)
        self.seen = seen

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        decision = super().on(event, now_ns)
        self.seen.add(decision.reason.code)
        if decision.change is not None:
            self.seen.add(decision.change.code)
        return decision

    def why(self) -> Waiting:
        waiting = super().why()
        self.seen.add(waiting.reason.code)
        return waiting


class LosesReleases(Wrapped):
    """The policy releases workers only at a fold. So a worker whose contribution was counted in the
    round before waits for ever."""

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        decision = super().on(event, now_ns)
        if decision.fold:
            return decision
        return msgspec.structs.replace(decision, release=sync.NO_WORKERS)


class FoldsTwice(Wrapped):
    """The policy orders another fold when a worker contributes or joins during a fold."""

    folding = False

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        decision = super().on(event, now_ns)
        if isinstance(event, sync.Opened):
            self.folding = False
        elif self.folding and isinstance(event, (sync.MemberContributed, sync.Joined)):
            return msgspec.structs.replace(decision, fold=True)
        self.folding = self.folding or decision.fold
        return decision


class FoldsForNobody(Wrapped):
    """The policy folds when the last member has left."""

    present = 0

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        decision = super().on(event, now_ns)
        self.present += isinstance(event, sync.Joined) - isinstance(event, sync.Left)
        fold = decision.fold or (isinstance(event, sync.Left) and self.present == 0)
        return msgspec.structs.replace(decision, fold=fold)


class DecidesTooEarly(Wrapped):
    """The policy releases a worker as soon as it joins, although the servers do not know the worker
    yet."""

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        decision = super().on(event, now_ns)
        if isinstance(event, sync.Joined) and not decision.fold:
            return msgspec.structs.replace(decision, release=frozenset((event.worker,)))
        return decision


class ReleasesJoinersAtOnce(DecidesTooEarly):
    """Like `DecidesTooEarly`, but only after the first round has opened."""

    opened = False

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        self.opened = self.opened or isinstance(event, sync.Opened)
        return super().on(event, now_ns) if self.opened else self.policy.on(event, now_ns)


class ReleasesTheGone(Wrapped):
    """The policy releases a worker that leaves."""

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        decision = super().on(event, now_ns)
        if isinstance(event, sync.Left):
            gone = frozenset((event.worker,))
            return msgspec.structs.replace(decision, release=decision.release | gone)
        return decision


class ReleasesTwice(Wrapped):
    """The policy releases the workers of the last fold again when the next round opens."""

    last = sync.NO_WORKERS

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        decision = super().on(event, now_ns)
        again = self.last if isinstance(event, sync.Opened) else sync.NO_WORKERS
        self.last = decision.release if decision.fold else sync.NO_WORKERS
        return msgspec.structs.replace(decision, release=decision.release | again)


class HidesItsWakeUps(Wrapped):
    """The policy has a timer, but does not ask to be woken when the timer fires."""

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        return msgspec.structs.replace(super().on(event, now_ns), wake_at=None)


class NeverSleeps(Wrapped):
    """The policy asks for an immediate wake-up again and again."""

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        return msgspec.structs.replace(super().on(event, now_ns), wake_at=now_ns)


class WakesForNobody(Wrapped):
    """The policy asks for a wake-up every second, even if there are no members."""

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        return msgspec.structs.replace(super().on(event, now_ns), wake_at=now_ns + 10**9)


class WaitsForTheGone(Wrapped):
    """The policy does not notice that workers leave."""

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        return super().on(sync.TimePassed() if isinstance(event, sync.Left) else event, now_ns)


class ForgetsJoiners(Wrapped):
    """The policy does not notice workers that join after the first round has opened."""

    opened = False

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        self.opened = self.opened or isinstance(event, sync.Opened)
        ignored = self.opened and isinstance(event, sync.Joined)
        return super().on(sync.TimePassed() if ignored else event, now_ns)


class Unrepeatable(Wrapped):
    """The answers of the policy depend on how many policies were built in this process."""

    built = count()

    def __init__(self, policy: SyncPolicy) -> None:
        super().__init__(policy)
        self.number = next(self.built)

    def why(self) -> Waiting:
        return Waiting(Reason("round", {"round": self.number, "missing": []}), 0)


class ChangedByWhy(Wrapped):
    """A call of `why` changes the next decision of the policy."""

    asked = 0

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        decision = super().on(event, now_ns)
        return msgspec.structs.replace(decision, change=Reason("round", {"round": self.asked}))

    def why(self) -> Waiting:
        self.asked += 1
        return super().why()


class GivesNoReason(Wrapped):
    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        return msgspec.structs.replace(super().on(event, now_ns), reason=Reason(""))


class PlansWithoutSayingSo(Wrapped):
    """The policy plans steps, but does not declare this trait."""

    def terms(self, worker: int) -> sync.RoundTerms:
        return sync.RoundTerms(steps=3)


class TimesWithoutSayingSo(Wrapped):
    """The rounds of the policy end by time, but it does not declare this trait."""

    def terms(self, worker: int) -> sync.RoundTerms:
        return sync.RoundTerms(interval_ns=10**6)


class GathersWithoutSayingSo(Wrapped):
    """The policy tells workers how many points to gather, but does not declare this trait."""

    def terms(self, worker: int) -> sync.RoundTerms:
        return sync.RoundTerms(points=32)


class PausesWithoutSayingSo(Wrapped):
    """The policy calls for all contributions when a worker asks, but does not declare this
    trait."""

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        pause = isinstance(event, sync.Asked)
        return msgspec.structs.replace(super().on(event, now_ns), pause=pause)


@dataclass(frozen=True)
class Broken:
    policy: Callable[[SyncPolicy], SyncPolicy]
    found: str
    """The violation that the suite must report."""
    sync: str = "bsp"
    timer: str = "off"


BROKEN = [
    Broken(FoldsTwice, "a fold while another one is under way"),
    Broken(FoldsTwice, "a fold while another one is under way", "ssp:2"),
    Broken(LosesReleases, "waits for ever", timer="5s"),
    Broken(LosesReleases, "waits for ever", "ssp:2"),
    Broken(FoldsForNobody, "a fold that releases no worker|while another one is under way"),
    Broken(DecidesTooEarly, "before the first round opened"),
    Broken(ReleasesJoinersAtOnce, "without a fold that tells servers of it"),
    Broken(ReleasesJoinersAtOnce, "without a fold that tells servers of it", "asp"),
    Broken(ReleasesTheGone, "which is not a member"),
    Broken(ReleasesTheGone, "which is not a member", "ssp-restart:2"),
    Broken(ReleasesTwice, "which does not wait"),
    Broken(HidesItsWakeUps, "without a wake-up", timer="5s"),
    Broken(NeverSleeps, "asks for another one at once"),
    Broken(WakesForNobody, "wake-ups for ever"),
    Broken(WaitsForTheGone, "waits for ever|which is not a member"),
    Broken(WaitsForTheGone, "waits for ever|which is not a member", "ssp:0"),
    Broken(ForgetsJoiners, "waits for ever"),
    Broken(ForgetsJoiners, "waits for ever", "ssp:2"),
    Broken(Unrepeatable, "a replay answered"),
    Broken(ChangedByWhy, r"a replay after why\(\) was left out answered"),
    Broken(GivesNoReason, "has no code"),
    Broken(PlansWithoutSayingSo, "a plan of 3 steps"),
    Broken(TimesWithoutSayingSo, "an interval of 1000000 ns"),
    Broken(GathersWithoutSayingSo, "a batch of 32 points"),
    Broken(PausesWithoutSayingSo, "its traits are not timed"),
]
HUNT = settings(
    max_examples=400, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False
)
"""Settings for broken policies: the first violation is enough, so do not shrink it."""


@pytest.mark.parametrize(
    "broken", BROKEN, ids=[f"{row.policy.__name__} {row.sync}" for row in BROKEN]
)
def test_the_suite_finds_a_policy_that_breaks_a_rule(broken: Broken) -> None:
    job = job_of({"sync": broken.sync, "timer": broken.timer})
    entry = POLICIES[sync.split_sync(broken.sync)[0]]
    build = entry.build
    entry = replace(entry, build=lambda job: broken.policy(build(job)))
    with pytest.raises(Violation, match=broken.found):
        hunt(entry, job, HUNT)
