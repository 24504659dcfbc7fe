"""Aware: the implemented parts of the paper. Each test quotes the sentence or the equation that it
checks.

Two misprints are corrected. The denominator of Eq. 14, and of line 12 of Algorithm 1, must be
(N - 2)(S_min + S_max). And Algorithm 1 must not let a node's load fall below zero, as it does on most
random clusters.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import msgspec
import pytest
from scipy import sparse
from scipy.optimize import linprog

from polyrhythm.core.placement.assignment import PROBE_NBYTES, PROBES, assign_slices
from polyrhythm.core.placement.division import ALPHA, best_nbytes
from polyrhythm.core.placement.load import LoadLine, host_line, water_fill
from polyrhythm.core.placement.network import Network
from polyrhythm.core.placement.ring import Ring
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.wire import messages as m

INSTANCES = 2_000
EQUAL = dict.fromkeys(range(5), LoadLine(0.0, 1.0))


def model(*shapes: tuple[int, ...]) -> m.ModelSpec:
    tensors = tuple(
        m.TensorSpec(f"t{index}", shape, "float32", 0, (1,) * len(shape))
        for index, shape in enumerate(shapes)
    )
    return m.ModelSpec(tensors, m.OptimizerSpec("SGD", ({"lr": 0.1},)))


@pytest.mark.parametrize("granularity", [1024, 4096, 65536])
def test_data_is_segmented_by_the_granularity(granularity: int) -> None:
    """ "First of all, the data are segmented according to the established slice granularity." No
    slice is longer than the granularity, there are about size / granularity slices, and together
    they cover the model exactly once."""
    layout = lay_out(model((100, 300), (7,), (5000,)), 1, granularity)
    (space,) = layout.spaces
    assert all(0 < slice_.length * 4 <= granularity for slice_ in layout.slices)
    assert len(layout.slices) == -(-space.nbytes // granularity)
    covered = [at for s in layout.slices for at in range(s.offset, s.offset + s.length)]
    assert covered == list(range(space.length))


# -- the size of slices (Eqs. 1 to 4) -----------------------------------------------------------


def round_seconds(x: float, model_nbytes: float, nodes: int, rate: float, alpha: float) -> float:
    """ "T = (x / (W / N) + alpha / W) (M / x + 1) + dt" (Eq. 1), without dt."""
    return (x / (rate / nodes) + alpha / rate) * (model_nbytes / x + 1)


@pytest.mark.parametrize(("megabytes", "nodes"), [(21, 6), (93, 12), (228, 12)])
def test_the_best_size_of_a_slice(megabytes: int, nodes: int) -> None:
    """ "When the left part of the equation takes the minimum value, the value of x is
    x = sqrt(M alpha / N)" (Eq. 4), and "the results are not related to W"."""
    nbytes = megabytes * 1e6
    best = best_nbytes(nbytes, nodes)
    for rate in (2.5e6, 27.5e6):
        least = round_seconds(best, nbytes, nodes, rate, ALPHA)
        sizes = [best * 1.05**step for step in range(-100, 101) if step]
        assert all(round_seconds(x, nbytes, nodes, rate, ALPHA) > least for x in sizes)
        # "T = N M / W + N x / W + M alpha / (W x) + alpha / W" (Eq. 2)
        terms = nodes * (nbytes + best) + nbytes * ALPHA / best + ALPHA
        assert least == pytest.approx(terms / rate)
        # "W T / N = x + M alpha / (N x) + M + alpha / N" (Eq. 3): both parts with x are equal
        assert nbytes * ALPHA / (nodes * best) == pytest.approx(best)


def test_figure_6_counts_parameters_and_eq_4_bytes() -> None:
    """ "alpha = 1.2 x 10^5" and "our theoretical value of 5.38" are for the logarithm of the number of
    parameters of ResNet-50 (93 MB) on 12 nodes. A parameter has 4 bytes."""
    assert ALPHA == 1.2e5
    assert math.log10(best_nbytes(93e6, 12) / 4) == pytest.approx(5.38, abs=0.005)


