"""A learner receives the state of a slice tensor by tensor, and refuses states that cannot belong
to the slice."""

from typing import Any

import pytest
import torch

from polyrhythm.core.effects import Build
from polyrhythm.errors import LinkError
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.server.slice_store import SliceStore, choose_slice_store
from polyrhythm.wire.messages import (
    Copy,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    Route,
    SliceStep,
    Stamp,
    State,
    TensorSpec,
)

SPEC = ModelSpec(
    (TensorSpec("weight", (16,), "float32", 0, (1,)),),
    OptimizerSpec("SGD", ({"lr": 0.5, "momentum": 0.9},)),
)
JOB = JobSpec(job="j", servers=3, replicas=1, slice_nbytes=1024)
NUMBERS = torch.arange(16.0)


def learner(routing: int) -> SliceStore:
    routes = (Route(0, (2,), (1,)),)
    made = choose_slice_store(JOB)(
        1, Build(SPEC, routes, routing, fresh=False), JOB, lambda n: Segment(n, shared=False)
    )
    made.follower.fetch((0,), routing)
    return made


def tell(made: SliceStore, routing: int, name: str, tensor: torch.Tensor) -> object:
    message = State(
        routing=routing,
        server=0,
        slice=0,
        slices=1,
        stamp=Stamp(0, 1, 5),
        name=name,
        dtype="float32",
        shape=(16,),
        parts=2,
    )
    return made.follower.adopt(message, memoryview(tensor.numpy()).cast("B"))


def test_a_slice_is_adopted_when_all_of_its_tensors_are_there() -> None:
    made = learner(routing=2)
    assert tell(made, 2, "parameters", NUMBERS) is None
    assert tell(made, 2, "momentum_buffer", NUMBERS + 1) is not None
    assert torch.equal(made.follower.replicas.export(0)["momentum_buffer"], NUMBERS + 1)


def test_an_incomplete_state_of_a_dead_primary_is_dropped() -> None:
    made = learner(routing=2)
    tell(made, 2, "parameters", NUMBERS)
    made.reroute((Route(0, (2,), (1,)),), 3)
    made.follower.fetch((0,), 3)
    tell(made, 3, "momentum_buffer", NUMBERS)
    assert [routing for _, routing, _ in made.follower.incomplete] == [3]


def state(server: int = 0, routing: int = 2, **fields: object) -> State:
    usual: dict[str, object] = {
        "name": "parameters",
        "dtype": "float32",
        "shape": (16,),
        "parts": 2,
    }
    return State(
        routing=routing,
        server=server,
        slice=0,
        slices=1,
        stamp=Stamp(0, 1, 5),
        **{**usual, **fields},
    )


BYTES = memoryview(NUMBERS.numpy()).cast("B")


@pytest.mark.parametrize("fields", [{"server": 2}, {"server": 1}, {"routing": 0}, {"routing": 1}])
def test_a_state_of_a_sender_that_was_not_asked_is_neither_looked_at_nor_kept(
    fields: dict[str, Any],
) -> None:
    """The sender is checked before the contents of the state, so the contents do not matter."""
    made = learner(routing=2)
    before = made.follower.replicas.export(0)["parameters"].clone()
    for wrong in ({}, {"dtype": "complex1024"}, {"shape": (3, -1)}, {"name": "x" * 10**6}):
        assert made.follower.adopt(state(**fields, **wrong), BYTES) is None
    for number in range(1000):
        made.follower.adopt(state(**fields, name=f"{number}"), BYTES)
    assert made.follower.incomplete == {}
    assert torch.equal(made.follower.replicas.export(0)["parameters"], before)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "complex1024"},
        {"dtype": "int64"},
        {"dtype": "float16"},
        {"shape": (4, 4)},
        {"shape": (15,)},
        {"shape": (-16,)},
        {"shape": (2**62, 2**62)},
        {"parts": 1_000},
        {"parts": 0, "part": 0},
        {"part": 2},
        {"part": -1},
        {"name": "x" * 101},
    ],
    ids=str,
)
def test_a_state_that_the_slice_cannot_have_ends_the_link_of_its_primary(
    wrong: dict[str, Any],
) -> None:
    made = learner(routing=2)
    with pytest.raises(LinkError, match="a state of slice 0 that is not valid"):
        made.follower.adopt(state(**wrong), BYTES)
    assert made.follower.incomplete == {}


def test_parameters_of_another_dtype_are_refused() -> None:
    made = learner(routing=2)
    halves = memoryview(NUMBERS.half().numpy()).cast("B")
    with pytest.raises(LinkError, match="its parameters are float16"):
        made.follower.adopt(state(dtype="float16"), halves)


def test_a_state_without_parameters_is_refused() -> None:
    made = learner(routing=2)
    made.follower.adopt(state(name="momentum_buffer"), BYTES)
    with pytest.raises(LinkError, match="that is not valid"):
        made.follower.adopt(state(name="exp_avg", part=1), BYTES)
    assert made.follower.incomplete == {}


def test_an_incomplete_state_is_freed_when_its_link_ends() -> None:
    made = learner(routing=2)
    made.follower.adopt(state(), BYTES)
    assert len(made.follower.incomplete) == 1
    made.follower.forget(1)
    assert len(made.follower.incomplete) == 1
    made.follower.forget(0)
    assert made.follower.incomplete == {}


def step(made: SliceStore, nbytes: int, server: int = 0, worker: int = -1) -> object:
    message = Copy(
        routing=2, server=server, worker=worker, slice=0, stamp=Stamp(0, 1, 6), step=SliceStep(1.0)
    )
    return made.follower.step(message, memoryview(bytes(nbytes)))


def copied() -> SliceStore:
    made = learner(routing=2)
    tell(made, 2, "parameters", NUMBERS)
    tell(made, 2, "momentum_buffer", NUMBERS)
    return made


@pytest.mark.parametrize("worker", [-1, 0], ids=["aggregate", "contribution"])
@pytest.mark.parametrize("nbytes", [0, 4, 60, 68, 4096])
def test_a_step_of_another_size_than_the_slice_ends_the_link_of_its_primary(
    nbytes: int, worker: int
) -> None:
    """If the step were accepted, torch would broadcast a step of one element over the whole
    slice."""
    made = copied()
    with pytest.raises(LinkError, match=f"sent {nbytes} bytes for slice 0, which has 64"):
        step(made, nbytes, worker=worker)
    assert torch.equal(made.follower.replicas.export(0)["parameters"], NUMBERS)
    step(made, 64)


def test_the_sender_of_a_step_is_checked_before_its_size() -> None:
    assert step(copied(), 4, server=2) is None
