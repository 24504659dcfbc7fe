"""Which points of the probe sample the members of a job evaluate together."""

import pytest

from polyrhythm.wire import messages as m
from tests.core.stage import Stage, sent

SAMPLE = 100


def evaluated(workers: int) -> list[list[int]]:
    """For each measurement of a job with this number of members, the positions in the sample that
    they evaluate."""
    stage = Stage(workers=workers, sync="fsp", interval="auto").begin()
    found = []
    for round_ in range(1, 12):
        stage.tick(1.0)
        for worker in range(workers):
            trailer = m.Trailer(
                **stage.who(worker),
                sequence=round_,
                report=m.ContributionReport(weight=2.0, probe=1.0, probe_points=9),
            )
            stage.tell(trailer)
            arrived = {**stage.who(worker), "sequence": round_, "round": round_}
            stage.from_servers(m.Arrived, **arrived)
        asked = [release.probe for release in sent(stage.folded(round_), m.Release)]
        assert len(asked) == workers
        if any(parts for _, parts in asked):
            shares = [range(part, SAMPLE, parts) for part, parts in asked]
            found.append([position for share in shares for position in share])
    return found


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_same_points_are_evaluated_whatever_the_number_of_members(workers: int) -> None:
    """The lead compares values of the objective with each other, also after a worker has joined or
    left. So the points of a measurement must not depend on the members."""
    first, *later = evaluated(workers)
    assert sorted(first) == list(range(0, SAMPLE, 8)), "every eighth point"
    assert later
    for positions in later:
        assert sorted(positions) == list(range(SAMPLE)), "the whole sample, every point once"
