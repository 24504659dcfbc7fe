"""Every policy and kind reaches the accuracy of one process: `digits`, with its own number of
passes and one seed.

The accuracy varies by one or two points by chance with one seed and 360 test images, so the margin
is 4 points here. `python -m benchmarks.quality` uses three seeds, every job and the real margins.
"""

from functools import cache

import pytest

from benchmarks.quality.__main__ import POLICIES, WORKERS, Run, accuracy_of, table, too_low
from benchmarks.quality.plain import train

MARGIN = 0.04


@cache
def plain() -> float:
    return train("digits", WORKERS, 0)


@pytest.mark.cluster
@pytest.mark.parametrize("policy", POLICIES)
def test_digits_ends_near_plain_torch(policy: str) -> None:
    assert accuracy_of(Run("digits", policy, 0)) > plain() - MARGIN


def test_a_result_below_its_margin_is_named() -> None:
    results = {
        "digits": {"": [0.97, 0.95], "asp": [0.95, 0.95], "fsp": [0.93, 0.93]},
        "mnist-lr": {"": [0.92], "asp": [0.905], "fsp": [0.915]},
    }
    assert [line.split(":")[0] for line in too_low(results)] == [
        "digits under fsp",
        "mnist-lr under asp",
    ]
    assert table(results, 2).count("too low") == 2
