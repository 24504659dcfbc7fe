"""Optimizers are described by specs and built again from them. An optimizer that a spec cannot
describe is refused."""

import pytest
import torch

from polyrhythm.errors import UsageError
from polyrhythm.tensors.optimizers import ELEMENTWISE, build_optimizer, describe_optimizer


def parameters(count: int = 2) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(4)) for _ in range(count)]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_optimizers_are_sent_by_name_and_options(name: str) -> None:
    one, other = parameters()
    kind = getattr(torch.optim, name)
    spec = describe_optimizer(kind([{"params": [one]}, {"params": [other], "lr": 0.5}], lr=0.1))
    assert spec.name == name
    assert [group["lr"] for group in spec.groups] == [0.1, 0.5]
    built = build_optimizer(spec, {0: parameters(3), 1: parameters(1)}, fused=False)
    assert type(built) is kind
    assert [len(group["params"]) for group in built.param_groups] == [3, 1]
    for group, sent in zip(built.param_groups, spec.groups, strict=True):
        for key, value in sent.items():
            assert group[key] == (tuple(value) if isinstance(value, list) else value), key


@pytest.mark.parametrize("name", ["LBFGS", "Adafactor"])
def test_other_optimizers_are_refused_with_a_reason(name: str) -> None:
    optimizer = getattr(torch.optim, name)(parameters())
    with pytest.raises(
        UsageError, match=f"{name} cannot run on a server.*: .*{name} .*--kind local"
    ):
        describe_optimizer(optimizer)


def test_a_users_own_optimizer_is_refused_even_under_a_known_name() -> None:
    mine = type("SGD", (torch.optim.SGD,), {})(parameters(), lr=0.1)
    with pytest.raises(UsageError, match="not one of torch's elementwise optimizers"):
        describe_optimizer(mine)


def test_options_that_are_tensors_are_sent_as_numbers() -> None:
    spec = describe_optimizer(torch.optim.Adam(parameters(), lr=torch.tensor(0.25)))
    assert spec.groups[0]["lr"] == 0.25
    assert spec.groups[0]["betas"] == [0.9, 0.999]


def test_the_spec_has_no_options_of_a_scheduler() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    plain = describe_optimizer(optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert describe_optimizer(optimizer) == plain


def test_groups_without_slices_on_this_server_are_left_out() -> None:
    one, other = parameters()
    spec = describe_optimizer(
        torch.optim.SGD([{"params": [one]}, {"params": [other], "lr": 0.5}], lr=0.1)
    )
    (group,) = build_optimizer(spec, {1: parameters()}, fused=True).param_groups
    assert group["lr"] == 0.5
