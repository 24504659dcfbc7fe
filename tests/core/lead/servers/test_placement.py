"""When the lead assigns slices to servers again, according to the routes that it sends.

The throughput of hosts is set directly; servers apply all routes, and learn what they are told to
learn.
"""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.machine import Effect
from polyrhythm.core.placement.assignment import PROBE_NBYTES, PROBES
from polyrhythm.core.placement.load import host_line, water_fill
from polyrhythm.core.placement.network import Average
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, of, sent, spec

MB = 1_000_000
SLICE = 64_000
FAST = 1e9
"""The bytes per second of hosts that have only workers, and are never the limit."""
Rates = Mapping[int, float]


class Cluster(Stage):
    """A running job with a server on each of its hosts, and a worker on each (`colocated`) or on as many
    other hosts."""

    def __init__(
        self,
        hosts: int,
        slices: int = 64,
        *,
        colocated: bool = False,
        workers: int = 0,
        optimizer: str = "SGD",
        **job: Any,
    ) -> None:
        self.routes: tuple[m.Route, ...] = ()
        self.reassigned: list[dict[str, Any]] = []
        self.epochs = 0
        settings = {"placement": "aware", "slice_nbytes": SLICE, "workers": workers or hosts}
        super().__init__(servers=hosts, **{**settings, **job})
        for worker in range(self.job.workers):
            self.hello(f"worker-{worker}")
            self.attach(worker, spec((SLICE // 4 * slices,), optimizer=optimizer))
            host = f"h{worker}" if colocated else f"worker-host-{worker}"
            self.network._host_of[f"w{worker}"] = host
            self.network._sent[host] = Average(FAST)
        for server in range(hosts):
            self.network._host_of[f"s{server}"] = f"h{server}"
        self.from_servers(m.Placed)
        self.from_servers(m.Seeded)
        self.folded(0)
        self.round = 0

    @property
    def network(self) -> Any:
        return self.lead._state.network

    def tell(self, event: Any) -> list[Effect]:
        effects = super().tell(event)
        for place in sent(effects, m.Place):
            self.epochs += place.routes != self.routes
            self.routes = place.routes
        self.reassigned += [
            note.fields for note in of(effects, fx.Note) if note.what == "reassigned"
        ]
        return effects

    def measure(self, rates: Rates) -> None:
        """From now on, what was measured last is that hosts send so many bytes per second."""
        for host, rate in rates.items():
            self.network._sent[f"h{host}"] = Average(rate)

    def round_(self) -> None:
        """One round: every worker contributes, servers fold, apply new routes and learn."""
        self.round += 1
        for worker in range(self.job.workers):
            self.contribute(worker, self.round, self.round)
        self.folded(self.round)
        for _ in range(20):
            epoch = self.routing
            self.from_servers(m.Placed, round=self.round)
            pairs = {(r.primary, learner) for r in self.routes for learner in r.learners}
            for primary, learner in sorted(pairs):
                self.tell(m.CaughtUp(server=primary, peer=learner, routing=self.routing))
            if self.routing == epoch:
                return
        raise AssertionError("the routes never stay the same")

    def run(self, rates: Rates, rounds: int = 8, noise: float = 0.0, seed: int = 1) -> None:
        rng = random.Random(seed)
        for _ in range(rounds):
            self.measure(
                {host: rate * rng.uniform(1 - noise, 1 + noise) for host, rate in rates.items()}
            )
            self.round_()

    @property
    def held(self) -> dict[int, int]:
        return self.lead._state.routing.held(self.routes)


def optimum(rates: Rates, slices: int, workers: int, *, colocated: bool = False) -> list[float]:
    nbytes = slices * SLICE
    each = 1 if colocated else 0
    lines = [host_line(nbytes, rate, workers=each, all_workers=workers) for rate in rates.values()]
    return water_fill(lines, nbytes)


UNEQUAL = dict(enumerate([20.0 * MB, 10 * MB, 15 * MB, 5 * MB]))


def slightly_off(rates: Rates, by: float) -> dict[int, float]:
    """The rates with noise that keeps the measurements from being equal."""
    return {host: rate * (1 + by * (host + 1)) for host, rate in rates.items()}


@pytest.mark.parametrize("colocated", [True, False], ids=["colocated", "dedicated"])
def test_slices_follow_the_throughput(colocated: bool) -> None:
    # without rounds, workers push and pull at the same time
    cluster = Cluster(4, colocated=colocated, workers=4, sync="asp" if colocated else "bsp")
    # before anything is measured
    assert list(cluster.held.values()) == pytest.approx([16 * SLICE] * 4, abs=SLICE)
    cluster.run(UNEQUAL, noise=0.001)
    best = optimum(UNEQUAL, 64, 4, colocated=colocated)
    assert list(cluster.held.values()) == pytest.approx(best, abs=PROBES * PROBE_NBYTES)


def test_hosts_with_and_without_workers() -> None:
    """Two of four hosts with a server also have a worker; two more workers have hosts of their own."""
    cluster = Cluster(4, workers=4, sync="asp")
    for worker in (0, 1):
        cluster.network._host_of[f"w{worker}"] = f"h{worker}"
    cluster.run(UNEQUAL, noise=0.001)
    nbytes = 64 * SLICE
    lines = [
        host_line(nbytes, rate, workers=int(host < 2), all_workers=4)
        for host, rate in UNEQUAL.items()
    ]
    within = SLICE + PROBES * PROBE_NBYTES
    assert list(cluster.held.values()) == pytest.approx(water_fill(lines, nbytes), abs=within)


def test_slices_follow_a_redraw_of_the_rates() -> None:
    cluster = Cluster(4)
    cluster.run(UNEQUAL, noise=0.001)
    redrawn = {host: UNEQUAL[3 - host] for host in UNEQUAL}
    cluster.run(redrawn, rounds=3, noise=0.001)
    best = optimum(redrawn, 64, 4)
    assert list(cluster.held.values()) == pytest.approx(best, abs=SLICE)
    cluster.run(UNEQUAL, rounds=3, noise=0.001)
    assert list(cluster.held.values()) == pytest.approx(optimum(UNEQUAL, 64, 4), abs=SLICE)
    assert len(cluster.reassigned) == 3


@pytest.mark.parametrize("seed", range(5))
def test_noise_moves_no_slice(seed: int) -> None:
    """With noise of 10%, slices move at the start, and while the mean is made from few measurements
    perhaps once more."""
    cluster = Cluster(4)
    cluster.run(UNEQUAL, rounds=20, noise=0.1, seed=seed)
    begun = len(cluster.reassigned)
    cluster.run(UNEQUAL, rounds=150, noise=0.1, seed=seed + 100)
    assert begun <= 2 and len(cluster.reassigned) == begun


@pytest.mark.parametrize("seed", range(5))
def test_on_equal_links_no_slice_moves(seed: int) -> None:
    cluster = Cluster(4)
    cluster.run(dict.fromkeys(range(4), 10.0 * MB), rounds=100, noise=0.1, seed=seed)
    assert not cluster.reassigned


def test_the_journal_has_reason_and_gain() -> None:
    cluster = Cluster(4)
    cluster.run(UNEQUAL, noise=0.001)
    (note,) = cluster.reassigned
    assert note["scheme"] == "aware" and note["slowest"] == "s3"
    assert note["then_s"] < note["now_s"] and note["gain"] > 0.05
    assert note["slices"] > 0 and note["nbytes"] > 0 and note["moving_s"] > 0


def test_what_does_not_pay_is_not_moved() -> None:
    """Near the end of a job, the rounds that are left do not make up for the moves."""
    early, late = (Cluster(4, workers=1, rounds=rounds, optimizer="Adam") for rounds in (1000, 3))
    early.run(UNEQUAL, rounds=3, noise=0.001)
    late.run(UNEQUAL, rounds=3, noise=0.001)
    assert early.reassigned and not late.reassigned


def test_one_measurement_is_not_enough() -> None:
    cluster = Cluster(4)
    cluster.measure(UNEQUAL)
    cluster.round_()
    cluster.round_()  # the same values again are not a second measurement
    assert not cluster.reassigned
    cluster.measure(slightly_off(UNEQUAL, 0.001))
    cluster.round_()
    assert cluster.reassigned


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_absurd_measurements_are_ignored(bad: float) -> None:
    cluster = Cluster(4)
    for by in (0.001, 0.002, 0.003):
        cluster.measure({**slightly_off(UNEQUAL, by), 1: bad})
        cluster.round_()
    # the host without a measurement counts as one of the others
    usual = {**UNEQUAL, 1: 15.0 * MB}
    assert list(cluster.held.values()) == pytest.approx(optimum(usual, 64, 4), abs=SLICE)


def test_without_measurements_no_slice_moves() -> None:
    cluster = Cluster(4)
    cluster.run({}, rounds=30)
    assert not cluster.reassigned


@pytest.mark.parametrize("placement", ["average", "ring"])
def test_other_schemes_ignore_measurements(placement: str) -> None:
    cluster = Cluster(4, placement=placement)
    cluster.run(UNEQUAL, rounds=30, noise=0.01)
    assert not cluster.reassigned and set(cluster.held.values()) == {16 * SLICE}


def test_colocated_servers_keep_equal_shares_with_rounds() -> None:
    """Workers pull after all have pushed, so a slow host with a worker is not faster with fewer
    slices."""
    cluster = Cluster(4, colocated=True)
    cluster.run(UNEQUAL, rounds=20, noise=0.001)
    assert not cluster.reassigned


@pytest.mark.parametrize("hosts", [1, 2])
def test_one_or_two_nodes(hosts: int) -> None:
    """With two colocated nodes no assignment is faster than another."""
    cluster = Cluster(hosts, colocated=True)
    cluster.run({host: UNEQUAL[host] for host in range(hosts)}, rounds=10, noise=0.01)
    assert not cluster.reassigned


def test_more_servers_than_slices() -> None:
    cluster = Cluster(6, slices=2, workers=2)
    slices = len(cluster.routes)
    cluster.run(dict.fromkeys(range(6), 5.0 * MB) | {5: 50.0 * MB}, rounds=10, noise=0.001)
    assert len(cluster.routes) == slices and sum(cluster.held.values()) > 0


def test_a_server_that_joins_later_gets_its_share_when_it_is_measured() -> None:
    cluster = Cluster(3, workers=3)
    cluster.run(UNEQUAL, noise=0.001)
    cluster.job = m.JobSpec(job="j", servers=4, workers=3)  # from_servers speaks for all four
    cluster.server(-1, name="s3")
    cluster.network._host_of["s3"] = "h3"
    cluster.run({**UNEQUAL, 3: 0.2 * MB}, rounds=12, noise=0.001)
    # it has probe slices only, so that its link is measured
    assert 0 < cluster.held[3] <= PROBES * PROBE_NBYTES
    assert sum(cluster.held.values()) == 64 * SLICE


def test_a_restored_lead_goes_on_from_what_was_measured() -> None:
    cluster = Cluster(4)
    cluster.measure(UNEQUAL)
    cluster.round_()
    cluster.lead = LeadMachine.restore(cluster.job, cluster.lead.snapshot())
    cluster.measure(slightly_off(UNEQUAL, 0.001))
    cluster.round_()
    assert len(cluster.reassigned) == 1


def test_moves_do_not_change_their_goal() -> None:
    """While slices move, new measurements do not give them other goals."""
    cluster = Cluster(4, slices=600)
    cluster.run(UNEQUAL, rounds=3, noise=0.001)
    assert len(cluster.reassigned) == 1
    goal = cluster.lead.parts.routing.goal
    cluster.run(UNEQUAL, rounds=6, noise=0.001)
    assert [route.primary for route in cluster.routes] == [route.primary for route in goal]


def test_elastic_fits_times_of_arrival() -> None:
    """The contributions of a round arrive later at a slow server. From 20 rounds, `elastic` gives
    it fewer slices, and equal times in the end."""
    cluster = Cluster(2, placement="elastic", workers=1)
    rates = (4.0 * MB, 1.0 * MB)
    for _ in range(130):
        cluster.round += 1
        trailer = m.Trailer(
            **cluster.who(0), sequence=cluster.round, report=m.ContributionReport(weight=1.0)
        )
        cluster.tell(trailer)
        begun_ns = cluster.now_ns
        times = sorted((0.01 + cluster.held[server] / rates[server], server) for server in range(2))
        for seconds, server in times:
            cluster.now_ns = max(cluster.now_ns, begun_ns + int(seconds * 1e9))
            arrived = m.Arrived(
                server=server,
                **cluster.who(0),
                sequence=cluster.round,
                round=cluster.round,
                routing=cluster.routing,
            )
            cluster.tell(arrived)
        cluster.folded(cluster.round)
        for _ in range(6):
            cluster.from_servers(m.Placed, round=cluster.round)
            for route in cluster.routes:
                for learner in route.learners:
                    caught_up = m.CaughtUp(
                        server=route.primary, peer=learner, routing=cluster.routing
                    )
                    cluster.tell(caught_up)
    assert cluster.reassigned and cluster.held[0] / cluster.held[1] == pytest.approx(4.0, rel=0.15)
