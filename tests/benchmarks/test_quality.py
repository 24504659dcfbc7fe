"""After the same number of passes over `digits`, every policy and kind reaches the accuracy of
training in one process.

The tests make six passes, and more with policies that need more (PASSES): fsp with gradients, for
example, makes few steps per pass. With one seed and 360 test images, the accuracy varies by one or two
percentage points by chance, so the margin here is 4 percentage points. `python -m benchmarks.quality`
uses three seeds, every job, its own number of passes, and the real margins.
"""

import subprocess
from functools import cache

import pytest

from benchmarks.quality.__main__ import POLICIES, WORKERS, Run, accuracy_of, table, too_low
from benchmarks.quality.plain import train
from tests.commands import start

MARGIN = 0.04


PASSES = {
    "asp --kind local": 9,
    "fsp --kind gradient": 20,
    "psp --kind local": 12,
    "ssp:8 --kind local": 9,
}
"""The number of passes of each policy that does not make six."""


@cache
def plain(passes: int) -> float:
    return train("digits", WORKERS, 0, passes=passes)


def fork(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    return start.run(*command[1:], timeout_s=timeout_s)


@pytest.mark.cluster
@pytest.mark.parametrize("policy", POLICIES)
def test_digits_ends_near_plain_torch(policy: str) -> None:
    passes = PASSES.get(policy, 6)
    assert accuracy_of(Run("digits", policy, 0, passes), fork) > plain(passes) - MARGIN


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
