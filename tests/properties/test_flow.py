"""All machines together under policies without rounds: no worker hangs, no contribution is folded twice,
each acknowledged contribution is in every slice once, no read is torn, and all workers end with the same
parameters."""

import random
from collections import Counter

import pytest
from hypothesis import settings

from polyrhythm.core.lead.data.chunks import Holder
from polyrhythm.core.lead.data.leasing import Leasing
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.lead.rounds.contributions import Contributions
from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.core.server.modes import OnArrivalMode
from polyrhythm.core.server.slices import HeldSlices, Verdict
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from tests.properties.ensemble import Ensemble, Flow

SEEDS = settings.default.max_examples // 2
AHEAD = "asp --read-ahead"
SYNCS = ["asp", AHEAD, "ssp:1", "ssp-restart:2"]
ROUNDS = 4


def play(seed: int, sync: str, **options: float) -> Ensemble:
    """Run a job of two passes, or, without `points`, of a number of rounds."""
    rng = random.Random(f"job {seed}")
    points = int(options.get("points", 0))
    job = m.JobSpec(
        job="j",
        workers=rng.randint(1, 3),
        servers=rng.randint(1, 3),
        sync=sync.partition(" ")[0],
        read_ahead=sync == AHEAD,
        rounds=None if points else int(options.pop("rounds", ROUNDS)),
        epochs=2 if points else None,
        slice_nbytes=64,
    )
    return Ensemble(seed, job, **options).run()  # type: ignore[arg-type]


def check_finished(run: Ensemble) -> None:
    assert run.end is not None
    assert not run.end.failed, in_words(run.end.reason)
    assert all(isinstance(store, Flow) and store.frozen for store in run.stores.values())


@pytest.mark.parametrize("sync", SYNCS)
def test_the_job_reaches_its_rounds(sync: str) -> None:
    for seed in range(SEEDS):
        run = play(seed, sync, repeats=0.2, timer_rate=0.0)
        check_finished(run)
        assert len(run.counted) >= ROUNDS * run.job.workers
        assert not any(life.failed for life in run.lives)


@pytest.mark.parametrize("sync", SYNCS)
def test_every_point_is_visited_twice(sync: str) -> None:
    """Workers rest when they have no points left, and return when they get more."""
    for seed in range(SEEDS):
        check_finished(play(seed, sync, points=40, joins=2))


@pytest.mark.parametrize("points", [0, 40])
@pytest.mark.parametrize("sync", SYNCS)
def test_workers_die_and_join_at_any_moment(sync: str, points: int) -> None:
    ends: Counter[bool] = Counter()
    for seed in range(SEEDS):
        run = play(seed, sync, deaths=3, joins=4, repeats=0.1, points=points)
        ends[run.end is not None and not run.end.failed] += 1
        if run.end is not None and run.end.failed:
            assert in_words(run.end.reason) == "all workers left before the job reached its goal"
        refused = [life.failed for life in run.lives if life.failed]
        assert all("came too late" in why or "is ending" in why for why in refused), refused
    assert ends[True] > SEEDS / 2


@pytest.mark.parametrize("sync", ["bsp", *SYNCS])
def test_an_evicted_worker_joins_again_with_a_new_incarnation(sync: str) -> None:
    """The worker is paused until the lead has evicted it; then it joins again and contributes."""
    evicted = rejoined = again = 0
    for seed in range(SEEDS):
        run = play(seed, sync, sleeps=2, rounds=12, timer_rate=0.1, repeats=0.1)
        assert run.end is not None and not run.end.failed, (seed, str(run.end))
        evicted += run.evictions
        for life in run.lives:
            assert life.failed is None or "too late" in life.failed or "is ending" in life.failed
            rejoined += life.rejoined
            again += len(life.incarnations & {given[1] for given in run.counted}) > 1
    assert evicted > SEEDS / 4 and rejoined > SEEDS / 8 and again > SEEDS / 8, "too few evictions"


@pytest.mark.parametrize("sync", SYNCS)
def test_other_workers_visit_the_points_of_an_evicted_worker(sync: str) -> None:
    evicted = 0
    for seed in range(SEEDS):
        run = play(seed, sync, sleeps=2, points=30, timer_rate=0.1)
        assert run.end is not None and not run.end.failed, (seed, str(run.end))
        evicted += run.evictions
    assert evicted > SEEDS / 4, "too few evictions"


# -- each rule switched off ----------------------------------------------------------------------


def search(**options: float) -> None:
    """Run until the first violation. Hangs are ignored, because a job in which a rule is switched off
    may not end."""
    for seed in range(200):
        for sync in SYNCS:
            try:
                play(seed, sync, **options)
            except AssertionError as error:
                if "it hangs" not in str(error):
                    raise


def test_contributions_are_folded_twice_if_duplicates_are_not_detected(monkeypatch) -> None:
    monkeypatch.setattr(HeldSlices, "judge", lambda self, *arguments: Verdict.NEW)
    with pytest.raises(AssertionError, match="twice"):
        search(repeats=0.3)


def test_reads_are_torn_if_leases_are_ignored(monkeypatch) -> None:
    monkeypatch.setattr(SliceVersions, "target", lambda self, slice_: self.slot(slice_))
    with pytest.raises(AssertionError, match="it was overwritten"):
        search()


def test_contributions_are_missing_if_they_are_acknowledged_too_early(monkeypatch) -> None:
    def at_once(self: OnArrivalMode, pull: m.Pull) -> bool:
        self._state.acks.acknowledge(pull.worker, pull.sequence)
        return True

    monkeypatch.setattr(OnArrivalMode, "can_answer", at_once)
    with pytest.raises(AssertionError, match="was acknowledged, but missing in slice"):
        search()


def test_workers_end_with_different_parameters_if_servers_do_not_freeze(monkeypatch) -> None:
    monkeypatch.setattr(Flow, "freeze", lambda self: None)
    with pytest.raises(AssertionError, match="final slice"):
        search()


def test_points_are_visited_twice_if_chunks_of_living_workers_move_at_once(monkeypatch) -> None:
    honest = DataPlan.share

    def at_once(self: DataPlan, members: list[Holder]) -> None:
        honest(self, members)
        for member in members:
            self.on_confirmed(member, 10**9)

    monkeypatch.setattr(DataPlan, "share", at_once)
    with pytest.raises(AssertionError, match="a point was not visited"):
        search(points=40, joins=3)


def test_a_job_ends_as_idle_too_early_if_contributions_in_flight_are_ignored(monkeypatch) -> None:
    monkeypatch.setattr(Contributions, "any", False)
    with pytest.raises(AssertionError, match="no worker had anything to contribute"):
        for seed in range(200):
            check_finished(play(seed, AHEAD, points=40, joins=2))


def test_a_resting_worker_is_forgotten_if_leases_that_cross_its_message_are_ignored(
    monkeypatch,
) -> None:
    monkeypatch.setattr(Leasing, "is_outdated", lambda self, member, number: False)
    with pytest.raises(AssertionError, match="no worker had anything to contribute"):
        for seed in range(170, 270):  # only a few seeds show the fault
            check_finished(play(seed, "ssp:1", points=40, joins=2))
