"""`--global-batch`: the shares of the members add up to the points of a round."""

import pytest

from polyrhythm.core.sync.policy import (
    Joined,
    Left,
    MemberAbstained,
    MemberContributed,
    Opened,
    SyncPolicy,
)
from polyrhythm.core.sync.registry import choose_policy, with_global_batch
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec


def opened(points: int, members: int) -> SyncPolicy:
    policy = choose_policy(JobSpec(job="", sync=f"bspg:{points}", timer="off", min_batch=1))
    for worker in range(members):
        policy.on(Joined(worker), 0)
    return policy


def shares(policy: SyncPolicy, *workers: int) -> list[int]:
    return [policy.terms(worker).points for worker in workers]


def close(policy: SyncPolicy, round_: int, *workers: int, abstain: int | None = None) -> None:
    """All these workers contribute, and the round is folded. The lead releases them before it opens
    the next round."""
    for worker in workers:
        told = (
            MemberAbstained if worker == abstain else lambda each: MemberContributed(each, round_)
        )
        decision = policy.on(told(worker), 0)
    assert decision.fold


def test_shares_add_up_whatever_the_number_of_members() -> None:
    assert shares(opened(10, 1), 0) == [10]
    assert shares(opened(10, 3), 0, 1, 2) == [4, 3, 3]
    assert shares(opened(10, 4), 0, 1, 2, 3) == [3, 3, 2, 2]


def test_shares_grow_when_a_member_leaves_and_shrink_when_one_joins() -> None:
    policy = opened(60, 3)
    assert shares(policy, 0, 1, 2) == [20, 20, 20]
    policy.on(Opened(0), 0)
    policy.on(Left(1), 0)
    close(policy, 1, 0, 2)
    assert shares(policy, 0, 2) == [30, 30]
    policy.on(Opened(1), 0)
    policy.on(Joined(5), 0)
    close(policy, 2, 0, 2)
    assert shares(policy, 0, 2, 5) == [20, 20, 20]


def test_a_member_without_points_in_two_rounds_gives_its_share_to_the_others() -> None:
    policy = opened(60, 3)
    policy.on(Opened(0), 0)
    close(policy, 1, 0, 1, 2, abstain=1)
    assert shares(policy, 0, 1, 2) == [20, 20, 20]
    policy.on(Opened(1), 0)
    close(policy, 2, 0, 1, 2, abstain=1)
    assert shares(policy, 0, 2) == [30, 30]
    policy.on(Opened(2), 0)
    close(policy, 3, 0, 1, 2)
    assert shares(policy, 0, 1, 2) == [20, 20, 20]


@pytest.mark.parametrize(
    ("sync", "why"),
    [
        ("fsp", "the clock decides"),
        ("asp", "there are no rounds"),
        ("ssp:2", "there are no rounds"),
        ("psp", "the speed of the workers decides"),
        ("bspv", "the lead chooses"),
        ("bspb", "the lead chooses"),
    ],
)
def test_other_policies_refuse_a_global_batch(sync: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"--global-batch needs --sync bsp: under {sync} {why}"):
        with_global_batch(sync, 64)


def test_a_global_batch_must_suffice_for_all_workers() -> None:
    with pytest.raises(UsageError, match="--global-batch 5 is too small for 3 workers"):
        choose_policy(JobSpec(job="", sync="bspg:5", workers=3))
    with pytest.raises(UsageError, match="it must be at least 1"):
        with_global_batch("bsp", 0)
