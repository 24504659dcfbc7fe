"""When the objective of a pass is checked, and which values are compared."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.lead.progress.learning import Passes, PassObjective
from polyrhythm.wire.messages import ChunkProgress, ContributionReport, Trailer
from tests.core.lead.data.plans import plan_of

POINTS = 100


def contribution(objective: float | None = None, weight: float = 1.0, **fields: object) -> Trailer:
    return ContributionReport(weight=weight, objective=objective, **fields)


def one_pass(passes: Passes, number: int, *losses: float) -> PassObjective:
    """Count one contribution per loss, all of the same number of points, until the pass is
    complete."""
    for loss in losses:
        assert passes.on_folded(number - 1, POINTS) is None
        passes.count(contribution(loss), POINTS // len(losses))
    measured = passes.on_folded(number, POINTS)
    assert measured is not None
    return measured


def test_the_first_pass_has_nothing_to_be_compared_with() -> None:
    measured = one_pass(Passes(), 1, 2.0, 1.0)
    assert measured.loss is not None and measured.loss.value == 1.5
    assert measured.change is None


def test_the_mean_losses_of_two_passes_are_compared() -> None:
    passes = Passes()
    one_pass(passes, 1, 2.0, 1.0)
    assert one_pass(passes, 2, 1.0, 0.5).change == 0.75
    assert one_pass(passes, 3, 1.0, 1.0).change == 0.25, "a rise is a change, too"


def test_a_pass_is_checked_once_however_often_something_is_folded() -> None:
    passes = Passes()
    one_pass(passes, 1, 1.0)
    assert [passes.on_folded(1, POINTS) for _ in range(3)] == [None] * 3


def test_a_pass_without_a_new_objective_is_compared_with_nothing() -> None:
    passes = Passes()
    one_pass(passes, 1, 1.0)
    passes.count(contribution(None), POINTS)
    measured = passes.on_folded(2, POINTS)
    assert measured == PassObjective(2, None, None)
    assert one_pass(passes, 3, 1.0).change is None, "the value before is two checks old"


def test_objectives_are_weighted_by_points() -> None:
    passes = Passes()
    passes.count(contribution(4.0, 1.0), 25)
    passes.count(contribution(0.0, 3.0), 75)
    measured = passes.on_folded(1, POINTS)
    assert measured is not None and measured.loss is not None
    assert measured.loss.value == 1.0
    assert measured.loss.points == 4.0


def test_the_error_shrinks_with_the_points_and_not_with_the_contributions() -> None:
    """The same 10,000 losses are counted point by point and as means of batches of 10 and of 100.
    The standard error of the mean is the same in all three cases."""
    rng = random.Random(1)
    losses = [rng.gauss(1.0, 0.5) for _ in range(10_000)]
    errors = []
    for batch in (1, 10, 100):
        passes = Passes()
        for first in range(0, len(losses), batch):
            mean = sum(losses[first : first + batch]) / batch
            passes.count(contribution(mean, float(batch)), batch)
        measured = passes.on_folded(1, len(losses))
        assert measured is not None and measured.loss is not None
        errors.append(measured.loss.error)
    assert errors == pytest.approx([0.5 / math.sqrt(len(losses))] * 3, rel=0.2)


def test_passes_that_others_catch_up_with_do_not_count_as_full_passes() -> None:
    """A slow worker dies. The others quickly visit its few points of passes 2 to 5, but the
    next check waits until as many points were visited as the data set has."""
    passes = Passes()
    one_pass(passes, 1, 1.0)
    for caught_up in range(2, 6):
        passes.count(contribution(1.0), 10)
        assert passes.on_folded(caught_up, POINTS) is None
    passes.count(contribution(1.0), 60)
    measured = passes.on_folded(5, POINTS)
    assert measured is not None and measured.change == 0.0, "100 points after the last check"


def test_an_objective_that_is_not_finite_is_not_a_small_change() -> None:
    passes = Passes()
    one_pass(passes, 1, 1.0)
    change = one_pass(passes, 2, 1.0, float("nan")).change
    assert change is not None and not change < 1e9
    change = one_pass(passes, 3, float("inf")).change
    assert change is not None and not change < 1e9


def probe(value: float, sample: int = 8) -> Trailer:
    return contribution(5.0, probe=value, probe_points=sample)


def test_the_probe_sample_decides_where_there_is_one() -> None:
    passes = Passes()
    passes.count(probe(2.0, 6), 50)
    passes.count(probe(1.0, 2), 50)
    assert passes.on_folded(1, POINTS) is not None
    passes.count(probe(1.0, 8), POINTS)
    measured = passes.on_folded(2, POINTS)
    assert measured is not None and measured.change == 0.75, "the losses did not change"


def test_probes_of_two_passes_may_be_too_close_to_be_compared() -> None:
    """The last round of pass 1 and the first round of pass 2 measure the probe sample. Only 10
    points were visited between the two, so pass 2 is judged by its losses."""
    passes = Passes()
    passes.count(probe(2.0), POINTS)
    passes.on_folded(1, POINTS)
    passes.count(probe(1.999), 10)
    assert passes.on_folded(1, POINTS) is None
    passes.count(contribution(3.0), 90)
    measured = passes.on_folded(2, POINTS)
    assert measured is not None and measured.change == 1.0, "the losses are compared"
    passes.count(probe(1.5), POINTS)
    measured = passes.on_folded(3, POINTS)
    assert measured is not None and measured.change == 0.5, "with the probe two passes ago"


def test_a_probe_of_a_part_of_the_sample_is_not_compared() -> None:
    """A worker died, and its share of the probe sample is missing."""
    passes = Passes()
    passes.count(probe(2.0), POINTS)
    passes.on_folded(1, POINTS)
    passes.count(probe(2.0, 5), POINTS)
    measured = passes.on_folded(2, POINTS)
    assert measured is not None and measured.change == 0.0, "of the losses"


@pytest.mark.parametrize(("points", "due"), [(49, False), (50, True)])
def test_half_a_pass_is_enough_for_a_last_check(points: int, due: bool) -> None:
    passes = Passes()
    one_pass(passes, 1, 1.0)
    passes.count(contribution(3.0), points)
    assert (passes.rest(1, POINTS) is not None) is due
    assert Passes().rest(0, 0) is None, "no data set was enrolled"


@given(st.data())
def test_every_check_covers_a_full_pass_whoever_visits_the_points(data: st.DataObject) -> None:
    """Compare with a plain list of all visits, for workers of any speed that join and leave."""
    plan = plan_of(POINTS, 3, seed=0, epochs=None)
    members = [(worker, worker) for worker in range(3)]
    plan.share(members)
    passes, since, checked, before = Passes(), [], 0, None
    for step in range(data.draw(st.integers(50, 150))):
        event = data.draw(st.sampled_from(["visit"] * 12 + ["leave", "join"]))
        if event == "leave" and len(members) > 1:
            gone = members.pop(data.draw(st.integers(0, len(members) - 1)))
            plan.release([gone])
            plan.share(members)
        elif event == "join" and len(members) < 5:
            members.append((10 + step, 10 + step))
            plan.share(members)
        member = data.draw(st.sampled_from(members))
        for holder in members:
            plan.on_confirmed(holder, plan.lease(holder).number)
        lease = plan.lease(member)
        if not lease.chunks:
            continue
        chunk = min(lease.chunks, key=lambda chunk: (chunk.passes, -chunk.cursor))
        visited = plan.commit(member, (ChunkProgress(chunk.chunk, chunk.passes + 1, 0),))
        loss = data.draw(st.floats(0, 10))
        passes.count(contribution(loss, float(visited)), visited)
        since.append((loss, visited))
        measured = passes.on_folded(plan.passes, POINTS)
        full = plan.passes > checked and sum(points for _, points in since) >= POINTS
        assert (measured is not None) is full
        if measured is None:
            continue
        mean = sum(loss * points for loss, points in since) / sum(points for _, points in since)
        assert measured.loss is not None and measured.loss.value == pytest.approx(mean, abs=1e-9)
        if before is None:
            assert measured.change is None
        else:
            assert measured.change == pytest.approx(abs(mean - before), abs=1e-9)
        since, checked, before = [], plan.passes, mean
