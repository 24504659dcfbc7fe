"""How large slices are (`core/placement/division.py`), and where probe slices come from."""

import math

import msgspec
import pytest

from polyrhythm.core.placement.assignment import PROBE_NBYTES, PROBES
from polyrhythm.core.placement.division import (
    LEAST_NBYTES,
    LEAST_SLICES,
    LEAST_SUMMED,
    LOCAL_NBYTES,
    MOST_NBYTES,
    best_nbytes,
    choose_division,
    fit_alpha,
    given_division,
    most_slice_nbytes,
    resume_division,
)
from polyrhythm.core.placement.schemes import MEASURING, SCHEMES
from polyrhythm.core.placement.slices import BUFFERS, lay_out
from polyrhythm.wire.messages import Division, JobSpec, ModelSpec, OptimizerSpec, TensorSpec

MIB = 2**20


def job(**fields: object) -> JobSpec:
    return JobSpec(**{"job": "j", "slice_nbytes": 0, **fields})  # type: ignore[arg-type]


def model(*sizes: int, dtype: str = "float32", group: int = 0) -> ModelSpec:
    tensors = (TensorSpec(f"t{n}", (s,), dtype, group, (1,)) for n, s in enumerate(sizes))
    return ModelSpec(tuple(tensors), OptimizerSpec("SGD", ({"lr": 0.1},)))


def slice_sizes(spec: ModelSpec, division: Division) -> list[int]:
    layout = lay_out(spec, division.servers, division.slice_nbytes, division.probes)
    return [s.length * layout.spaces[s.space].item_nbytes for s in layout.slices]


