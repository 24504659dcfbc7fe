"""The timelines drawn for the documentation agree with the behaviour of the policies."""

import pytest

from polyrhythm.core.worker.lifecycle import Phase
from tools.timelines import POLICIES, SHOWN_S, draw, watch


def computing_s(sync: str) -> list[float]:
    """Return, for each worker, the seconds in which it computes according to the picture."""
    return [
        sum(min(end, SHOWN_S) - at for s, at, end in spans if s is Phase.COMPUTING and at < SHOWN_S)
        for spans in watch(sync).values()
    ]


def test_under_bsp_fast_workers_wait_and_under_asp_none_does() -> None:
    assert computing_s("bsp") == pytest.approx([0.8, 1.6, 2.4], abs=0.1)
    assert computing_s("asp") == pytest.approx([2.4, 2.4, 2.4], abs=0.1)


@pytest.mark.parametrize("sync", POLICIES.values())
def test_a_picture_is_the_same_each_time(sync: str) -> None:
    assert draw(sync) == draw(sync)
