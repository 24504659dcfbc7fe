"""What the lead knows about the network: the rates that receivers report, on one time axis."""

import msgspec
import pytest

from polyrhythm.core.placement.network import Network
from polyrhythm.wire.messages import Burst, Received

S = 10**9
MB = 10**6


def network(**hosts: str) -> Network:
    """A network with these processes, each on a host."""
    made = Network()
    for process, host in hosts.items():
        made.learn(process, host, host)
    return made


def report(
    net: Network,
    target: str,
    *bursts: tuple[str, float, float, float],
    at_s: float,
    lag_s: float = 0.0,
) -> None:
    """`target` has received these bursts: source, first and last second, and megabytes."""
    measured = tuple(
        Burst(source, round(began * S), round(ended * S), round(size * MB))
        for source, began, ended, size in bursts
    )
    net.record(target, Received(round(at_s * S), measured), round((at_s + lag_s) * S))


def test_a_link_has_the_rate_that_its_receiver_measured() -> None:
    net = network(w0="a", s0="b")
    report(net, "s0", ("w0", 1.0, 1.5, 10), at_s=2)
    assert net.rate("a", "b") is None, "not yet in the averages"
    assert net.settle(3 * S)
    assert net.rate("a", "b") == pytest.approx(20 * MB)
    assert net.rate("b", "a") is None
    assert net.throughput("a") == net.throughput("b") == pytest.approx(20 * MB)


def test_links_that_share_a_card_are_added_only_while_they_are_busy_together() -> None:
    together = network(w0="a", w1="b", s0="c")
    report(together, "s0", ("w0", 0, 1, 10), ("w1", 0, 1, 10), at_s=2)
    together.settle(3 * S)
    assert together.throughput("c") == pytest.approx(20 * MB)
    in_turns = network(w0="a", w1="b", s0="c")
    report(in_turns, "s0", ("w0", 0, 1, 10), ("w1", 1, 2, 10), at_s=2)
    in_turns.settle(3 * S)
    assert in_turns.throughput("c") == pytest.approx(10 * MB)


def test_what_a_slow_host_sends_does_not_make_a_fast_one_slow() -> None:
    """Server s0 is fast. For a while it only gets slices from s1, which is slow. Then its own link
    becomes slow."""
    net = network(w0="c", s0="a", s1="b")
    report(net, "s0", ("w0", 0, 1, 40), at_s=2)
    report(net, "s1", ("w0", 0, 1, 1), at_s=2)
    report(net, "w0", ("s0", 1, 2, 40), ("s1", 1, 2, 1), at_s=2)
    net.settle(3 * S)
    for at_s in (5, 10):
        report(net, "s0", ("s1", at_s - 1, at_s, 1), at_s=at_s)
        net.settle(at_s * S)
    assert net.throughput("a") == pytest.approx(40 * MB)
    assert net.throughput("b") == pytest.approx(1 * MB)
    for at_s in (15, 20):
        report(net, "s0", ("w0", at_s - 1, at_s, 2), at_s=at_s)
        net.settle(at_s * S)
    assert net.throughput("a") == pytest.approx(2 * MB)


def test_a_card_that_sends_is_seen_by_the_receivers_together() -> None:
    """Two workers receive from one server at the same time, and their hosts' clocks differ by an
    hour."""
    net = network(w0="a", w1="b", s0="c")
    report(net, "w0", ("s0", 0, 1, 10), at_s=2)
    net.record("w1", Received(3602 * S, (Burst("s0", 3600 * S, 3601 * S, 10 * MB),)), 2 * S)
    net.settle(3 * S)
    assert net.throughput("c") == pytest.approx(20 * MB)


def test_a_late_report_does_not_shift_the_clock_of_its_host() -> None:
    net = network(w0="a", w1="b", s0="c")
    report(net, "w0", at_s=0)
    report(net, "w0", ("s0", 0, 1, 10), at_s=2, lag_s=20)
    report(net, "w1", ("s0", 0, 1, 10), at_s=2)
    net.settle(30 * S)
    assert net.throughput("c") == pytest.approx(20 * MB)


def test_a_host_that_waits_for_a_slow_one_shows_what_it_can_do() -> None:
    """A fast worker sends 10 MB in half a second, and a slow one takes 5 s for as much."""
    net = network(w0="a", w1="b", s0="c")
    report(net, "s0", ("w0", 0, 1.5, 30), ("w1", 0, 5, 10), at_s=6)
    net.settle(7 * S)
    assert net.throughput("c") == pytest.approx(22 * MB)


def test_several_processes_of_a_host_share_its_card() -> None:
    net = network(w0="a", s0="a", w1="b", s1="b")
    report(net, "w0", ("s1", 0, 1, 10), ("s0", 0, 1, 500), at_s=2)
    report(net, "s0", ("w1", 0, 1, 10), at_s=2)
    net.settle(3 * S)
    assert net.throughput("a") == pytest.approx(20 * MB), "s0 to w0 never reaches the card"
    assert net.rate("b", "a") == pytest.approx(20 * MB)
    assert net.rate("a", "a") is None
    assert net.hosts == ("a", "b") and net.host_of("w0") == "a" and net.host_of("w9") == "w9"