def test_eleven_slices_on_four_servers_are_twelve() -> None:
    """With 3, 3, 3 and 2 slices the round would take 9% longer than with 3, 3, 3 and 3."""
    nbytes = 11 * LOCAL_NBYTES
    spec = model(nbytes // 4)
    assert len(slice_sizes(spec, Division(4, LOCAL_NBYTES))) == 11
    sizes = slice_sizes(spec, choose_division(job(servers=4), nbytes, machines=False))
    assert len(sizes) == 12 and max(sizes) - min(sizes) <= 64 * 12


@pytest.mark.parametrize("servers", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("mb", [0.3, 5, 21, 93, 228])
@pytest.mark.parametrize("machines", [False, True])
def test_servers_can_hold_equally_many_slices(servers: int, mb: float, machines: bool) -> None:
    nbytes = round(mb * 1e6) // 4 * 4
    division = choose_division(job(servers=servers, workers=6), nbytes, machines=machines)
    sizes = slice_sizes(model(nbytes // 4), division)
    assert len(sizes) % servers == 0
    assert max(sizes) <= (MOST_NBYTES if machines else LOCAL_NBYTES)


def test_slices_between_machines_follow_the_equation() -> None:
    division = choose_division(job(servers=6, workers=12), 93_000_000, machines=True)
    x = best_nbytes(93e6, 12)
    assert 0.9 * x <= division.slice_nbytes <= x and x < LOCAL_NBYTES


@pytest.mark.parametrize("placement", SCHEMES)
def test_servers_with_different_rates_can_hold_different_numbers_of_slices(placement: str) -> None:
    """Of x = 1.1 MB there would be four slices per server, and with most rates one server would hold
    half a slice too much."""
    spec = job(servers=6, workers=2, placement=placement)
    nbytes = 21_900_000
    division = choose_division(spec, nbytes, machines=True)
    per_server = math.ceil(nbytes / 6 / division.slice_nbytes)
    assert per_server == (LEAST_SLICES if placement in MEASURING else 4)
    large = choose_division(spec, 200 * nbytes, machines=True)
    assert large.slice_nbytes > 0.9 * MOST_NBYTES, "there are more slices anyway"


@pytest.mark.parametrize("placement", SCHEMES)
def test_sums_that_are_sent_back_early_have_small_slices(placement: str) -> None:
    """No sum can be pulled before the first slice is pushed, and no slice is pushed while the last sum
    is pulled."""
    spec = job(servers=6, workers=6, placement=placement)
    nbytes = 21_900_000
    division = choose_division(spec, nbytes, machines=True, overlaps=True)
    assert math.ceil(nbytes / 6 / division.slice_nbytes) == LEAST_SUMMED
    local = choose_division(spec, nbytes, machines=False, overlaps=True)
    assert local.slice_nbytes > LOCAL_NBYTES / 2, "over local links no sum is sent early"
    small = choose_division(spec, 200_000, machines=True, overlaps=True)
    assert small.slice_nbytes <= 200_000 / 6 + 64


@pytest.mark.parametrize(("nbytes", "workers"), [(1, 1), (10_000, 10**6), (2**42, 1)])
def test_slices_are_neither_tiny_nor_huge(nbytes: int, workers: int) -> None:
    division = choose_division(job(workers=workers), nbytes, machines=True)
    assert min(nbytes, LEAST_NBYTES) <= max(division.slice_nbytes, nbytes)
    assert 64 <= division.slice_nbytes <= MOST_NBYTES


def test_no_model_is_cut_into_nothing() -> None:
    assert choose_division(job(servers=3), 0, machines=False).slice_nbytes >= 64


def test_a_given_size_is_taken_as_it_is() -> None:
    given = job(slice_nbytes=5_000, servers=3)
    assert given_division(given) == Division(3, 5_000)
    assert choose_division(given, 10**9, machines=True) == Division(3, 5_000)
    assert most_slice_nbytes(given) == 5_000
    assert given_division(job()) is None and most_slice_nbytes(job()) == MOST_NBYTES


def test_a_job_that_resumes_keeps_the_size() -> None:
    recorded = msgspec.structs.replace(model(100), division=Division(4, 777_792, 8))
    assert resume_division(job(servers=2), recorded) == Division(2, 777_792, 0)
    given = job(servers=2, slice_nbytes=128)
    assert resume_division(given, recorded) == Division(2, 128, 0)


def test_only_the_scheme_that_measures_hosts_has_probe_slices() -> None:
    for placement, probes in (("aware", PROBES * 3), ("average", 0), ("elastic", 0), ("ring", 0)):
        chosen = choose_division(job(servers=3, placement=placement), 10**8, machines=True)
        given = given_division(job(servers=3, placement=placement, slice_nbytes=4096))
        assert chosen.probes == probes and given is not None and given.probes == probes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_probe_slices_have_ten_thousand_values_of_float32(dtype: str) -> None:
    sizes = slice_sizes(model(50, 4_000_000, dtype=dtype), Division(4, MIB, 8))
    assert sizes[:8] == [PROBE_NBYTES] * 8 == [40_000] * 8
    assert min(sizes[8:]) > PROBE_NBYTES


def test_the_layout_of_tensors_does_not_depend_on_the_division() -> None:
    """Workers that flatten their models need not know it."""
    spec = model(50, 4_000_000)
    assert lay_out(spec, 4, MIB, 8).places == lay_out(spec, 1, 4096).places


@pytest.mark.parametrize("length", [1, 100, 9_999, 25_000, 100_000])
def test_a_small_model_has_fewer_probe_slices(length: int) -> None:
    sizes = slice_sizes(model(length), Division(4, MIB, 8))
    assert sum(sizes) >= 4 * length and len(sizes) >= min(4, math.ceil(length / 16))
    covered = sum(size for size in sizes if size == PROBE_NBYTES)
    assert covered <= max(PROBE_NBYTES * 4, 4 * length / 2 + 64)


def test_a_model_without_trained_parameters_has_no_probe_slices() -> None:
    assert max(slice_sizes(model(1_000_000, group=BUFFERS), Division(2, MIB, 4))) > PROBE_NBYTES


def rounds(alpha: float, nodes: int, *, overlaps: bool = True) -> list[tuple[float, float]]:
    """The seconds of Eq. 1 for a model of 21 MB. If pushes and pulls do not overlap, no worker waits for
    a whole slice."""
    rate, nbytes = 12.5e6, 21e6
    waits = nodes if overlaps else 0
    return [
        (x, nodes * nbytes / rate + (waits * x + nbytes * alpha / x + alpha) / rate)
        for x in (2.0**power for power in range(14, 24))
    ]


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("alpha", [2e3, 1.2e5])
@pytest.mark.parametrize("nodes", [2, 12])
def test_alpha_is_found_in_the_times_of_rounds(nodes: int, alpha: float, overlaps: bool) -> None:
    assert fit_alpha(rounds(alpha, nodes, overlaps=overlaps), nodes) == pytest.approx(
        alpha, rel=0.02
    )


def test_alpha_is_zero_if_small_slices_cost_nothing() -> None:
    assert fit_alpha([(x, 1.0) for x in (1e4, 1e5, 1e6)], 2) == 0
    assert fit_alpha([(1e4, 0.9), (1e5, 1.0), (1e6, 1.1)], 2) == 0
    assert fit_alpha([(1e4, 0.5), (1e5, 1.0), (1e6, 1.0)], 2) == 0
