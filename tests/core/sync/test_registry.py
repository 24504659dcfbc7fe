"""The policy that --sync, --timer and --kind select, the barrier's timer, and BSP step by step."""

from typing import Any

import pytest

from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.barrier.bsp import Bsp
from polyrhythm.core.sync.barrier.timer import Timer
from polyrhythm.core.sync.registry import choose_kind, choose_policy
from polyrhythm.errors import UsageError
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire.messages import ContributionReport, JobSpec

SECOND_NS = 10**9


@pytest.mark.parametrize(
    ("text", "length_ns"),
    [
        ("off", None),
        ("auto", 120 * SECOND_NS),
        ("120s", 120 * SECOND_NS),
        ("120", 120 * SECOND_NS),
        ("0.5s", SECOND_NS // 2),
    ],
)
def test_texts_of_timer_are_parsed(text: str, length_ns: int | None) -> None:
    assert Timer.parse(text).length_ns == length_ns


@pytest.mark.parametrize("text", ["", "soon", "-1s", "0", "nan", "inf", "1m", "s"])
def test_other_timers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give auto, off or seconds such as 120s"):
        Timer.parse(text)


def test_an_auto_timer_is_three_times_the_longest_of_the_last_20_rounds() -> None:
    timer = Timer.parse("auto")
    timer.on_measured(40 * SECOND_NS)
    assert timer.length_ns == 120 * SECOND_NS
    for _ in range(19):
        timer.on_measured(5 * SECOND_NS)
    assert timer.length_ns == 120 * SECOND_NS
    timer.on_measured(5 * SECOND_NS)
    assert timer.length_ns == 15 * SECOND_NS


def test_an_auto_timer_is_at_least_ten_seconds() -> None:
    timer = Timer.parse("auto")
    timer.on_measured(1)
    assert timer.length_ns == 10 * SECOND_NS


def test_a_fixed_timer_does_not_adapt() -> None:
    timer = Timer.parse("7s")
    timer.on_measured(100 * SECOND_NS)
    assert timer.length_ns == 7 * SECOND_NS


@pytest.mark.parametrize("kind", ["gradient", "local"])
def test_bsp_folds_both_kinds(kind: str) -> None:
    assert isinstance(choose_policy(JobSpec(job="j", sync="bsp", timer="auto", kind=kind)), Bsp)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="--sync 'lockstep' is not known"):
        choose_policy(JobSpec(job="j", sync="lockstep", timer="auto", kind="gradient"))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        UsageError, match="--kind 'magic' is not known: choose one of auto, gradient"
    ):
        choose_policy(JobSpec(job="j", sync="bsp", timer="auto", kind="magic"))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"sync": "bsp"}, "gradient"),
        ({"sync": "asp"}, "gradient"),
        ({"sync": "bspv"}, "gradient"),
        ({"sync": "psp"}, "local"),
        ({"sync": "fsp"}, "local"),
        ({"sync": "fsp", "abandon": "50ms"}, "gradient"),
        ({"sync": "fsp", "updater": "addition"}, "gradient"),
        ({"sync": "fsp", "in_place": True}, "gradient"),
        ({"sync": "fsp", "kind": "gradient"}, "gradient"),
        ({"sync": "asp", "kind": "local"}, "local"),
    ],
)
def test_kind_auto_becomes_the_kind_that_the_policy_prefers(
    fields: dict[str, Any], kind: str
) -> None:
    job = choose_kind(JobSpec(**{"job": "j", "kind": "auto", **fields}))
    assert job.kind == kind
    choose_policy(job)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sync": "psp"}, "--sync psp cannot fold kind 'gradient': it takes local"),
        ({"sync": "bspb", "kind": "local"}, "--sync bspb cannot fold kind 'local'"),
        ({"sync": "psp", "kind": "local", "most_steps": 0}, "--most-steps is 0"),
        ({"sync": "fsp", "interval": "0ms"}, "--interval '0ms' is not understood"),
        ({"sync": "fsp", "interval": "-5ms"}, "--interval '-5ms' is not understood"),
        ({"sync": "fsp", "coordination": "none"}, "--coordination 'none' is not known"),
        ({"sync": "fsp", "abandon": "0ms"}, "--abandon '0ms' is not understood"),
        ({"sync": "fsp", "abandon": "soon"}, "give off or a duration such as 50ms"),
        ({"sync": "fsp", "abandon": "50ms", "kind": "local"}, "--abandon needs --sync fsp"),
        ({"sync": "bsp", "abandon": "50ms"}, "--abandon needs --sync fsp"),
        ({"sync": "fsp", "migrate": "all"}, "--migrate 'all' is not known"),
        ({"sync": "asp", "migrate": "lease"}, "--migrate lease needs a policy with rounds"),
    ],
)
def test_options_that_a_policy_cannot_use_are_refused_in_one_line(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        choose_policy(JobSpec(**{"job": "j", **fields}))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_psp_reports_that_it_raised_the_cap() -> None:
    policy = choose_policy(JobSpec(job="j", sync="psp", kind="local", most_steps=3))
    for worker in (0, 1):
        policy.on(sync.Joined(worker), 0)
    policy.on(sync.Opened(0), 0)
    for worker, step_ns in ((0, 10**6), (1, 10 * 10**6)):
        report = ContributionReport(compute_ns=step_ns)
        decision = policy.on(sync.MemberContributed(worker, 1, report), 20 * 10**6)
    assert decision.fold and decision.change is not None
    assert "--most-steps 3 is raised to 10" in in_words(decision.change)
    assert policy.terms(0).steps == 10


def test_choose_policy_refuses_a_wrong_timer() -> None:
    with pytest.raises(UsageError, match="--timer 'x'"):
        choose_policy(JobSpec(job="j", sync="bsp", timer="x", kind="gradient"))


# -- bsp, step by step ---------------------------------------------------------------------------


def bsp(*members: int, timer: str = "off") -> Bsp:
    policy = Bsp(Timer.parse(timer))
    for member in members:
        policy.on(sync.Joined(member), 0)
    policy.on(sync.Opened(0), 0)
    return policy


def test_bsp_folds_when_the_last_member_has_contributed() -> None:
    policy = bsp(0, 1)
    assert not policy.on(sync.MemberContributed(0, 1), 1).fold
    decision = policy.on(sync.MemberContributed(1, 1), 2)
    assert decision.fold and decision.release == {0, 1}
    assert in_words(decision.reason) == "every member has contributed to round 1 or abstained"


def test_a_fold_by_the_timer_names_the_missing_members() -> None:
    policy = bsp(0, 1, 2, timer="5s")
    decision = policy.on(sync.MemberContributed(0, 1), SECOND_NS)
    assert decision.wake_at == 5 * SECOND_NS
    decision = policy.on(sync.TimePassed(), 6 * SECOND_NS)
    assert decision.fold and decision.release == {0}
    assert in_words(decision.reason) == (
        "the timer fired 6.0 s after round 1 opened: the round does not wait for w1 and w2"
    )


def test_the_timer_starts_again_if_no_member_has_contributed() -> None:
    policy = bsp(0, timer="5s")
    decision = policy.on(sync.TimePassed(), 6 * SECOND_NS)
    assert not decision.fold and decision.wake_at == 11 * SECOND_NS
    assert (
        in_words(decision.reason) == "the timer fired, but no worker has contributed to round 1 yet"
    )


def test_bsp_folds_for_workers_that_join_after_all_members_left() -> None:
    policy = bsp(0)
    policy.on(sync.Left(0), 1)
    decision = policy.on(sync.Joined(1), 2)
    assert decision.fold and decision.release == {1}
    assert (
        in_words(decision.reason)
        == "no member is left in round 1: the round ends, and the next one begins with"
        " the workers that have joined"
    )


def test_why_names_the_missing_members_and_the_time_of_the_timer() -> None:
    policy = bsp(0, 1, timer="5s")
    policy.on(sync.MemberContributed(1, 1), 1)
    waiting = policy.why()
    assert in_words(waiting.reason) == "round 1 waits for w0"
    assert (waiting.since_ns, waiting.until_ns) == (0, 5 * SECOND_NS)


@pytest.mark.parametrize("sync", ["bsp", "ssp:3", "ssp-restart:3", "fsp"])
def test_only_asp_may_read_ahead(sync: str) -> None:
    choose_policy(JobSpec(job="j", sync="asp", read_ahead=True))
    with pytest.raises(UsageError, match="--read-ahead needs --sync asp"):
        choose_policy(JobSpec(job="j", sync=sync, read_ahead=True))


@pytest.mark.parametrize("sync", ["asp", "ssp:3", "psp", "fsp", "bspb"])
def test_only_bsp_that_waits_for_all_can_be_deterministic(sync: str) -> None:
    choose_policy(JobSpec(job="j", sync="bsp", timer="off", deterministic=True))
    job = choose_kind(JobSpec(job="j", sync=sync, kind="auto", timer="off", deterministic=True))
    with pytest.raises(UsageError, match="--deterministic needs --sync bsp: under"):
        choose_policy(job)
    with pytest.raises(UsageError, match="it needs --timer off"):
        choose_policy(JobSpec(job="j", sync="bsp", timer="5s", deterministic=True))


@pytest.mark.parametrize("sync", ["bsp", "bspb", "bspv", "fsp"])
def test_policies_with_rounds_fold_statistics(sync: str) -> None:
    choose_policy(JobSpec(job="j", sync=sync, kind="statistics"))


@pytest.mark.parametrize("sync", ["ssp:2", "psp"])
def test_other_policies_refuse_statistics(sync: str) -> None:
    usable = "For kind 'statistics' give --sync bsp or fsp or bspb or bspv"
    with pytest.raises(UsageError, match=f"cannot fold kind 'statistics': it takes .*. {usable}"):
        choose_policy(JobSpec(job="j", sync=sync, kind="statistics"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"updater": "addition"}, "--updater addition needs --kind gradient"),
        ({"wire_dtype": "bfloat16"}, "rounding errors of the differences would add up"),
        ({"push": "int8"}, "--push int8 needs --kind gradient or local"),
        ({"on_nan": "skip"}, "would be missing in every later sum"),
        ({"outer": "nesterov"}, "--outer needs --kind local"),
    ],
)
def test_options_that_do_not_go_with_statistics_are_refused(
    fields: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        choose_policy(JobSpec(job="j", sync="bsp", kind="statistics", **fields))