@pytest.mark.parametrize("nodes", [2, 3, 7])
def test_load_is_distributed_fairly_in_advance(nodes: int) -> None:
    """ "The first line of Algorithm 1 distributes the communication load of each node according to the
    principle of fairness in advance." Before training, the primaries are distributed evenly: no server
    has more than one slice more than another."""
    loads = Counter(route.primary for route in Ring(range(nodes)).place(100))
    assert sum(loads.values()) == 100 and len(loads) == nodes
    assert max(loads.values()) - min(loads.values()) <= 1


# -- network awareness (Eqs. 5, 6 and 8) --------------------------------------------------------


def received(*bursts: tuple[str, int, int, int]) -> Network:
    """What the lead knows after s0 has received these bursts: source, first and last millisecond, and
    bytes. Every process has a host of its own."""
    network = Network()
    for process in ("w0", "w1", "s0"):
        network.learn(process, process)
    at_ns = 10**9
    measured = tuple(
        m.Burst(source, began * 10**6, ended * 10**6, nbytes)
        for source, began, ended, nbytes in bursts
    )
    network.record("s0", m.Received(at_ns, measured), at_ns)
    assert network.settle(2 * at_ns)
    return network


@pytest.mark.parametrize("servers", [1, 3, 7])
def test_a_worker_sends_enough_probes_to_each_server(servers: int) -> None:
    """ "The value of the probability partition_rate is necessary to ensure that the number of probe
    packets sent by the worker to each server is not less than probe_num" (Eq. 5). Probe slices are not
    drawn with this probability: there are just as many, and every server gets its own."""
    layout = lay_out(model((2000, 1000)), servers, 200_000, PROBES * servers)
    sizes = [slice_.length * 4 for slice_ in layout.slices]
    assert sizes.count(4 * 10_000) == PROBES * servers == 2 * servers
    shares = dict.fromkeys(range(servers), 0.0) | {0: float(sum(sizes))}
    lines = dict.fromkeys(range(servers), LoadLine(0.0, 1.0))
    chosen = assign_slices(shares, sizes, {}, lines)
    probes = Counter(at for at, nbytes in zip(chosen, sizes, strict=True) if nbytes == PROBE_NBYTES)
    assert all(probes[server] >= PROBES for server in range(servers))


def test_the_rate_of_a_link() -> None:
    """ "s_ij = prob_size / (t_end - t_start)" (Eq. 6)."""
    assert received(("w0", 2, 4, 40_000)).rate("w0", "s0") == pytest.approx(20e6)


def test_the_throughput_of_a_host() -> None:
    """ "S_i = sum of s_ij" (Eq. 8). That is so while the links are busy at the same time. Links that
    share a network card and take turns each show the whole card: their sum would count it twice."""
    assert received(("w0", 0, 2, 40_000), ("w1", 0, 2, 40_000)).throughput("s0") == 40e6
    assert received(("w0", 0, 2, 40_000), ("w1", 4, 6, 40_000)).throughput("s0") == 20e6


# -- the load of a node (Eqs. 7, 9 and 11) ------------------------------------------------------


def messages(held: Sequence[float], workers: Sequence[int], copies: int) -> list[float]:
    """The bytes that each node sends in a round, counted message by message. A copy of a slice goes to
    each of the next `copies` nodes."""
    sent = [0.0] * len(held)
    for node, count in enumerate(workers):
        for server, nbytes in enumerate(held):
            if server != node:
                sent[node] += count * nbytes  # pushed
                sent[server] += count * nbytes  # pulled
    for server, nbytes in enumerate(held):
        sent[server] += copies * nbytes
    return sent


@pytest.mark.parametrize("copies", [0, 1, 2])
@pytest.mark.parametrize(
    "workers", [(1, 1, 1, 1), (0, 0, 3, 1), (2, 1, 0, 5)], ids=["colocated", "dedicated", "mixed"]
)
def test_the_load_of_a_node(workers: tuple[int, ...], copies: int) -> None:
    """ "L_i = M - m_i + (N - 1) m_i", "t_i = L_i / S_i" (Eqs. 7 and 9), and the same counted for
    several workers on a node, none, and replicas."""
    held, rates = (5.0, 0.0, 2.0, 3.0), (1.0, 2.0, 5.0, 10.0)
    sent = messages(held, workers, copies)
    for node, (count, rate) in enumerate(zip(workers, rates, strict=True)):
        line = host_line(10.0, rate, workers=count, all_workers=sum(workers), replicas=copies)
        assert line.seconds(held[node]) == pytest.approx(sent[node] / rate)


