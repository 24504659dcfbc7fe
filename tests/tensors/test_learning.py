"""What a server learns of a slice that it is to copy, tensor by tensor."""

import torch

from polyrhythm.io.segments import Segment
from polyrhythm.runtime.holdings import Holdings
from polyrhythm.wire.messages import (
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    Route,
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


def learner(routing: int) -> Holdings:
    routes = (Route(0, (2,), (1,)),)
    made = Holdings(1, SPEC, routes, routing, JOB, lambda n: Segment(n, shared=False), fresh=False)
    made.follower.fetch((0,), routing)
    return made


def tell(made: Holdings, routing: int, name: str, tensor: torch.Tensor) -> object:
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
    assert torch.equal(made.follower.copies.export(0)["momentum_buffer"], NUMBERS + 1)


def test_what_a_dead_teacher_left_half_told_is_dropped() -> None:
    made = learner(routing=2)
    tell(made, 2, "parameters", NUMBERS)
    made.reroute((Route(0, (2,), (1,)),), 3)
    made.follower.fetch((0,), 3)
    tell(made, 3, "momentum_buffer", NUMBERS)
    assert [routing for _, routing, _ in made.follower.half_told] == [3]
