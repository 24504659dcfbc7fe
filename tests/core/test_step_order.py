"""The order of the steps of several models is learnt from the first cycle, and kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.step_order import MOST_STEPS, OrderBroken, StepOrder, described

NAMES = ("critic", "generator")


def feed(order: StepOrder, steps: str, worker: int = 0, incarnation: int = 1) -> OrderBroken | None:
    """Make steps: `c` of the critic (0), `g` of the generator (1). Returns the first refusal."""
    for step in steps:
        if (broken := order.step(worker, incarnation, "cg".index(step))) is not None:
            return broken
    return None


@pytest.mark.parametrize("cycle", ["cg", "gc", "ccg", "cgg", "ccgg", "cccccg"])
def test_an_order_that_repeats_is_accepted(cycle: str) -> None:
    order = StepOrder(2)
    assert feed(order, 4 * cycle) is None
    assert order.complete and order.order == tuple("cg".index(step) for step in cycle)


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 2), max_size=60))
def test_workers_with_one_order_are_never_refused(c: int, g: int, turns: list[int]) -> None:
    cycle, order, at = c * "c" + g * "g", StepOrder(2), [0, 0, 0]
    for worker in turns:
        assert feed(order, cycle[at[worker] % len(cycle)], worker) is None
        at[worker] += 1


def test_a_worker_with_another_order_is_refused_also_in_the_first_cycle() -> None:
    order = StepOrder(2)
    assert feed(order, "cc") is None
    assert feed(order, "cg", worker=1) == OrderBroken((0, 0), (0, 1))
    order = StepOrder(2)
    assert feed(order, "ccgccgc") is None
    assert feed(order, "gcc", worker=1) == OrderBroken((0, 0, 1), (1,))


def test_a_worker_that_leaves_its_order_is_refused() -> None:
    order = StepOrder(2)
    assert feed(order, "ccgccg") is None
    assert feed(order, "cg") == OrderBroken((0, 0, 1), (0, 1))


@pytest.mark.parametrize("goes_on", ["cgccg", "gccg", "ccgccg"])
def test_a_worker_that_comes_back_goes_on_where_it_was_or_begins_again(goes_on: str) -> None:
    order = StepOrder(2)
    assert feed(order, "ccgcc") is None
    order.forget(0, 1)
    assert feed(order, goes_on, incarnation=2) is None
    assert feed(order, "gg", incarnation=2) is not None


def test_the_memory_of_an_order_is_limited() -> None:
    order = StepOrder(2)
    assert feed(order, MOST_STEPS * "c") is None
    assert feed(order, "c") is not None


def test_orders_are_described_briefly() -> None:
    assert described((0, 0, 1), NAMES) == "2 x critic, generator"
    assert described((0, 1) * 50, NAMES).endswith("generator, …")
