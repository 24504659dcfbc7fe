"""Slices are replicated, promoted, demoted and learned. Afterwards the parameters on each server
are those that result if every contribution counts once.

The servers are real slice stores. Their messages to each other are delivered at once, or kept for
the test to deliver. Every slice is one parameter with momentum, so that its optimizer state matters
too.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from polyrhythm.core.effects import Build
from polyrhythm.core.events import Repeated, StepCopied
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.server.slice_store import SliceStore, choose_slice_store
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    JobSpec,
    MemberSpec,
    Message,
    ModelSpec,
    OptimizerSpec,
    Route,
    Seed,
    State,
    TensorSpec,
)

LENGTH = 16
RATE, MOMENTUM = 0.5, 0.5
SPEC = ModelSpec(
    tuple(TensorSpec(name, (LENGTH,), "float32", 0, (1,)) for name in ("first", "second")),
    OptimizerSpec("SGD", ({"lr": RATE, "momentum": MOMENTUM},)),
)
EPOCH = 2
Letter = tuple[int, Message, memoryview | None]


def as_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())


class Site:
    """The servers of a job, by number. `post`: a list that collects their messages, or None to
    deliver messages at once."""

    def __init__(self, routes: Sequence[Route], *, servers: int = 2, **job: Any) -> None:
        self.post: list[Letter] | None = None
        self.tell: Callable[..., None] = self._tell
        self.allocate: Callable[[int], Segment] = lambda nbytes: Segment(nbytes, shared=False)
        spec = JobSpec(job="j", servers=servers, replicas=1, slice_nbytes=4 * LENGTH, **job)
        self.servers = [
            choose_slice_store(spec)(
                server,
                Build(SPEC, routes, EPOCH),
                spec,
                lambda nbytes: self.allocate(nbytes),
                tell=lambda *letter: self.tell(*letter),
            )
            for server in range(servers)
        ]
        for server, store in enumerate(self.servers):
            store.enlist([MemberSpec(0, 1, "anna"), MemberSpec(1, 1, "bert")])
            for slice_, route in enumerate(routes):
                if server in (route.primary, *route.replicas):
                    seed = Seed(slice=slice_, routing=EPOCH)
                    store.seed(seed, as_bytes(torch.zeros(LENGTH)))

    def _tell(self, to: int, message: Message, payload: Sequence[Piece | memoryview]) -> None:
        parts = [part.memory if isinstance(part, Piece) else part for part in payload]
        letter = (to, message, parts[0] if parts else None)
        if self.post is None:
            self.deliver(letter)
        else:
            self.post.append(letter)

    def deliver(self, letter: Letter) -> Any:
        to, message, data = letter
        follower = self.servers[to].follower
        if isinstance(message, Copy):
            return follower.step(message, data)
        assert isinstance(message, State)
        return follower.adopt(message, data)

    def give(
        self, server: int, slice_: int, value: float, *, sequence: int, worker: int = 0, **more: Any
    ) -> Any:
        message = Contribution(
            worker=worker,
            incarnation=1,
            sequence=sequence,
            slice=slice_,
            slices=len(self.servers[server].primary.ids),
            rate=RATE,
            **{"weight": 1.0, **more},
        )
        return self.servers[server].add(message, as_bytes(torch.full((LENGTH,), value)))

    def reroute(self, routes: Sequence[Route], routing: int) -> None:
        for store in self.servers:
            store.reroute(routes, routing)

    def teach(self, primary: int, learner: int, slices: Sequence[int], routing: int) -> None:
        """Let the learner fetch these slices from their primary."""
        fetch = self.servers[learner].follower.fetch(slices, routing)
        self.servers[primary].send_state(learner, fetch.held, routing)

    def state(self, server: int, slice_: int) -> dict[str, float]:
        """Return the state of a slice on this server. All elements of a tensor are equal, so each
        tensor is given as one number."""
        store = self.servers[server]
        mine = slice_ in store.primary.index
        state = (store.primary if mine else store.follower.replicas).export(slice_)
        for tensor in state.values():
            assert tensor.eq(tensor[0]).all()
        return {name: tensor[0].item() for name, tensor in state.items()}


def after(*gradients: float, scale: float = 1.0) -> dict[str, float]:
    """Return the state that plain torch reaches with these steps from zero."""
    parameter = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([parameter], lr=RATE * scale, momentum=MOMENTUM)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    momentum = optimizer.state[parameter]["momentum_buffer"].item() if gradients else 0.0
    return {"parameters": parameter.item(), "momentum_buffer": momentum}


COPIED = (Route(0, (1,)), Route(0, (1,)))
APART = (Route(0, (1,)), Route(1, (0,)))


@pytest.mark.parametrize("sync", ["asp", "ssp:2"])
def test_a_replica_makes_the_scaled_steps_of_its_primary(sync: str) -> None:
    site = Site(COPIED, sync=sync, async_momentum="contribution")
    site.give(0, 0, 1.0, sequence=1)
    site.give(0, 0, 3.0, sequence=2)
    assert site.state(1, 0) == site.state(0, 0) == pytest.approx(after(1.0, 3.0, scale=0.5))


def one_step(site: Site, sequence: int) -> Letter:
    """Return the message that the primary sends for the next step of slice 0."""
    site.post = []
    site.give(0, 0, 1.0, sequence=sequence)
    (letter,) = site.post
    site.post = None
    return letter


def test_a_step_that_comes_twice_is_made_once() -> None:
    site = Site(COPIED, sync="asp")
    letter = one_step(site, 1)
    for _ in range(2):
        site.deliver(letter)
    assert site.state(1, 0) == site.state(0, 0)


def test_a_step_whose_predecessor_is_missing_is_neither_made_nor_confirmed() -> None:
    site = Site((Route(0, (1,)), Route(0)), sync="asp")
    first, second = one_step(site, 1), one_step(site, 2)
    assert site.deliver(second) is None
    assert site.state(1, 0) == after()
    assert isinstance(site.deliver(first), StepCopied)
    assert isinstance(site.deliver(second), StepCopied)
    assert site.state(1, 0) == site.state(0, 0)


def test_a_promoted_replica_knows_what_is_in_its_slices() -> None:
    """The primary died, and a worker sends its contribution again to the promoted replica. The
    contribution counts once."""
    site = Site(COPIED, sync="asp")
    site.give(0, 0, 1.0, sequence=1)
    site.servers[1].reroute((Route(1, since=3), Route(1, since=3)), 3)
    before = site.state(1, 0)
    assert site.give(1, 0, 1.0, sequence=1) == Repeated(0, 1, 1)
    assert site.state(1, 0) == before


def test_a_demoted_primary_keeps_what_it_has() -> None:
    """The new primary has made the same steps, so it confirms that the demoted server's slice is
    equal and sends no tensors."""
    site = Site(COPIED)
    for slice_ in (0, 1):
        site.give(0, slice_, 1.0, sequence=1)
    site.servers[0].fold(1, 0, 0)
    site.reroute((Route(1, (0,), since=3),) * 2, 3)
    site.teach(1, 0, [0, 1], 3)
    assert site.state(0, 0) == site.state(1, 0) == after(1.0)


def test_a_state_that_was_asked_of_another_primary_is_not_adopted() -> None:
    """Server 2 has asked server 0 for the slice. Meanwhile server 1 has become the primary and has
    made a step that server 0 has not made."""
    site = Site((Route(0, (1,)), Route(0, (1,))), servers=3, sync="asp")
    site.reroute((Route(0, (1,), (2,)), Route(0, (1,))), 3)
    site.post = []
    site.teach(0, 2, [0], 3)
    stale, site.post = site.post, None
    routes = (Route(1, (), (2,), since=4), Route(1, since=4))
    for server in (1, 2):
        site.servers[server].reroute(routes, 4)
    site.give(1, 0, 1.0, sequence=1)
    site.teach(1, 2, [0], 4)
    for letter in stale:
        site.deliver(letter)
    assert site.state(2, 0) == site.state(1, 0)


def test_contributions_keep_their_weight_when_slices_move() -> None:
    """A contribution that was added before routes changed counts in the mean with its own
    weight."""
    site = Site(APART)
    site.give(0, 0, 2.0, sequence=1, worker=0, weight=3.0)
    site.servers[0].reroute((Route(0), Route(0, since=3)), 3)
    site.give(0, 0, 6.0, sequence=1, worker=1, weight=1.0)
    site.servers[0].fold(1, 0, 0)
    assert site.state(0, 0) == pytest.approx(after(3.0))


def test_contributions_to_a_slice_that_is_carried_over_are_in_its_next_fold() -> None:
    """Server 0 has folded round 1 of slice 0. Then it becomes the primary of slice 1 and must fold
    round 1 of slice 1. A contribution to slice 0 that arrives in between belongs to round 2."""
    site = Site(APART)
    site.give(0, 0, 1.0, sequence=1)
    site.servers[0].fold(1, 0, 0)
    site.servers[0].reroute((Route(0), Route(0, since=3)), 3)
    site.give(0, 0, 3.0, sequence=2)
    site.give(0, 1, 1.0, sequence=1)
    site.servers[0].fold(1, 0, 0)
    assert site.state(0, 0) == after(1.0)
    assert site.state(0, 1) == after(1.0)
    site.servers[0].fold(2, 0, 0)
    assert site.state(0, 0) == pytest.approx(after(1.0, 3.0))


def test_steps_sent_to_a_learner_do_not_change_afterwards() -> None:
    """The primary does not wait for a learner. The learner may read a step after the primary has
    reused the memory of the aggregate."""
    site = Site((Route(0, (1,)), Route(0, (1,))), servers=3)
    site.reroute((Route(0, (1,), (2,)), Route(0, (1,), (2,))), 3)
    site.teach(0, 2, [0, 1], 3)
    letters: list[Letter] = []
    for round_ in (1, 2, 3):
        site.post = []
        for slice_ in (0, 1):
            site.give(0, slice_, float(round_), sequence=round_)
        site.servers[0].fold(round_, 0, 0)
        letters += [letter for letter in site.post if letter[0] == 2]
    for letter in letters:
        site.deliver(letter)
    assert site.state(2, 0) == site.state(0, 0) == pytest.approx(after(1.0, 2.0, 3.0))


# -- one slice moves, the others stay --------------------------------------------------------------


def memory_of(store: SliceStore, slice_: int) -> list[Any]:
    """Return the objects that make up a slice on its primary. A slice that was copied has other
    objects."""
    index = store.primary.index[slice_]
    held = store.primary.held[index]
    pieces = [store.primary.slots.at(0).pieces[index]]
    return [held, held.parameters, held.aggregate, *pieces]


@pytest.mark.parametrize("updater", ["optimizer", "addition"])
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_slice_that_does_not_move_keeps_its_memory(sync: str, updater: str) -> None:
    site = Site(APART, sync=sync, updater=updater)
    site.give(0, 0, 1.0, sequence=1)
    store = site.servers[0]
    before = memory_of(store, 0)
    store.reroute((Route(0), Route(0, since=3)), 3)
    assert store.primary.ids == (0, 1)
    assert all(old is new for old, new in zip(before, memory_of(store, 0), strict=True))
    store.reroute((Route(0), Route(1, (0,), since=4)), 4)
    assert store.primary.ids == (0,)
    assert all(old is new for old, new in zip(before, memory_of(store, 0), strict=True))


def add_in_a_thread(site: Site, slice_: int, **given: Any) -> bool:
    """Return whether another thread can add a contribution to the slice now."""
    thread = threading.Thread(target=site.give, args=(0, slice_, 1.0), kwargs=given, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_slice_can_be_added_to_while_another_one_is_promoted(sync: str) -> None:
    """The test adds a contribution in the middle of the promotion, while memory for the promoted
    slice is allocated."""
    site = Site(APART, sync=sync)
    added: list[bool] = []

    def allocate(nbytes: int) -> Segment:
        if not added:
            added.append(add_in_a_thread(site, 0, sequence=1))
        return Segment(nbytes, shared=False)

    site.allocate = allocate
    site.servers[0].reroute((Route(0), Route(0, since=3)), 3)
    assert added == [True]
    assert site.give(0, 0, 1.0, sequence=1) == Repeated(0, 1, 1)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_slice_can_be_added_to_while_the_state_of_another_one_is_sent(sync: str) -> None:
    site = Site((Route(0, (1,)), Route(0, (1,), (2,))), servers=3, sync=sync)
    added: list[bool] = []

    def tell(to: int, message: Message, payload: Sequence[Piece | memoryview]) -> None:
        if isinstance(message, State) and not added:
            added.append(add_in_a_thread(site, 0, sequence=1))

    site.tell = tell
    site.teach(0, 2, [1], EPOCH)
    assert added == [True]


@pytest.mark.parametrize("updater", ["optimizer", "addition"])
def test_contributions_survive_a_second_fold_of_their_round(updater: str) -> None:
    """Slice 0 has folded round 1 and has a contribution to round 2. Slice 1 moves to this server,
    which must still fold its round 1. This fold copies slice 0 to the new version and keeps the
    aggregate of slice 0."""
    site = Site(APART, updater=updater)
    store = site.servers[0]
    site.give(0, 0, 1.0, sequence=1)
    store.fold(1, 1, 2)
    store.reroute((Route(0), Route(0, since=3)), 3)
    site.give(0, 0, 3.0, sequence=2)
    site.give(0, 1, 1.0, sequence=1)
    store.fold(1, 2, 3)
    site.give(0, 1, 3.0, sequence=2)
    store.fold(2, 3, 4)
    assert site.state(0, 0) == site.state(0, 1)
