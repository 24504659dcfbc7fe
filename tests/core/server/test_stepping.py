"""The inputs of an optimizer step on a server (weight, rate, scale) are fixed when the step is
made."""

import pytest

from polyrhythm.core.server.stepping import Stepping, power_for
from polyrhythm.wire.messages import JobSpec, ModelPart, ModelSpec, OptimizerSpec, SliceStep


def stepping(members: int, **job: str) -> Stepping:
    made = Stepping(JobSpec(job="j", **job))
    made.enlist(members)
    return made


@pytest.mark.parametrize("sync", ["asp", "ssp:3", "ssp-restart:2"])
def test_a_contribution_folded_alone_is_one_share_of_a_round(sync: str) -> None:
    assert stepping(4, sync=sync).step(2.0, 0.1, 7) == SliceStep(2.0, 0.1, 7, 0.25, 4)


@pytest.mark.parametrize("sync", ["bsp", "psp", "fsp", "bspb", "bspv"])
def test_the_fold_of_a_round_is_a_full_step(sync: str) -> None:
    assert stepping(4, sync=sync).step(2.0, 0.1, 7) == SliceStep(2.0, 0.1, 7, 1.0, 1)


def test_a_share_of_a_round_makes_a_share_of_a_step() -> None:
    step = stepping(4, sync="fsp", kind="gradient").step(2.0, 0.1, 7, 0.25)
    assert step == SliceStep(2.0, 0.1, 7, 0.25, 4), "momentum decays by a quarter of a step too"
    step = stepping(4, sync="fsp", kind="local").step(2.0, 0.1, 7, 0.25)
    assert step == SliceStep(2.0, 0.1, 7, 0.25, 1)


@pytest.mark.parametrize(
    ("kind", "optimizer", "scale"),
    [
        ("gradient", "SGD", 0.25),
        ("gradient", "Adam", 0.5),
        ("gradient", "Adagrad", 1.0),
        ("local", "Adam", 0.25),
    ],
)
def test_the_share_of_a_step_depends_on_the_optimizer(
    kind: str, optimizer: str, scale: float
) -> None:
    spec = ModelSpec((), OptimizerSpec(optimizer, ({"lr": 0.1},)))
    made = Stepping(JobSpec(job="j", sync="fsp", kind=kind), spec)
    made.enlist(4)
    per_round = 4 if kind == "gradient" else 1
    assert made.step(2.0, 0.1, 7, 0.25, group=0) == SliceStep(2.0, 0.1, 7, scale, per_round)


def test_async_scale_is_for_jobs_without_rounds() -> None:
    spec = ModelSpec((), OptimizerSpec("SGD", ({"lr": 0.1},)))
    made = Stepping(JobSpec(job="j", sync="fsp", kind="gradient", async_scale="none"), spec)
    assert made.step(2.0, 0.1, 7, 0.25, group=0).scale == 0.25


@pytest.mark.parametrize(
    ("optimizer", "power"),
    [("SGD", 1.0), ("ASGD", 1.0), ("AdamW", 0.5), ("RMSprop", 0.5), ("Adagrad", 0.0)],
)
def test_the_scale_depends_on_the_optimizer(optimizer: str, power: float) -> None:
    assert power_for("auto", optimizer) == power


def test_the_users_choice_holds_for_every_optimizer() -> None:
    for optimizer in ("SGD", "Adam", "Adagrad", None):
        assert power_for("members", optimizer) == 1.0
        assert power_for("root", optimizer) == 0.5
        assert power_for("none", optimizer) == 0.0


def test_each_model_has_the_scale_of_its_own_optimizer() -> None:
    groups = ({"lr": 0.1}, {"lr": 0.1})
    parts = (ModelPart("a", "SGD", 1, 1), ModelPart("b", "Adam", 1, 1))
    spec = ModelSpec((), OptimizerSpec("SGD", groups), parts=parts)
    made = Stepping(JobSpec(job="j", sync="asp"), spec)
    made.enlist(4)
    assert [made.step(1.0, 0.1, 1, group=group).scale for group in (0, 1)] == [0.25, 0.5]


def test_changes_of_kind_local_are_averaged_whatever_the_workers_optimizer() -> None:
    spec = ModelSpec((), OptimizerSpec("Adam", ({"lr": 0.1},)))
    made = Stepping(JobSpec(job="j", sync="asp", kind="local"), spec)
    made.enlist(4)
    assert made.step(1.0, 0.1, 1, group=0).scale == 0.25


def test_scaling_can_be_turned_off() -> None:
    assert stepping(4, sync="asp", async_scale="none").step(2.0, 0.1, 7).scale == 1.0


def test_a_step_keeps_its_scale_when_the_view_changes() -> None:
    made = stepping(2, sync="asp")
    before = made.step(1.0, 0.1, 1)
    made.enlist(5)
    assert before == SliceStep(1.0, 0.1, 1, 0.5, 2)
    assert made.step(1.0, 0.1, 2) == SliceStep(1.0, 0.1, 2, 0.2, 5)


def test_an_empty_view_counts_as_one_member() -> None:
    assert stepping(0, sync="asp").step(1.0, 0.1, 1).scale == 1.0


def test_an_aggregate_without_contributions_has_no_weight() -> None:
    assert stepping(2, sync="bsp").step(0.0, None, -1) == SliceStep(0.0, 0.0, -1, 1.0)


def test_an_outer_step_has_the_rate_of_the_outer_optimizer() -> None:
    made = stepping(4, sync="bsp", kind="local", outer="nesterov:lr=0.7,momentum=0.9")
    assert made.step(2.0, 0.1, 7, 0.5) == SliceStep(2.0, 0.7, 7, 0.5, 1)