def test_time_is_a_linear_function_of_the_load() -> None:
    """ "t_i = M / S_i + (N - 2) / S_i m_i" (Eq. 11)."""
    line = host_line(93e6, 2.5e6, workers=1, all_workers=12)
    assert (line.fixed_s, line.byte_s) == (93e6 / 2.5e6, 10 / 2.5e6)


# -- the division of the load (Eqs. 10 and 12 to 14, Algorithm 1) -------------------------------


def random_lines(rng: random.Random) -> list[LoadLine]:
    """Nodes with a server: colocated, dedicated or mixed, some with a slow link, with and without
    overlapping pushes and pulls. The rates are those of the paper's networks, in parts of a model."""
    nodes = rng.randint(1, 14)
    most_workers = rng.choice([(1, 1), (0, 0), (0, 2)])
    workers = [rng.randint(*most_workers) for _ in range(nodes)]
    everywhere = max(1, sum(workers) + rng.randint(0, 6))
    copies, overlaps = rng.randint(0, 2), rng.random() < 0.5
    lines = []
    for count in workers:
        rate = rng.uniform(20, 220) * rng.choice([1, 1, 1, 0.01])
        line = host_line(
            1.0,
            rate,
            workers=count,
            all_workers=everywhere,
            replicas=copies,
            overlaps=overlaps,
        )
        if rng.random() < 0.2 and line.byte_s > 0:
            line = msgspec.structs.replace(line, most=rate / rng.uniform(2, 50))
        lines.append(line)
    return lines


def best_times(clusters: Sequence[Sequence[LoadLine]], nbytes: float) -> list[float]:
    """For each cluster, the optimum of Eq. 10 by linear programming, with loads that are not negative.
    One program has the variables of all clusters and minimises the sum of their times: no constraint
    contains variables of two clusters, so each time is the least one of its cluster."""
    cost: list[float] = []
    below: list[dict[int, float]] = []
    bounds: list[float] = []
    whole: list[dict[int, float]] = []
    times: list[int] = []
    for lines in clusters:
        time = len(cost)
        times.append(time)
        for node, line in enumerate(lines, time + 1):
            below.append({time: -1.0, node: line.byte_s})
            below.append({time: -1.0, node: -line.away_byte_s})
            bounds += [-line.fixed_s, -line.away_s]
            if math.isfinite(line.most):
                below.append({time: -line.most, node: 1.0})
                bounds.append(0.0)
        whole.append(dict.fromkeys(range(time + 1, time + 1 + len(lines)), 1.0))
        cost += [1.0, *[0.0] * len(lines)]
    found = linprog(
        cost,
        A_ub=matrix(below, len(cost)),
        b_ub=bounds,
        A_eq=matrix(whole, len(cost)),
        b_eq=[nbytes] * len(clusters),
    )
    assert found.success, found.message
    return [float(found.x[time]) for time in times]


def matrix(rows: Sequence[Mapping[int, float]], columns: int) -> sparse.csr_array:
    """A sparse matrix of rows that are given by their columns and numbers."""
    numbers = [number for row in rows for number in row.values()]
    starts = list(accumulate((len(row) for row in rows), initial=0))
    return sparse.csr_array((numbers, list(chain(*rows)), starts), (len(rows), columns))


def test_water_filling_is_the_optimum() -> None:
    """ "min max (M + (N - 2) m_i) / S_i such that M = sum m_i" (Eq. 10)."""
    rng = random.Random(42)
    clusters = [random_lines(rng) for _ in range(INSTANCES)]
    for lines, best in zip(clusters, best_times(clusters, 1.0), strict=True):
        held = water_fill(lines, 1.0)
        assert min(held) >= 0.0 and sum(held) == pytest.approx(1.0)
        slowest = max(line.seconds(part) for line, part in zip(lines, held, strict=True))
        assert slowest == pytest.approx(best, rel=1e-6)


