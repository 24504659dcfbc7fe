"""What a worker sends with `--push int8`: over which links it quantises, and that slices which are
sent again have the same bytes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polyrhythm.core.effects import PushSlices
from polyrhythm.core.link_kinds import LOCAL, TCP
from polyrhythm.core.placement.slices import Layout, lay_out
from polyrhythm.runtime.worker.push import Pushing
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.quantised import read_quantised
from polyrhythm.wire.messages import (
    Contribution,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    Route,
    TensorSpec,
)

LENGTH = 1024
SPEC = ModelSpec(
    (TensorSpec("w", (2 * LENGTH,), "float32", 0, (1,)),), OptimizerSpec("SGD", ({"lr": 0.1},))
)


class Link:
    """A link that records what is sent over it."""

    def __init__(self, *, by_reference: bool) -> None:
        self.kind = LOCAL if by_reference else TCP
        self.sent: list[tuple[Contribution, bytes]] = []

    def send(self, message: Any, payload: Any = (), *, flush: bool = True) -> None:
        self.sent.append((message, b"".join(bytes(piece.memory) for piece in payload)))


class Sender:
    """A worker with two slices, whose servers are at the other ends of `links`."""

    def __init__(self, sync: str = "bsp", **links: Link) -> None:
        self.links = links
        self.machine = SimpleNamespace(worker=0, incarnation=1)
        reached: Any = SimpleNamespace(to=links.get, touch=lambda link: None)
        self.pushing = Pushing(self.machine, reached, shared=False)  # type: ignore[arg-type]
        self.layout: Layout = lay_out(SPEC, 2, 4 * LENGTH)
        self.model = FlatModel(self.layout, [torch.zeros(2 * LENGTH)], "same")
        self.pushing.attach(self.model, self.layout, JobSpec(job="j", push="int8", sync=sync))
        self.route(0, 1)

    def route(self, *primaries: int) -> None:
        self.pushing.prepare([Route(primary) for primary in primaries])

    def contribute(self, seed: int) -> tuple[int, torch.Tensor]:
        """Fill a contribution, and return its buffer and its numbers."""
        numbers = torch.randn(2 * LENGTH, generator=torch.Generator().manual_seed(seed))
        self.pushing.buffers.turn[0].copy_(numbers)
        buffer, nbytes = self.pushing.lend()
        assert nbytes == self.pushing.buffers[buffer].nbytes
        self.pushing.buffers.turn_to_next(2)
        return buffer, numbers

    def push(self, buffer: int, server: int, *slices: int) -> None:
        self.pushing.push(PushSlices(server, slices, 1, 1, 0, 0, buffer, 1.0, (0.1,)))

    def read(self, link: str) -> torch.Tensor:
        message, data = self.links[link].sent[-1]
        assert message.quantised
        return read_quantised(self.layout.slices[message.slice], memoryview(data), torch.float32)


def test_slices_are_quantised_over_tcp_and_exact_over_local_links() -> None:
    sender = Sender(s0=Link(by_reference=False), s1=Link(by_reference=True))
    buffer, numbers = sender.contribute(1)
    sender.push(buffer, 0, 0)
    sender.push(buffer, 1, 1)
    torch.testing.assert_close(sender.read("s0"), numbers[:LENGTH], rtol=0, atol=0.02)
    message, data = sender.links["s1"].sent[0]
    assert not message.quantised
    assert data == numbers[LENGTH:].numpy().tobytes()
    assert sender.pushing.exact_to == ("s1",)


@pytest.mark.parametrize("by_reference", [False, True])
def test_a_slice_that_is_sent_again_has_the_same_bytes(by_reference: bool) -> None:
    """The server of slice 0 dies after two contributions were sent. Its successor may be reached
    over a link of another kind."""
    sender = Sender(s0=Link(by_reference=False), s1=Link(by_reference=by_reference))
    buffers = [sender.contribute(seed)[0] for seed in (1, 2)]
    for buffer in buffers:
        sender.push(buffer, 0, 0)
    sender.route(1, 1)
    for buffer in buffers:
        sender.push(buffer, 1, 0)
    first, again = sender.links["s0"].sent, sender.links["s1"].sent
    assert [data for _, data in again] == [data for _, data in first]
    assert all(message.quantised for message, _ in (*first, *again))
    assert first[0][1] != first[1][1]


def test_an_exact_slice_that_is_sent_again_over_tcp_stays_exact() -> None:
    sender = Sender(s0=Link(by_reference=True), s1=Link(by_reference=False))
    buffer, numbers = sender.contribute(1)
    sender.push(buffer, 0, 0)
    sender.route(1, 1)
    sender.push(buffer, 1, 0)
    message, data = sender.links["s1"].sent[0]
    assert not message.quantised and data == numbers[:LENGTH].numpy().tobytes()
    later, _ = sender.contribute(2)
    sender.push(later, 1, 0)
    assert sender.links["s1"].sent[1][0].quantised, "the next contribution is quantised"


def test_what_a_contribution_leaves_out_is_in_the_next_one() -> None:
    sender = Sender(s0=Link(by_reference=False), s1=Link(by_reference=False))
    read, total = torch.zeros(LENGTH), torch.zeros(LENGTH)
    for seed in range(8):
        buffer, numbers = sender.contribute(seed)
        sender.push(buffer, 0, 0)
        read += sender.read("s0")
        total += numbers[:LENGTH]
    torch.testing.assert_close(read, total, rtol=0, atol=0.02)


def test_a_worker_that_joined_again_carries_no_residual_over() -> None:
    sender = Sender(s0=Link(by_reference=False), s1=Link(by_reference=False))
    sender.contribute(1)
    sender.machine.incarnation = 2
    sender.push(sender.contribute(2)[0], 0, 0)
    fresh = Sender(s0=Link(by_reference=False), s1=Link(by_reference=False))
    fresh.push(fresh.contribute(2)[0], 0, 0)
    assert torch.equal(sender.read("s0"), fresh.read("s0"))


def test_a_worker_that_trains_through_keeps_what_was_left_out_in_its_parameters() -> None:
    """Under psp the difference between the local change and the sent one stays in the parameters
    (`FlatModel.rebase`)."""
    sender = Sender("psp", s0=Link(by_reference=False), s1=Link(by_reference=False))
    buffer, _ = sender.contribute(1)
    sender.push(buffer, 0, 0)
    assert torch.equal(sender.pushing.buffers.sent[0][:LENGTH], sender.read("s0"))
    first = sender.read("s0")
    buffer, _ = sender.contribute(1)
    sender.push(buffer, 0, 0)
    assert torch.equal(sender.read("s0"), first), "there is no other residual"
