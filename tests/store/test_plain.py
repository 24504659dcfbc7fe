"""States of torch objects are split into tensors and plain values, so that they are saved without
pickle."""

from collections import Counter, OrderedDict
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.errors import DamagedCheckpoint, UsageError
from polyrhythm.store.checkpoints import read_kept, write_kept
from polyrhythm.store.kept import decode_state, encode_state, put_together, take_apart
from polyrhythm.store.objects import open_store
from tests.store.samples import write_checkpoint

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(SCALARS, inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


def through_json(value: Any) -> Any:
    tree, tensors = take_apart(value, "it")
    return put_together(msgspec.json.decode(msgspec.json.encode(tree)), tensors)


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal and have equal types at every level."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return same([*one.keys(), *one.values()], [*other.keys(), *other.values()])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(VALUES)
def test_plain_values_are_put_together_as_they_were(value: Any) -> None:
    assert same(through_json(value), value)


def test_a_tensor_is_copied_when_it_is_put_together() -> None:
    tensor = torch.randn(3)
    found = through_json({"a": tensor, "b": [tensor]})
    assert torch.equal(found["a"], tensor) and found["a"].data_ptr() != tensor.data_ptr()


def test_keys_that_look_alike_stay_apart() -> None:
    value = {1: torch.ones(1), "1": torch.zeros(1), 1.5: None, None: 3}
    assert same(through_json(value), value)


def make_scheduler(kind: str, optimizer: torch.optim.Optimizer) -> Any:
    schedulers = torch.optim.lr_scheduler
    return {
        "step": lambda: schedulers.StepLR(optimizer, 2),
        "milestones": lambda: schedulers.MultiStepLR(optimizer, [1, 3, 3]),
        "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, 10),
        "one-cycle": lambda: schedulers.OneCycleLR(optimizer, 0.5, total_steps=10),
        "plateau": lambda: schedulers.ReduceLROnPlateau(optimizer),
    }[kind]()


@pytest.mark.parametrize("kind", ["step", "milestones", "cosine", "one-cycle", "plateau"])
def test_a_scheduler_continues_from_its_state(kind: str) -> None:
    def begin() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        return optimizer, make_scheduler(kind, optimizer)

    def steps(optimizer: torch.optim.Optimizer, scheduler: Any, count: int) -> list[float]:
        rates = []
        for _ in range(count):
            optimizer.step()
            scheduler.step(*([1.0] if kind == "plateau" else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    optimizer, scheduler = begin()
    steps(optimizer, scheduler, 3)
    kept = through_json({"o": optimizer.state_dict(), "s": scheduler.state_dict()})
    again, resumed = begin()
    again.load_state_dict(kept["o"])
    resumed.load_state_dict(kept["s"])
    assert steps(again, resumed, 4) == steps(optimizer, scheduler, 4)


def test_the_state_of_an_optimizer_survives_a_store() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    store = open_store("memory://plain")
    store.delete_under("checkpoints")
    state = encode_state({"optimizer": optimizer.state_dict()})
    entry = write_kept(store, 1, memoryview(b"".join(state.buffers)))
    checkpoint = write_checkpoint(store, 1)
    manifest = msgspec.structs.replace(checkpoint.manifest, kept=entry)
    found = decode_state(read_kept(store, type(checkpoint)(1, manifest)))["optimizer"]
    assert same(found, optimizer.state_dict())
    found["state"][0]["exp_avg"].add_(1)  # the restored tensor must be writable


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"f": lambda: 0}, r"it\.f cannot be kept: it is of type function"),
        ([1, {2}], r"it\[1\] cannot be kept: it is of type set"),
        (b"x", "it is of type bytes"),
        ({(1, 2): 3}, "it has a key of type tuple"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, r"it\.a cannot be kept: .* real numbers"),
        ({"h": [torch.ones(2, dtype=torch.uint16)]}, r"it\.h\[0\] cannot be kept: the dtype"),
        (torch.ones(2, 2).to_sparse(), "not a dense tensor"),
        (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), "of type SGD"),
    ],
)
def test_other_values_are_refused_by_their_path(value: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        take_apart(value, "it")


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UsageError, match="levels deep"):
        take_apart(value, "it")


def test_a_counter_stays_a_counter() -> None:
    value = {"milestones": Counter([1, 1, 3])}
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        [],
        ["unknown"],
        ["tensor"],
        ["tensor", "none"],
        ["tensor", ["x"]],
        ["int", "x"],
        ["int", None],
        ["dict", 1],
        ["dict", [["list"], 1]],
        [["list"]],
    ],
)
def test_a_tree_of_another_form_is_refused(tree: Any) -> None:
    with pytest.raises(DamagedCheckpoint, match="unusable"):
        put_together(tree, {})


def test_a_tree_without_end_is_refused() -> None:
    tree: Any = ["list"]
    for _ in range(100):
        tree = ["list", tree]
    with pytest.raises(DamagedCheckpoint, match="levels deep"):
        put_together(tree, {})