def lines_beside_a_large_host(rng: random.Random) -> list[LoadLine]:
    """One host has at least half of all workers, and links may be slow."""
    beside = [rng.randint(0, 1) for _ in range(rng.randint(1, 8))]
    workers = [max(1, sum(beside) + rng.randint(0, 3)), *beside]
    copies = rng.choice([0, 0, 1])
    lines = []
    for count in workers:
        rate = rng.uniform(20, 220)
        line = host_line(1.0, rate, workers=count, all_workers=sum(workers), replicas=copies)
        if rng.random() < 0.4:
            line = msgspec.structs.replace(line, most=rate / rng.uniform(1, 50))
        lines.append(line)
    rng.shuffle(lines)
    return lines


def test_slow_links_of_a_host_with_half_of_the_workers_are_limits() -> None:
    """A host that is not slower with more slices would hold all of them, if its links could carry them.
    A link that is fast enough changes nothing."""
    rng = random.Random(11)
    limited = 0
    clusters = [lines_beside_a_large_host(rng) for _ in range(INSTANCES)]
    for lines, best in zip(clusters, best_times(clusters, 1.0), strict=True):
        held = water_fill(lines, 1.0)
        assert min(held) >= 0.0 and sum(held) == pytest.approx(1.0)
        slowest = max(line.seconds(part) for line, part in zip(lines, held, strict=True))
        assert slowest == pytest.approx(best, rel=1e-6)
        unlimited = [msgspec.structs.replace(line, most=math.inf) for line in lines]
        free = water_fill(unlimited, 1.0)
        if any(part > line.most * slowest for line, part in zip(lines, free, strict=True)):
            limited += 1
        elif min(line.byte_s for line in lines) <= 0:
            assert held == free
    assert limited > INSTANCES / 5


def algorithm_1(rates: Sequence[float], nbytes: float, *, clamps: bool) -> list[float]:
    """The paper's "Load distribution" with the corrected denominator. `clamps`: no load falls below
    zero, and a node without load gives none away."""
    nodes = len(rates)
    held = [nbytes / nodes] * nodes

    def seconds(node: int) -> float:
        return (nbytes + (nodes - 2) * held[node]) / rates[node]

    for _ in range(20_000):
        givers = [node for node in range(nodes) if held[node] > 0 or not clamps]
        last = max(givers, key=seconds)
        first = min(range(nodes), key=seconds)
        if seconds(last) - seconds(first) < 1e-9 * nbytes / min(rates):
            break
        both = held[last] + held[first]
        gap = nbytes * (rates[last] - rates[first])
        moved = ((nodes - 2) * both * rates[first] - gap) / (
            (nodes - 2) * (rates[first] + rates[last])
        )
        held[first] = min(both, moved) if clamps else moved
        held[last] = both - held[first]
    return held


def test_two_nodes_are_equal_after_eq_14() -> None:
    """ "(M + (N - 2) m'_max) / S_max = (M + (N - 2) m'_min) / S_min, m'_max + m'_min = m_max + m_min"
    (Eqs. 12 and 13). With the printed denominator (N - 2)(S_min - S_max) this is not so."""
    nbytes, nodes, fast, slow, both = 1.0, 5, 9.0, 7.0, 0.6
    top = (nodes - 2) * both * fast - nbytes * (slow - fast)
    right, printed = top / ((nodes - 2) * (fast + slow)), top / ((nodes - 2) * (fast - slow))

    def gap(held: float) -> float:
        return (nbytes + (nodes - 2) * (both - held)) / slow - (nbytes + (nodes - 2) * held) / fast

    assert gap(right) == pytest.approx(0) and abs(gap(printed)) > 0.1


def test_algorithm_1_agrees_with_water_filling() -> None:
    """ "The minimum value of max t_i can be achieved if and only if all points are on the same
    horizontal line." That is so where this line leaves no node a negative load; elsewhere the nodes
    with a load are on it."""
    rng = random.Random(7)
    negative = 0
    for _ in range(300):
        rates = [rng.uniform(20, 220) for _ in range(rng.randint(3, 12))]
        lines = [host_line(1.0, rate, workers=1, all_workers=len(rates)) for rate in rates]
        held, printed = water_fill(lines, 1.0), algorithm_1(rates, 1.0, clamps=False)
        if min(printed) < 0:
            negative += 1
        else:
            assert printed == pytest.approx(held, abs=1e-6)
        assert algorithm_1(rates, 1.0, clamps=True) == pytest.approx(held, abs=1e-6)
    assert negative > 150, "most random clusters have a node for which the paper's load is negative"


