"""How long steps take, and which step of a stretch is under way at a given time."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.sim.model.computing import Stretch
from polyrhythm.sim.model.pace import SimulatedPace
from polyrhythm.sim.scenario import parse_scenario
from polyrhythm.sim.tables import WorkersTable

MS = 10**6
S = 10**9


def table(text: str) -> WorkersTable:
    return parse_scenario(f"[job]\nrounds = 1\n[[workers]]\n{text}", "x").workers[0]


def pace(text: str, seed: int = 0) -> SimulatedPace:
    return SimulatedPace(table(text), 0, Random(seed))


def test_a_step_takes_what_the_table_says() -> None:
    assert pace("step = '10ms'").stretch_ns(3, 96, 0, 0) == 30 * MS


@pytest.mark.parametrize("steps", [1, 16])
def test_noise_averages_out_within_a_stretch(steps: int) -> None:
    noisy = pace("step = '10ms'\nstep_noise = 0.2")
    drawn = [noisy.stretch_ns(steps, 0, 0, 0) / steps / MS for _ in range(4000)]
    mean = sum(drawn) / len(drawn)
    spread = (sum((step - mean) ** 2 for step in drawn) / len(drawn)) ** 0.5
    assert mean == pytest.approx(10, rel=0.02)
    assert spread == pytest.approx(2 / steps**0.5, rel=0.1)


def test_a_pareto_tail_is_heavier_than_a_lognormal_one() -> None:
    pareto = pace("step = '10ms'\nstep_pareto = 1.5")
    lognormal = pace("step = '10ms'\nstep_lognormal = 0.5")
    tails = [sorted(p.stretch_ns(1, 0, 0, 0) for _ in range(4000)) for p in (pareto, lognormal)]
    assert tails[0][0] >= 10 * MS, "the shortest"
    assert tails[1][2000] == pytest.approx(10 * MS, rel=0.05), "the median"
    assert tails[0][-10] > 3 * tails[1][-10]


def test_a_machine_that_slows_down() -> None:
    slowing = pace("step = '10ms'\nslows = [{at = '1s', factor = 4.0}, {at = '3s', factor = 0.5}]")
    steps = [slowing.stretch_ns(1, 0, 0, at_ns) / MS for at_ns in (0, S, 2 * S, 3 * S)]
    assert steps == [10, 40, 40, 5]


def test_stalls_are_counted_in_points() -> None:
    stalling = pace("step = '10ms'\nstall = {pause = '32ms', points = 1000}")
    assert stalling.stretch_ns(1, 999, 0, 0) == 10 * MS
    assert stalling.stretch_ns(1, 1, 999, 0) == 42 * MS
    assert stalling.stretch_ns(1, 3000, 1500, 0) == (10 + 3 * 32) * MS


def test_a_tenant_comes_and_goes() -> None:
    shared = pace("step = '10ms'\ntenant = {on = '2s', off = '3s', factor = 3.0}")
    steps = [shared.stretch_ns(1, 0, 0, at * S) / MS for at in range(7)]
    assert steps == [30, 30, 10, 10, 10, 30, 30]


@given(
    begins_ns=st.integers(0, 10**9),
    steps=st.integers(1, 300),
    took_ns=st.integers(1, 10**10),
    at=st.floats(0, 1.2),
)
def test_the_step_that_ends_next(begins_ns: int, steps: int, took_ns: int, at: float) -> None:
    stretch = Stretch(begins_ns, steps, took_ns)
    now_ns = begins_ns + int(took_ns * at)
    step = stretch.current(now_ns)
    assert 1 <= step <= steps
    assert stretch.end_ns(step) >= now_ns or step == steps
    assert step == 1 or stretch.end_ns(step - 1) < now_ns
    assert stretch.end_ns(steps) == begins_ns + took_ns
