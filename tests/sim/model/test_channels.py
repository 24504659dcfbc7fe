"""The arithmetic of a modelled link: order, bandwidth, delay, loss, and how it ends."""

from collections.abc import Sequence
from random import Random

import pytest

from polyrhythm.sim.clock import BEGINNING_NS, Clock
from polyrhythm.sim.model.link import HEAD_NBYTES, Channel, link
from polyrhythm.sim.tables import Duration, LinkSettings, Rate
from polyrhythm.wire.messages import Message, Pull

MS = 10**6


class Ear:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.heard: list[tuple[int, int]] = []
        self.parcels = 0
        self.ended: list[tuple[int, str]] = []

    def receive(self, way: Channel, parcel: Sequence[Message]) -> None:
        self.parcels += 1
        for message in parcel:
            self.heard.append((message.round, self.clock.now_ns - BEGINNING_NS))

    def on_closed(self, way: Channel, reason: str) -> None:
        self.ended.append((self.clock.now_ns - BEGINNING_NS, reason))


class Wire:
    """A link of 1 MB/s with a delay of 5 ms, unless the arguments say otherwise."""

    def __init__(self, seed: int = 0, **table: object) -> None:
        self.clock = Clock()
        self.near, self.far = Ear(self.clock), Ear(self.clock)
        quality = LinkSettings(**{"delay": Duration(5 * MS), "bandwidth": Rate(10**6), **table})  # type: ignore[arg-type]
        self.out = link(self.clock, Random(seed), quality, self.near, self.far, ("a", "b"))

    def send(self, round_: int, nbytes: int = 1000 - HEAD_NBYTES) -> int:
        """Send a frame. The default size takes 1 ms to send."""
        return self.out.send(Pull(round=round_), nbytes) - BEGINNING_NS

    def run(self, until_ns: int = 3600 * 10**9) -> None:
        self.clock.run(BEGINNING_NS + until_ns)
        self.clock.now_ns = BEGINNING_NS + until_ns


def test_a_message_takes_its_bytes_and_the_delay() -> None:
    wire = Wire()
    assert wire.send(1) == 1 * MS
    wire.run()
    assert wire.far.heard == [(1, 6 * MS)]


def test_a_word_that_waits_for_the_link_leaves_with_what_it_waits_for() -> None:
    wire = Wire()
    wire.send(1)
    assert wire.send(2, nbytes=0) == 1 * MS
    assert wire.send(3) == 2 * MS
    wire.run()
    assert wire.far.heard == [(1, 6 * MS), (2, 6 * MS), (3, 7 * MS)]
    assert wire.far.parcels == 2


def test_what_is_sent_at_the_time_of_an_arrival_is_another_parcel() -> None:
    wire = Wire(delay=Duration(0), bandwidth=Rate(10**15))
    wire.send(1)
    wire.clock.run(BEGINNING_NS)
    wire.send(2)
    wire.run()
    assert wire.far.heard == [(1, 0), (2, 0)]
    assert wire.far.parcels == 2


def test_a_busy_link_queues_and_the_delay_is_shared() -> None:
    wire = Wire()
    assert [wire.send(1), wire.send(2), wire.send(3)] == [1 * MS, 2 * MS, 3 * MS]
    wire.run()
    assert wire.far.heard == [(1, 6 * MS), (2, 7 * MS), (3, 8 * MS)]


def test_both_ways_are_busy_apart() -> None:
    wire = Wire()
    wire.send(1)
    wire.out.back.send(Pull(round=2), 1000 - HEAD_NBYTES)
    wire.run()
    assert wire.far.heard == [(1, 6 * MS)]
    assert wire.near.heard == [(2, 6 * MS)]


@pytest.mark.parametrize("seed", range(10))
def test_loss_costs_time_outs_and_neither_order_nor_messages(seed: int) -> None:
    wire = Wire(seed, loss=0.5, timeout=Duration(200 * MS))
    for round_ in range(40):
        wire.send(round_)
    wire.run()
    assert [round_ for round_, _ in wire.far.heard] == list(range(40))
    times = [at_ns for _, at_ns in wire.far.heard]
    assert times == sorted(times)
    on_time = [at_ns == (6 + round_) * MS for round_, at_ns in wire.far.heard]
    assert not all(on_time)
    assert times[-1] > 200 * MS


def test_hanging_up_lets_everything_arrive_first() -> None:
    wire = Wire()
    wire.send(1)
    wire.send(2)
    wire.out.hang_up("done")
    wire.run()
    assert wire.far.heard == [(1, 6 * MS), (2, 7 * MS)]
    assert wire.far.ended == [(7 * MS, "done")]
    assert not wire.near.ended


def test_what_had_left_before_a_death_arrives_and_the_rest_never() -> None:
    wire = Wire()
    for round_ in range(5):
        wire.send(round_)
    wire.run(until_ns=2 * MS + MS // 2)
    wire.out.break_off("died")
    wire.run()
    assert wire.far.heard == [(0, 6 * MS), (1, 7 * MS)]
    assert wire.far.ended == [(7.5 * MS, "died")]


def test_no_message_arrives_after_either_end_closed() -> None:
    wire = Wire()
    wire.out.hang_up("done")
    wire.out.back.send(Pull(round=1))
    wire.run()
    assert not wire.near.heard, "who hung up listens no more"
    assert wire.far.ended
    assert wire.send(2) == wire.clock.now_ns - BEGINNING_NS
    wire.run()
    assert not wire.far.heard