def test_without_overlap_equal_shares_are_best_if_slow_nodes_have_workers() -> None:
    """ "The PULL process of data Slice 1" overlaps "the PUSH process of data Slice 2" in the paper. If
    all workers push before any pulls, a node's time is twice that of the larger of the two parts of
    Eq. 7, and the slowest node is fastest with M / N."""
    rates = (220.0, 150.0, 90.0, 20.0)
    held = {}
    for overlaps in (True, False):
        lines = [
            host_line(1.0, rate, workers=1, all_workers=4, overlaps=overlaps) for rate in rates
        ]
        held[overlaps] = water_fill(lines, 1.0)[3]
        slowest = max(line.seconds(0.25) for line in lines)
        assert overlaps or slowest == pytest.approx(*best_times([lines], 1.0))
    assert held == {True: 0.0, False: pytest.approx(0.25)}


@pytest.mark.parametrize("copies", [0, 1])
@pytest.mark.parametrize("workers", [(1, 1, 1, 1), (0, 0, 3, 1)], ids=["colocated", "mixed"])
def test_the_time_of_a_node_without_overlap(workers: tuple[int, ...], copies: int) -> None:
    held, rate, everywhere = (5.0, 0.0, 2.0, 3.0), 4.0, sum(workers)
    for node, count in enumerate(workers):
        line = host_line(
            10.0, rate, workers=count, all_workers=everywhere, replicas=copies, overlaps=False
        )
        pushed, received = count * (10 - held[node]), (everywhere - count) * held[node]
        copied = copies * held[node]
        expected = max(2 * pushed, 2 * received + copied) / rate
        assert line.seconds(held[node]) == pytest.approx(expected)


def test_two_colocated_nodes_share_in_proportion_to_their_rates() -> None:
    """With N = 2, "t_i = M / S_i": no division is faster than another, and Eq. 14 divides by zero."""
    lines = [host_line(9.0, rate, workers=1, all_workers=2) for rate in (1.0, 2.0)]
    assert water_fill(lines, 9.0) == pytest.approx([3.0, 6.0])


def test_one_node_holds_everything() -> None:
    assert water_fill([host_line(9.0, 1.0, workers=1, all_workers=1)], 9.0) == [9.0]
    assert water_fill([host_line(9.0, 1.0, workers=0, all_workers=4)], 9.0) == [9.0]


def test_slices_go_to_the_host_of_most_workers() -> None:
    """With three of four workers on a node, every slice on another node only adds traffic."""
    workers = (3, 1, 0)
    lines = [host_line(6.0, 5.0, workers=count, all_workers=4) for count in workers]
    assert water_fill(lines, 6.0) == [6.0, 0.0, 0.0]


def test_the_gain_of_colocated_nodes_is_bounded() -> None:
    """For N colocated nodes, the time of equal shares is at most 2 - 2 / N times the optimum."""
    rng = random.Random(3)
    for _ in range(300):
        rates = [rng.uniform(1, 200) for _ in range(rng.randint(2, 12))]
        lines = [host_line(1.0, rate, workers=1, all_workers=len(rates)) for rate in rates]
        equal = max(line.seconds(1 / len(rates)) for line in lines)
        held = water_fill(lines, 1.0)
        best = max(line.seconds(part) for line, part in zip(lines, held, strict=True))
        assert best <= equal * (1 + 1e-9) and equal <= best * (2 - 2 / len(rates)) * (1 + 1e-9)


# -- the assignment of slices (Algorithm 2) -----------------------------------------------------


def random_cluster(rng: random.Random) -> tuple[dict[int, LoadLine], list[int]]:
    rates = [rng.uniform(20, 220) for _ in range(rng.randint(1, 9))]
    sizes = [rng.choice([10_000, 64_000, 640_000, 2_000_000]) for _ in range(rng.randint(1, 60))]
    each = rng.randint(0, 1)
    lines = [
        host_line(sum(sizes), rate * 125e3, workers=each, all_workers=max(3, each * len(rates)))
        for rate in rates
    ]
    return dict(enumerate(lines)), sizes


def shares_of(lines: dict[int, LoadLine], sizes: Sequence[int]) -> dict[int, float]:
    return dict(zip(lines, water_fill(list(lines.values()), sum(sizes)), strict=True))


