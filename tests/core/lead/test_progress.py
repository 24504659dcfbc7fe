import pytest

from polyrhythm.core.lead.members import View
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.progress import IDLE_ROUNDS, JobProgress
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import Routing
from polyrhythm.core.lead.sharing import Sharing
from polyrhythm.core.machine import Effect, Reason
from polyrhythm.wire.messages import JobSpec, Trailer


class Job:
    def __init__(self, *, by_rounds: bool = True, **job: object) -> None:
        spec = JobSpec(job="j", **job)
        self.rounds = Rounds()
        dispatch = LeadOutbox(View(), Routing(1, 64))
        self.effects: list[Effect] = dispatch.begin()
        sharing = Sharing(0, spec.epochs)
        self.outlook = JobProgress(spec, by_rounds, self.rounds, sharing, dispatch)

    def fold(self, code: str = "all-arrived", contributions: int = 1) -> Reason | None:
        for _ in range(contributions):
            self.outlook.count(Trailer(worker=0, weight=1.0), 1)
        self.rounds.begin_fold(frozenset(), Reason(code, {"missing": "w1"}), (), 1)
        return self.outlook.folded(1)


def test_rounds_are_counted_by_folds() -> None:
    job = Job(rounds=2)
    assert job.outlook.at == 0
    assert [job.fold("opened"), job.fold(), job.outlook.at] == [None, None, 1]
    assert str(job.fold()) == "the job reached its goal: 2 rounds"


def test_without_rounds_a_round_is_one_contribution_of_everybody() -> None:
    job = Job(by_rounds=False, rounds=2)
    goals = [job.outlook.advance(2, 1) for _ in range(4)]
    assert [goal is not None for goal in goals] == [False, False, False, True]
    assert job.outlook.at == 2


def test_passes_that_nobody_makes_are_no_goal() -> None:
    job = Job(epochs=1)
    job.fold("opened", 0)
    assert job.outlook.no_way_on() is None, "nobody had the time"
    job.fold()
    assert job.outlook.no_way_on() == Reason("no-batches")
    assert not Job(epochs=1, rounds=5).outlook.no_batches
    assert Job(target_change=0.1).outlook.no_batches, "it is checked once per pass"
    assert not Job(max_seconds=1.0).outlook.no_batches


def test_a_change_of_the_objective_is_no_goal_within_a_pass() -> None:
    """However many rounds are folded, and although each renews the journal's objective."""
    job = Job(target_change=0.5, rounds=100)
    job.fold("opened", 0)
    for round_ in range(1, 100):
        job.outlook.count(Trailer(worker=0, weight=1.0, objective=1.0), round_)
        assert job.fold("timer", 0) is None


@pytest.mark.parametrize(("code", "ends"), [("all-arrived", True), ("timer", False)])
def test_rounds_in_which_everybody_abstains_end_the_job(code: str, ends: bool) -> None:
    job = Job(max_seconds=60.0)
    job.fold("opened", 0)
    seen = []
    for _ in range(IDLE_ROUNDS):
        job.fold(code, 0)
        seen.append(job.outlook.no_way_on())
    assert seen[:-1] == [None] * (IDLE_ROUNDS - 1)
    assert (seen[-1] is not None) is ends


def test_a_contribution_makes_up_for_idle_rounds() -> None:
    job = Job(max_seconds=60.0)
    job.fold("opened", 0)
    for contributions in (0, 0, 1, 0, 0):
        job.fold(contributions=contributions)
        assert job.outlook.no_way_on() is None
