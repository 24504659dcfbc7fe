"""How a worker's node performs the effects of its machine, before the user's code continues."""

from collections.abc import Iterator

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.engines.inline import Hub
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages import JobSpec, ModelSpec, OptimizerSpec, Route, TensorSpec

LENGTH = 16
SPEC = ModelSpec(
    (TensorSpec("w", (LENGTH,), "float32", 0, (1,)),), OptimizerSpec("SGD", ({"lr": 0.1},))
)


@pytest.fixture
def node() -> Iterator[WorkerNode]:
    node = WorkerNode("worker-0", "j", Hub(), NodeOptions())
    yield node
    node.close()


def say(node: WorkerNode, *effects: fx.Effect) -> None:
    for effect in effects:
        node._perform("worker", effect)


def test_a_barrier_that_was_called_is_over_with_the_next_version(node: WorkerNode) -> None:
    say(node, fx.Resume(1, stop=False), fx.ContributeNow())
    assert node.loop.hurried
    say(node, fx.Resume(2, stop=False))
    assert not node.loop.hurried


@pytest.mark.parametrize(("rejoined", "carried"), [(False, 0.5), (True, 0.0)])
def test_a_worker_that_joined_again_carries_nothing_over(
    node: WorkerNode, rejoined: bool, carried: float
) -> None:
    """The worker did not wait for its answer: a change of 1.0 was sent, and a change of 0.5 was
    made since. With the same incarnation the worker keeps the 0.5. With a new incarnation it begins
    with the version that it was given."""
    tensor = torch.zeros(LENGTH)
    layout = lay_out(SPEC, 1, 4 * LENGTH)
    model = node._model = FlatModel(layout, [tensor], "same", aside=True)
    node._pushing.attach(model, layout, JobSpec(job="j"))
    node._pushing.prepare([Route(0)])
    model.remember(parameters=True)
    tensor += 1.0
    model.fill_changes(node.push)
    node._push.lend({})
    tensor += 0.5
    version = torch.full((LENGTH,), 10.0)
    model.land(layout.slices[0], memoryview(version.numpy()).cast("B"))
    say(node, fx.Resume(2, stop=False, rejoined=rejoined))
    node.rebase()
    assert tensor.tolist() == [10.0 + carried] * LENGTH
