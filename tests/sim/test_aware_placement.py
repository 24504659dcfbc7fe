"""Jobs on hosts with unequal network cards: `--placement aware` measures them, and gives slow servers
fewer slices."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.names import LEAD
from polyrhythm.core.placement.assignment import PROBE_NBYTES, PROBES
from polyrhythm.core.placement.load import LoadLine, host_line, water_fill
from polyrhythm.sim.scenario import parse_scenario
from tests.sim.staged_run import Run

SCENARIOS = Path(__file__).parents[2] / "scenarios"
MODEL, SLICE = 12_000_000, 200_000
RATES = (6e6, 24e6, 20e6, 9e6, 15e6, 12e6)
"""The bytes per second of each server's host. Hosts of workers are never the limit."""


def scenario(
    rates: Sequence[float],
    *,
    workers: int = 6,
    rounds: int = 30,
    placement: str = "aware",
    events: Sequence[tuple[float, Mapping[int, float]]] = (),
    job: str = "",
) -> str:
    """`events`: at which times hosts get which new rates."""
    tables = [
        f"""
[job]
rounds = {rounds}
servers = {len(rates)}
placement = "{placement}"
model = "{MODEL}B"
slice = "{SLICE}B"
fold_rate = "1000GB"
heartbeat = "10s"
{job}
[link]
bandwidth = "100Gbit"
[[workers]]
count = {workers}
step = "20ms"
"""
    ]
    hosts = [(f"servers = [{number}]", rate) for number, rate in enumerate(rates)]
    hosts += [(f'workers = ["worker-{number}"]', 4e8) for number in range(workers)]
    tables += [
        f'[[hosts]]\n{who}\noutgoing = "{int(rate)}B"\nincoming = "{int(rate)}B"\n'
        for who, rate in hosts
    ]
    tables += [
        f'[[events]]\nat = "{at_s}s"\nwhat = "rate"\nhost = {host}\n'
        f'outgoing = "{int(rate)}B"\nincoming = "{int(rate)}B"\n'
        for at_s, changed in events
        for host, rate in changed.items()
    ]
    return "".join(tables)


def lines_of(rates: Sequence[float], workers: int = 6) -> list[LoadLine]:
    return [
        host_line(MODEL, rate, workers=0, all_workers=workers, overlaps=False) for rate in rates
    ]


def best_time(rates: Sequence[float], workers: int = 6) -> float:
    lines = lines_of(rates, workers)
    shares = water_fill(lines, MODEL)
    return max(line.seconds(share) for line, share in zip(lines, shares, strict=True))


def held(run: Run) -> list[int]:
    lead = run.simulation.servers[0].machines[LEAD]
    assert isinstance(lead, LeadMachine)
    return list(lead.parts.routing.held(lead.parts.routing.routes).values())


def times(run: Run) -> list[float]:
    return [line["longest_s"] for line in run.lines("rounds")]


def test_rounds_become_as_short_as_the_rates_allow() -> None:
    run = Run(scenario(RATES, rounds=25))
    assert held(run) == pytest.approx(water_fill(lines_of(RATES), MODEL), abs=2 * SLICE)
    assert times(run)[-1] <= best_time(RATES) / 0.9
    equal = Run(scenario(RATES, placement="average", rounds=5))
    assert times(run)[-1] <= 0.5 * times(equal)[-1]


def test_slices_follow_rates_that_are_redrawn() -> None:
    redrawn = RATES[::-1]
    run = Run(scenario(RATES, rounds=30, events=[(25.0, dict(enumerate(redrawn)))]))
    moved = [line["at_s"] for line in run.lines("reassigned")]
    after = min(at_s for at_s in moved if at_s > 25)
    begun = [line["at_s"] for line in run.lines("rounds") if 25 < line["at_s"] < after]
    assert moved[0] < 25 and len(begun) <= 4
    assert times(run)[-1] <= best_time(redrawn) / 0.9


def test_noise_of_ten_percent_moves_next_to_nothing() -> None:
    """After the first assignment, which is made from two measurements, only single slices move, and
    only if that makes rounds shorter by more than 5%."""
    rng = random.Random(11)
    noise = [
        (10.0 + at, {host: rate * rng.uniform(0.9, 1.1) for host, rate in enumerate(RATES)})
        for at in range(60)
    ]
    _, *later = Run(scenario(RATES, rounds=35, events=noise)).lines("reassigned")
    assert len(later) <= 1 and all(line["slices"] <= 2 for line in later)


def test_equal_servers_keep_their_slices() -> None:
    run = Run(scenario([15e6] * 6, rounds=12))
    assert not run.lines("reassigned")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_nodes() -> None:
    """No server has more than a slice beyond what the linear program gives it, and its probe slices. So
    rounds are at most that much longer than the optimum, and shorter than half of those before."""
    text = (SCENARIOS / "200-nodes.toml").read_text()
    scenario = parse_scenario(text, "200-nodes.toml")
    model, slice_ = scenario.job.model, scenario.job.slice
    lines = [
        host_line(model, host.outgoing, workers=0, all_workers=184, overlaps=False)
        for host in scenario.hosts
    ]
    shares = water_fill(lines, model)
    best = max(line.seconds(share) for line, share in zip(lines, shares, strict=True))
    assert best == pytest.approx(2 * 184 * model / sum(host.outgoing for host in scenario.hosts))
    run = Run(text, check=False)
    assert len(run.lines("reassigned")) == 1
    for share, nbytes in zip(shares, held(run), strict=True):
        assert nbytes <= share + slice_ + PROBES * PROBE_NBYTES
    assert times(run)[-1] <= 1.25 * best and times(run)[-1] <= 0.5 * times(run)[1]
