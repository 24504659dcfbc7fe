"""A member cannot harm the job with quantised slices (`Contribution.quantised`)."""

import math
import random
import struct
from collections.abc import Iterator

import pytest

from polyrhythm.core.placement.slices import Slice
from tests.hostile.nodes import Site
from tests.hostile.pushing import push, slice_of

SIZE, SCALE = "when it is quantised", "negative, too large or NaN"


@pytest.fixture(scope="module", params=["asp", "bsp"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from made(request.param, "int8")


@pytest.fixture(scope="module")
def exact_site() -> Iterator[Site]:
    yield from made("bsp", "exact")


def made(sync: str, push: str) -> Iterator[Site]:
    site = Site(sync, servers=1, replicas=0, rows=True, push=push)
    try:
        site.trains_on()
        yield site
        assert not site.failures
    finally:
        site.close()


def payload(length: int, scale: float = 0.01, code: int = 1, more: int = 0) -> bytes:
    """A quantised slice of this length, at most one block long. `code`: its last integer."""
    assert length <= 256
    return struct.pack("<f", scale) + bytes(length - 1) + struct.pack("b", code) + bytes(more)


def answer(site: Site, slice_: Slice, data: bytes, **fields: object) -> str:
    """The reason with which the server refuses such a quantised slice."""
    return push(site, slice_, data, quantised=True, **fields)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"more": 1}, SIZE),
        ({"more": 4}, SIZE),
        ({"more": 10_000}, SIZE),
        ({"scale": math.nan}, SCALE),
        ({"scale": math.inf}, SCALE),
        ({"scale": -0.5}, SCALE),
        ({"scale": 3e38}, SCALE),
        ({"code": -128}, "the integer -128"),
    ],
    ids=["byte-more", "block-more", "much-more", "nan", "inf", "negative", "huge", "absent"],
)
def test_a_payload_that_no_worker_sends_is_refused_with_the_reason(
    site: Site, changes: dict[str, float], reason: str
) -> None:
    slice_ = slice_of(site)
    said = answer(site, slice_, payload(slice_.length, **changes))  # type: ignore[arg-type]
    assert reason in said and said.count("\n") == 0, said
    site.trains_on()


def test_a_payload_that_is_too_short_is_refused_with_the_reason(site: Site) -> None:
    said = answer(site, slice_of(site), b"\0\0\0\0\1")
    assert SIZE in said and said.count("\n") == 0, said
    site.trains_on()


def test_quantised_rows_and_parts_are_refused_with_the_reason(site: Site) -> None:
    rows, plain = slice_of(site, rows=True), slice_of(site)
    for slice_, fields in ((rows, {}), (rows, {"indices": 1}), (plain, {"parts": (0,)})):
        said = answer(site, slice_, payload(min(256, slice_.length)), **fields)
        assert "but this job takes exact slices only" in said and said.count("\n") == 0, said
    site.trains_on()


def test_a_quantised_slice_is_refused_if_the_job_has_exact_pushes(exact_site: Site) -> None:
    slice_ = slice_of(exact_site)
    said = answer(exact_site, slice_, payload(slice_.length))
    assert "but this job takes exact slices only" in said and said.count("\n") == 0, said
    exact_site.trains_on()


def test_no_random_payload_ends_the_job(site: Site) -> None:
    rng = random.Random(7)
    for _ in range(20):
        slice_ = slice_of(site, rows=rng.random() < 0.2)
        length = rng.choice((slice_.length + 4, rng.randrange(1, 300)))
        answer(site, slice_, rng.randbytes(length))
    site.trains_on()