@pytest.mark.parametrize(
    "burst",
    [
        Burst("w0", 1 * S, 1 * S, MB),
        Burst("w0", 2 * S, 1 * S, MB),
        Burst("w0", 1 * S, 2 * S, 0),
        Burst("w0", 1 * S, 1 * S + 1, 2**53),
        Burst("w0", 1 * S, 5 * S, MB),
        Burst("w9", 1 * S, 2 * S, MB),
        Burst("s0", 1 * S, 2 * S, MB),
    ],
    ids=["no-time", "negative-time", "no-bytes", "absurd", "in-the-future", "unknown", "itself"],
)
def test_an_absurd_measurement_is_refused(burst: Burst) -> None:
    net = network(w0="a", s0="b")
    net.record("s0", Received(3 * S, (burst,)), 3 * S)
    assert not net.settle(4 * S)
    assert net.rate("a", "b") is None and net.throughput("b") is None


def test_an_old_burst_is_refused() -> None:
    net = network(w0="a", s0="b")
    net.record("s0", Received(1000 * S, (Burst("w0", 1 * S, 2 * S, MB),)), 1000 * S)
    assert not net.settle(1001 * S)


def rounds(net: Network, rates: list[float], first: int) -> list[float]:
    """What the link shows after each round with one of these rates in megabytes per second."""
    seen = []
    for number, rate in enumerate(rates, first):
        report(net, "s0", ("w0", 2 * number, 2 * number + 1, rate), at_s=2 * number + 1)
        net.settle((2 * number + 2) * S)
        seen.append((net.rate("a", "b") or 0) / MB)
    return seen


@pytest.mark.parametrize("new", [3.0, 40.0])
def test_a_new_rate_is_visible_within_two_rounds(new: float) -> None:
    net = network(w0="a", s0="b")
    rounds(net, [20] * 5, 0)
    seen = rounds(net, [new] * 3, 5)
    assert seen[1] == pytest.approx(new) and seen[2] == pytest.approx(new)


def test_noise_and_a_single_outlier_do_not_move_the_average_far() -> None:
    net = network(w0="a", s0="b")
    rounds(net, [20], 0)
    assert all(18 <= seen <= 22 for seen in rounds(net, [22, 18, 23, 17, 21, 24, 16] * 3, 1))
    assert 20 <= rounds(net, [30], 22)[0] <= 26
    assert all(17 <= seen <= 26 for seen in rounds(net, [20, 19, 21], 23))


def test_averages_take_in_short_rounds_together() -> None:
    net = network(w0="a", s0="b")
    report(net, "s0", ("w0", 1.0, 1.1, 1), at_s=1.1)
    assert net.settle(round(1.2 * S))
    report(net, "s0", ("w0", 1.3, 1.4, 1), at_s=1.4)
    assert not net.settle(round(1.5 * S))
    assert net.settle(round(2.2 * S))


def test_what_was_measured_is_forgotten_with_the_last_process_of_a_host() -> None:
    net = network(w0="a", w1="a", s0="b")
    report(net, "s0", ("w0", 0, 1, 10), at_s=2)
    net.settle(3 * S)
    net.forget("w0")
    assert net.rate("a", "b") is not None and net.hosts == ("a", "b")
    report(net, "s0", ("w1", 3, 4, 10), at_s=4)
    net.forget("w1")
    net.forget("w1")
    assert net.rate("a", "b") is None and net.throughput("a") is None and net.hosts == ("b",)
    assert not net.settle(9 * S)


def test_the_network_is_plain_data() -> None:
    net = network(w0="a", s0="b")
    report(net, "s0", ("w0", 0, 1, 10), at_s=2)
    net.settle(3 * S)
    report(net, "s0", ("w0", 3, 4, 5), at_s=5)
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(net), type=Network)
    assert copy.rate("a", "b") == net.rate("a", "b") and copy.hosts == net.hosts
    assert net.settle(6 * S) and copy.settle(6 * S)
    assert copy.rate("a", "b") == net.rate("a", "b")


def test_rates_of_part_of_the_workers_wait_a_minute_for_the_others() -> None:
    net = network(w0="a", w1="b", s0="c")
    report(net, "s0", ("w0", 1.0, 1.5, 10), at_s=2)
    net.on_contribution("w0")
    assert not net.settle(3 * S, ("w0", "w1")) and not net.settle(61 * S, ("w0", "w1"))
    assert net.settle(62 * S, ("w0", "w1")), "w1 hangs, or has nothing to do"
    assert net.rate("a", "c") == pytest.approx(20 * MB)
