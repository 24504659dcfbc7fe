"""`describe` turns a model and its optimizer into a spec. It refuses a model or an optimizer that a
spec cannot describe."""

import pytest
import torch
from torch import nn

from polyrhythm.core.placement.slices import BUFFERS
from polyrhythm.errors import UsageError
from polyrhythm.learn.models import describe


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def groups_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    spec, tensors = describe(model, optimizer, "gradient")
    assert len(spec.tensors) == len(tensors)
    return {tensor.name: tensor.group for tensor in spec.tensors}


def test_a_spec_has_names_shapes_dtypes_groups_and_numbers() -> None:
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.BatchNorm1d(2).double())
    groups = [{"params": model[1].parameters(), "lr": 0.5}, {"params": model[0].parameters()}]
    spec, tensors = describe(model, torch.optim.SGD(groups, lr=0.1, momentum=0.9), "gradient")
    told = {t.name: (t.shape, t.dtype, t.group) for t in spec.tensors}
    assert told == {
        "0.weight": ((2, 3), "float32", 1),
        "1.weight": ((2,), "float64", 0),
        "1.bias": ((2,), "float64", 0),
        "1.running_mean": ((2,), "float64", BUFFERS),
        "1.running_var": ((2,), "float64", BUFFERS),
        "1.num_batches_tracked": ((), "int64", BUFFERS),
    }
    assert tensors[0] is model[0].weight
    assert spec.optimizer.name == "SGD"
    assert [group["lr"] for group in spec.optimizer.groups] == [0.5, 0.1]
    assert all(group["momentum"] == 0.9 for group in spec.optimizer.groups)


def test_tied_weights_are_listed_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert groups_of(model, sgd(model)) == {"0.weight": 0}


def test_frozen_parameters_and_parameters_outside_the_optimizer_are_listed_as_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].weight, *model[1].parameters()], lr=0.1)
    assert groups_of(model, optimizer) == {
        "0.weight": BUFFERS,
        "1.weight": 0,
        "1.bias": 0,
        "2.weight": BUFFERS,
    }


def test_channels_last_keeps_its_strides_and_gaps_in_memory_are_closed() -> None:
    model = nn.Conv2d(3, 4, 2, bias=False).to(memory_format=torch.channels_last)
    spec, _ = describe(model, sgd(model), "gradient")
    assert spec.tensors[0].strides == model.weight.stride() == (12, 1, 6, 3)
    holey = nn.ParameterList([nn.Parameter(torch.zeros(4, 6)[:, ::2])])
    spec, _ = describe(holey, sgd(holey), "gradient")
    assert spec.tensors[0].strides == (3, 1)


NOT_ELEMENTWISE = [
    ("LBFGS", lambda p: torch.optim.LBFGS(p), "along a line"),
]
if hasattr(torch.optim, "Adafactor"):
    NOT_ELEMENTWISE.append(("Adafactor", lambda p: torch.optim.Adafactor(p), "rows and columns"))
if hasattr(torch.optim, "Muon"):
    NOT_ELEMENTWISE.append(("Muon", lambda p: torch.optim.Muon(p), "orthogonalises"))


@pytest.mark.parametrize(("name", "make", "reason"), NOT_ELEMENTWISE, ids=lambda v: str(v)[:12])
def test_optimizers_that_need_whole_tensors_are_refused(name: str, make, reason: str) -> None:
    model = nn.Linear(4, 4, bias=False)
    with pytest.raises(UsageError, match=f"{name} cannot run on a server.*{reason}"):
        describe(model, make(list(model.parameters())), "gradient")
    spec, _ = describe(model, make(list(model.parameters())), "local")
    assert spec.optimizer.name == name, "kind local keeps it on the worker"


def test_a_users_own_optimizer_is_refused_even_under_a_known_name() -> None:
    class SGD(torch.optim.SGD):
        pass

    model = nn.Linear(4, 4)
    with pytest.raises(UsageError, match="not one of torch's elementwise"):
        describe(model, SGD(model.parameters(), lr=0.1), "gradient")


def test_an_optimizer_with_parameters_of_another_model_is_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(UsageError, match=r"2 parameter\(s\) that are not in the model"):
        describe(model, optimizer, "gradient")


def test_a_model_without_trainable_parameters_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(UsageError, match="no parameter of this model to train"):
        describe(model, sgd(model), "gradient")


@pytest.mark.parametrize("kind", ["gradient", "local"])
def test_a_model_whose_trained_parameters_are_empty_is_refused(kind: str) -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(0, 4)), nn.Parameter(torch.zeros(0))])
    model.register_buffer("offset", torch.ones(3))
    with pytest.raises(UsageError, match=r"empty \(0 elements\)"):
        describe(model, sgd(model), kind)
    model.append(nn.Parameter(torch.zeros(1)))
    describe(model, sgd(model), kind)


def test_a_dtype_that_cannot_be_sent_is_refused() -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with pytest.raises(UsageError, match="complex64"):
        describe(model, sgd(model), "gradient")
