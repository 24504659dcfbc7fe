"""The buffers from which a worker sends contributions, and the memory into which it receives
versions."""

import pytest
import torch

from polyrhythm.core.effects import Expect
from polyrhythm.core.events import Landed
from polyrhythm.core.link_kinds import TCP
from polyrhythm.core.placement.slices import Layout, lay_out
from polyrhythm.io.link import Payload
from polyrhythm.io.memory import memory_pair
from polyrhythm.runtime.worker.landing import Landing
from polyrhythm.runtime.worker.push import PushBuffers
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages import (
    EVERY_SLICE,
    ModelSpec,
    OptimizerSpec,
    Parameters,
    Route,
    TensorSpec,
)

LENGTH = 16
SPEC = ModelSpec(
    (TensorSpec("w", (2 * LENGTH,), "float32", 0, (1,)),), OptimizerSpec("SGD", ({"lr": 0.1},))
)


def model_of(tensor: torch.Tensor) -> tuple[FlatModel, Layout]:
    """Return a model with two slices, and its layout."""
    layout = lay_out(SPEC, 2, 4 * LENGTH)
    assert len(layout.slices) == 2
    return FlatModel(layout, [tensor], "same"), layout


def test_a_push_buffer_is_not_filled_while_a_server_may_read_it() -> None:
    buffers = PushBuffers()
    buffers.make(*model_of(torch.zeros(2 * LENGTH)), shared=False)
    lent: list[int] = []
    for unacknowledged in (1, 2, 2, 2, 1, 2, 0, 1):
        lent.append(buffers.lend({}))
        buffers.turn_to_next(unacknowledged)
        in_use = lent[len(lent) - unacknowledged :]
        following = next(n for n in range(3) if buffers.turn is buffers[n].tensors)
        assert following not in in_use, f"{unacknowledged} are unacknowledged"


def test_two_push_buffers_are_used_in_turn_while_all_is_acknowledged() -> None:
    buffers = PushBuffers()
    buffers.make(*model_of(torch.zeros(2 * LENGTH)), shared=False)
    lent = []
    for _ in range(4):
        lent.append(buffers.lend({}))
        buffers.turn_to_next(0)
    assert lent == [0, 1, 0, 1]


def test_a_version_is_cut_by_what_its_server_says_it_holds() -> None:
    """According to the routes that the worker knows, the server holds both slices. Routes have
    changed since, and the server's message says that it holds only slice 1."""
    told: list[object] = []
    tensor = torch.zeros(2 * LENGTH)
    model, layout = model_of(tensor)
    landing = Landing(told.append, pytest.fail)
    landing.attach(model, layout, None, in_place=False)
    landing.follow([Route(0), Route(0)])
    landing.expect(Expect(1, None))
    link, _ = memory_pair("worker", "s0")
    version = torch.full((LENGTH,), 7.0)
    message = Parameters(server=0, round=1, slice=EVERY_SLICE, holds=(1,))
    landing.take(link, message, Payload(memoryview(version.view(torch.uint8).numpy())))
    assert [type(event) for event in told] == [Landed]
    assert tensor.tolist() == [0.0] * LENGTH + [7.0] * LENGTH


def test_a_slice_that_is_kept_for_later_does_not_change_with_the_memory_of_its_link() -> None:
    """A link that carries bytes receives the next slice into the same memory."""
    told: list[object] = []
    tensor = torch.zeros(2 * LENGTH)
    model, layout = model_of(tensor)
    landing = Landing(told.append, pytest.fail)
    landing.attach(model, layout, None, in_place=False)
    landing.follow([Route(0), Route(0)])
    landing.expect(Expect(None, 2))
    link, _ = memory_pair("worker", "s0")
    link.kind = TCP
    received = torch.full((LENGTH,), 7.0)
    for number, value in enumerate((7.0, 8.0)):
        received.fill_(value)
        message = Parameters(server=0, round=2, slice=number)
        landing.take(link, message, Payload(memoryview(received.view(torch.uint8).numpy())))
    received.fill_(9.0)
    assert not told
    landing.expect(Expect(2, None))
    assert landing.land_kept()
    assert [type(event) for event in told] == [Landed, Landed]
    assert tensor.tolist() == [7.0] * LENGTH + [8.0] * LENGTH


def test_a_slice_that_began_to_arrive_before_it_was_expected_is_copied_to_its_place() -> None:
    """When its bytes began to arrive, the slice was not expected, so they were received into the
    link's own memory. Another thread runs the machine, which expects the slice from then on."""
    told: list[object] = []
    tensor = torch.zeros(2 * LENGTH)
    model, layout = model_of(tensor)
    landing = Landing(told.append, pytest.fail)
    landing.attach(model, layout, None, in_place=False)
    landing.follow([Route(0), Route(0)])
    link, _ = memory_pair("worker", "s0")
    link.kind = TCP
    version = torch.full((LENGTH,), 7.0)
    data = memoryview(version.view(torch.uint8).numpy())
    message = Parameters(server=0, round=1, slice=1)
    assert landing.place_of(message, len(data)) is None
    landing.expect(Expect(1, None))
    landing.take(link, message, Payload(data))
    assert [type(event) for event in told] == [Landed]
    assert tensor.tolist() == [0.0] * LENGTH + [7.0] * LENGTH