def test_no_load_is_exceeded_by_more_than_a_slice() -> None:
    """ "For each slice, we traverse all current aggregation nodes and select the node with the largest
    remaining load": a node gets slices only while its load is not used up. Probe slices come before."""
    rng = random.Random(5)
    for _ in range(500):
        lines, sizes = random_cluster(rng)
        shares = shares_of(lines, sizes)
        stays = {slice_: (rng.randrange(len(lines)),) for slice_ in range(len(sizes))}
        for known in ({}, stays):
            chosen = assign_slices(shares, sizes, known, lines)
            for server, share in shares.items():
                held = [sizes[slice_] for slice_, at in enumerate(chosen) if at == server]
                probes = [nbytes for nbytes in held if nbytes <= PROBE_NBYTES][:PROBES]
                assert sum(held) <= share + max(sizes) + sum(probes)


def test_a_server_with_its_share_gets_no_more_slices() -> None:
    """Not even if its rounds would still be shorter than those of the others."""
    lines = {0: LoadLine(0.0, 1.0)} | {slow: LoadLine(0.0, 42.0) for slow in range(1, 11)}
    sizes = [100_000] * 13
    chosen = assign_slices(shares_of(lines, sizes), sizes, {}, lines)
    assert chosen.count(0) == 11


def test_every_server_gets_probe_slices() -> None:
    """ "... mainly to maintain the awareness of the network state of idle nodes that are not
    distributed any slices"."""
    sizes = [2_000_000] * 10 + [10_000] * (2 * PROBES)
    chosen = assign_slices({0: sum(sizes), 1: 0.0}, sizes, {}, EQUAL)
    assert Counter(chosen) == {0: 10 + PROBES, 1: PROBES}


def test_slices_that_fit_stay_where_they_are() -> None:
    sizes = [100_000] * 10
    stays = {slice_: (int(slice_ < 5),) for slice_ in range(10)}
    chosen = assign_slices({0: 640_000.0, 1: 360_000.0}, sizes, stays, EQUAL)
    assert [slice_ for slice_, at in enumerate(chosen) if at != stays[slice_][0]] == [4]


def test_there_may_be_more_servers_than_slices() -> None:
    chosen = assign_slices(dict.fromkeys(range(5), 200.0), [500, 500], {}, EQUAL)
    assert len(set(chosen)) == 2


def test_no_slice_too_much_makes_a_slow_server_the_slowest() -> None:
    """A slice that fits into the share of a slow server by more than half would stay there, and the
    round would take a fifth longer than with the slice on a fast server."""
    lines = {0: LoadLine(0.0, 1 / 2.0), 1: LoadLine(0.0, 1 / 10.0)}
    sizes = [100_000] * 9
    shares = shares_of(lines, sizes)
    assert shares == pytest.approx({0: 150_000, 1: 750_000})
    stays = dict.fromkeys(range(4), (0,)) | dict.fromkeys(range(4, 9), (1,))
    chosen = assign_slices(shares, sizes, stays, lines)
    assert Counter(chosen) == {0: 1, 1: 8}


def test_the_slowest_server_has_no_slice_that_another_should_have() -> None:
    """No single slice can go from the slowest server to one with room, such that rounds are
    shorter."""
    rng = random.Random(8)
    for _ in range(300):
        lines, sizes = random_cluster(rng)
        shares = shares_of(lines, sizes)
        stays = {slice_: (rng.choice(list(lines)),) for slice_ in range(len(sizes))}
        chosen = assign_slices(shares, sizes, stays, lines)
        held = dict.fromkeys(lines, 0)
        for server, nbytes in zip(chosen, sizes, strict=True):
            held[server] += nbytes
        slowest = max(lines, key=lambda server: lines[server].seconds(held[server]))
        now_s = lines[slowest].seconds(held[slowest])
        for server, nbytes in zip(chosen, sizes, strict=True):
            if server == slowest and nbytes > PROBE_NBYTES:
                for other in lines.keys() - {slowest}:
                    less_s = lines[slowest].seconds(held[slowest] - nbytes)
                    more_s = lines[other].seconds(held[other] + nbytes)
                    assert held[other] >= shares[other] or max(less_s, more_s) >= now_s
