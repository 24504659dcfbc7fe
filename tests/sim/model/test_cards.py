"""Transfers share the network cards of their hosts, fairly and without waste."""

from collections.abc import Sequence
from random import Random

import pytest

from polyrhythm.sim.clock import BEGINNING_NS, Clock
from polyrhythm.sim.model.card import PIECE_NBYTES, Card
from polyrhythm.sim.model.link import HEAD_NBYTES, Channel, link
from polyrhythm.sim.tables import Duration, LinkSettings, Rate
from polyrhythm.wire.messages import Message, Pull

MB, MS = 10**6, 10**6
UNLIMITED = 10**12


class Ear:
    """Notes what arrives, and when, in seconds since the beginning."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.heard: list[tuple[int, float]] = []
        self.ended_s: list[float] = []

    def _now_s(self) -> float:
        return (self.clock.now_ns - BEGINNING_NS) / 1e9

    def receive(self, channel: Channel, batch: Sequence[Message]) -> None:
        self.heard += [(message.round, self._now_s()) for message in batch]

    def on_closed(self, channel: Channel, reason: str) -> None:
        self.ended_s.append(self._now_s())

    def time_of(self, round_: int) -> float:
        return dict(self.heard)[round_]


class Network:
    """Hosts with cards of these rates, and one process on each."""

    def __init__(self, *rates: tuple[float, float], **settings: object) -> None:
        self.clock = Clock()
        self.cards = [Card(self.clock, out, in_) for out, in_ in rates]
        self.ears = [Ear(self.clock) for _ in rates]
        self._table = LinkSettings(
            **{"delay": Duration(0), "bandwidth": Rate(UNLIMITED), **settings}  # type: ignore[arg-type]
        )

    def link(self, near: int, far: int) -> Channel:
        ends = self.ears[near], self.ears[far]
        cards = self.cards[near], self.cards[far]
        return link(self.clock, Random(0), self._table, *ends, ("a", "b"), cards)

    def send(self, near: int, far: int, nbytes: int = MB, round_: int = 1) -> Channel:
        channel = self.link(near, far)
        send(channel, round_, nbytes)
        return channel

    def run(self, until_s: float = 3600) -> None:
        until_ns = BEGINNING_NS + int(until_s * 1e9)
        self.clock.run(until_ns)
        self.clock.now_ns = until_ns


def send(channel: Channel, round_: int, nbytes: int = MB) -> None:
    channel.send(Pull(round=round_), nbytes and nbytes - HEAD_NBYTES)


def piece_s(rate: float) -> float:
    """How long a piece takes, by which a transfer may be late at each card."""
    return PIECE_NBYTES / rate


def test_two_transfers_share_what_their_host_sends() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED), (UNLIMITED, UNLIMITED))
    network.send(0, 1)
    network.send(0, 2)
    network.run()
    late_s = piece_s(MB)
    assert network.ears[1].time_of(1) == pytest.approx(2, abs=late_s)
    assert network.ears[2].time_of(1) == pytest.approx(2, abs=late_s)


def test_two_transfers_share_what_their_host_receives() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED), (UNLIMITED, UNLIMITED))
    network.send(1, 0, round_=1)
    network.send(2, 0, round_=2)
    network.run()
    assert network.ears[0].time_of(1) == pytest.approx(2, abs=piece_s(MB))
    assert network.ears[0].time_of(2) == pytest.approx(2, abs=piece_s(MB))


def test_the_directions_of_a_card_do_not_share() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED))
    channel = network.send(0, 1)
    send(channel.back, 2)
    network.run()
    assert network.ears[1].time_of(1) == pytest.approx(1, abs=piece_s(MB))
    assert network.ears[0].time_of(2) == pytest.approx(1, abs=piece_s(MB))


def test_a_slow_receiver_leaves_the_senders_card_to_others() -> None:
    network = Network((4 * MB, 4 * MB), (UNLIMITED, MB), (UNLIMITED, UNLIMITED))
    network.send(0, 1, nbytes=10 * MB)
    network.send(0, 2, nbytes=30 * MB)
    network.run()
    assert network.ears[1].time_of(1) == pytest.approx(10, rel=0.02)
    assert network.ears[2].time_of(1) == pytest.approx(10, rel=0.02)


def test_a_slow_link_leaves_both_cards_to_others() -> None:
    network = Network((4 * MB, 4 * MB), (4 * MB, 4 * MB), bandwidth=Rate(MB))
    for round_ in range(4):
        network.send(0, 1, nbytes=10 * MB, round_=round_)
    network.run()
    times_s = [time_s for _, time_s in network.ears[1].heard]
    assert times_s == pytest.approx([10] * 4, rel=0.02)


def test_a_finished_transfer_leaves_its_share_to_others() -> None:
    network = Network((2 * MB, 2 * MB), (UNLIMITED, UNLIMITED))
    network.send(0, 1, nbytes=MB, round_=1)
    network.send(0, 1, nbytes=3 * MB, round_=3)
    network.run()
    assert network.ears[1].time_of(1) == pytest.approx(1, abs=piece_s(2 * MB))
    assert network.ears[1].time_of(3) == pytest.approx(2, abs=piece_s(2 * MB))


def test_a_message_without_a_payload_passes_after_one_piece() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED), (UNLIMITED, UNLIMITED))
    network.send(0, 1, nbytes=10 * MB)
    channel = network.link(0, 2)
    network.clock.at(BEGINNING_NS + 1000 * MS, lambda _: send(channel, 7, 0))
    network.run()
    assert network.ears[2].time_of(7) == pytest.approx(1, abs=2 * piece_s(MB))


def test_a_changed_rate_applies_from_the_next_piece_on() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED))
    network.send(0, 1, nbytes=3 * MB)
    network.clock.at(BEGINNING_NS + 1000 * MS, lambda _: network.cards[0].change(2 * MB, None))
    network.run()
    assert network.ears[1].time_of(1) == pytest.approx(2, abs=2 * piece_s(MB))
    assert network.cards[0].incoming.ns_per_byte == 1e9 / MB


def test_the_messages_of_a_channel_keep_their_order_and_tell_when_they_have_left() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED), delay=Duration(5 * MS), loss=0.5)
    channel, left_s = network.link(0, 1), []
    for round_ in range(20):
        send(channel, round_, 10**5)
    channel.when_left(lambda now_ns: left_s.append((now_ns - BEGINNING_NS) / 1e9))
    network.run()
    rounds = [round_ for round_, _ in network.ears[1].heard]
    assert rounds == list(range(20))
    assert left_s == pytest.approx([2], rel=0.01)


def test_what_was_sent_before_a_link_is_closed_arrives_first() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED))
    channel = network.send(0, 1)
    channel.hang_up("done")
    network.run()
    assert network.ears[1].time_of(1) == pytest.approx(1, abs=piece_s(MB))
    assert network.ears[1].ended_s == [network.ears[1].time_of(1)]


def test_a_dead_senders_messages_arrive_if_they_had_left() -> None:
    network = Network((MB, MB), (UNLIMITED, MB / 2))
    channel = network.link(0, 1)
    for round_ in range(3):
        send(channel, round_, 10**5)
    network.clock.at(BEGINNING_NS + 150 * MS, lambda _: channel.break_off("died"))
    network.run()
    assert [round_ for round_, _ in network.ears[1].heard] == [0]
    assert network.ears[1].ended_s == [network.ears[1].time_of(0)]


def test_a_cut_link_loses_what_is_in_flight_and_frees_the_card() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED), (UNLIMITED, UNLIMITED))
    channel = network.send(0, 1, nbytes=100 * MB)
    network.clock.at(BEGINNING_NS + 500 * MS, lambda _: channel.cut("cut"))
    network.clock.at(BEGINNING_NS + 600 * MS, lambda _: network.send(0, 2))
    network.run()
    assert network.ears[1].heard == []
    assert network.ears[0].ended_s == network.ears[1].ended_s == [0.5]
    assert network.ears[2].time_of(1) == pytest.approx(1.6, abs=2 * piece_s(MB))


def test_what_a_silent_link_holds_is_sent_when_it_heals() -> None:
    network = Network((MB, MB), (UNLIMITED, UNLIMITED))
    channel = network.link(0, 1)
    channel.silence()
    send(channel, 1)
    network.clock.at(BEGINNING_NS + 1000 * MS, lambda _: channel.heal())
    network.run()
    assert network.ears[1].time_of(1) == pytest.approx(2, abs=2 * piece_s(MB))


def fluid(rates: list[tuple[float, float]], flows: list[tuple[int, int, int]]) -> list[float]:
    """When each flow (from, to, bytes) ends, if at every moment all rates are max-min fair."""
    left = [float(nbytes) for _, _, nbytes in flows]
    ends = [0.0] * len(flows)
    now = 0.0
    while any(left):
        speed = _max_min(rates, [flow if left[at] else None for at, flow in enumerate(flows)])
        step = min(left[at] / speed[at] for at in range(len(flows)) if left[at])
        now += step
        for at in range(len(flows)):
            if left[at]:
                left[at] -= speed[at] * step
                if left[at] < 1e-3:
                    left[at], ends[at] = 0.0, now
    return ends


def _max_min(
    rates: list[tuple[float, float]], flows: list[tuple[int, int, int] | None]
) -> list[float]:
    """Raise all speeds together, and fix those that pass a card that is full."""
    room = {("out", host): out for host, (out, _) in enumerate(rates)}
    room |= {("in", host): in_ for host, (_, in_) in enumerate(rates)}
    passes = {
        at: (("out", flow[0]), ("in", flow[1])) for at, flow in enumerate(flows) if flow is not None
    }
    speed = [0.0] * len(flows)
    while passes:
        users = {
            card: sum(card in cards for cards in passes.values())
            for card in {card for cards in passes.values() for card in cards}
        }
        full = min(users, key=lambda card: room[card] / users[card])
        share = room[full] / users[full]
        for at in [at for at, cards in passes.items() if full in cards]:
            speed[at] = share
            for card in passes.pop(at):
                room[card] -= share
    return speed


@pytest.mark.parametrize("seed", range(60))
def test_the_last_transfer_ends_when_max_min_fair_rates_would_end_it(seed: int) -> None:
    rng = Random(seed)
    rates = [(rng.uniform(2, 20) * MB, rng.uniform(2, 20) * MB) for _ in range(5)]
    pairs = [(near, far) for near in range(5) for far in range(5) if near != far]
    flows = [(*pair, rng.randint(2, 20) * MB) for pair in rng.sample(pairs, rng.randint(1, 20))]
    network = Network(*rates)
    for number, (near, far, nbytes) in enumerate(flows):
        network.send(near, far, nbytes, round_=number)
    network.run()
    took = dict(entry for ear in network.ears for entry in ear.heard)
    fair = fluid(rates, flows)
    assert max(took.values()) == pytest.approx(max(fair), rel=0.05)
    errors = sorted(abs(took[at] - fair[at]) / fair[at] for at in took)
    assert errors[len(errors) // 2] < 0.05
