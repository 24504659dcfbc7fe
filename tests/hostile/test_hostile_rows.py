"""A member cannot harm the job with gradients of rows (`Contribution.indices`)."""

import random
import struct
from collections.abc import Iterator, Sequence

import pytest

from polyrhythm.wire.messages.fields import MOST_COUNT
from tests.hostile.nodes import Site
from tests.hostile.pushing import push, slice_of

ASCENDING = "do not ascend or are not all between 0 and"
SIZE = "bytes for"


@pytest.fixture(scope="module", params=["asp", "bsp"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(request.param, servers=1, replicas=0, rows=True)
    try:
        made.trains_on()
        yield made
        assert not made.failures
    finally:
        made.close()


def payload(numbers: Sequence[int], width: int) -> bytes:
    """The numbers of rows, and a value for each element of these rows."""
    return struct.pack(f"<{len(numbers)}q", *numbers) + bytes(4 * width * len(numbers))


@pytest.mark.parametrize(
    ("numbers", "indices", "reason"),
    [
        ([0, 1], 3, SIZE),
        ([0, 1, 2], 2, SIZE),
        ([0], MOST_COUNT, SIZE),
        ([0] * 40, 40, SIZE),
        ([0], -2, "cannot be read"),
        ([0], 2 * MOST_COUNT, "cannot be read"),
        ([0, 1_000], 2, ASCENDING),
        ([2**62], 1, ASCENDING),
        ([-1, 0], 2, ASCENDING),
        ([-(2**63)], 1, ASCENDING),
        ([1, 1], 2, ASCENDING),
        ([2, 1], 2, ASCENDING),
        ([0, 2, 1, 3], 4, ASCENDING),
    ],
    ids=[
        *("too-short", "too-long", "huge", "more-rows-than-the-slice", "count-below-none"),
        *("count-beyond-range", "out-of-range", "far-out-of-range", "negative"),
        *("very-negative", "duplicate", "descending", "unsorted-inside"),
    ],
)
def test_rows_that_the_slice_cannot_have_are_refused_with_the_reason(
    site: Site, numbers: list[int], indices: int, reason: str
) -> None:
    slice_ = slice_of(site, rows=True)
    said = push(site, slice_, payload(numbers, slice_.width), indices=indices)
    assert reason in said and said.count("\n") == 0, said
    site.trains_on()


def test_rows_of_a_slice_without_rows_are_refused_with_the_reason(site: Site) -> None:
    said = push(site, slice_of(site), payload([0], 8), indices=1)
    assert "does not consist of rows" in said and said.count("\n") == 0, said
    site.trains_on()


def test_no_random_rows_end_the_job(site: Site) -> None:
    rng = random.Random(5)
    for _ in range(20):
        slice_ = slice_of(site, rows=rng.random() < 0.8)
        numbers = [rng.choice((-1, 0, 1, 2, 3, 7, 8, 2**40)) for _ in range(rng.randrange(9))]
        indices = rng.choice((-1, 0, len(numbers), len(numbers), rng.randrange(12)))
        push(site, slice_, payload(numbers, rng.choice((8, 8, 8, 3))), indices=indices)
    site.trains_on()
