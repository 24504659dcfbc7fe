"""All machines together under BSP. A released worker reads one version. A contribution that was
complete when a fold was decided is in that fold in all slices, and none is added twice. The job
reaches its number of rounds."""

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import settings

from polyrhythm.core import events as ev
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.server.failover import Failover
from polyrhythm.core.server.leases import Versions
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.server.slices import HeldSlices, Verdict
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.core.worker.pulls import Assembly
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from tests.properties.ensemble import Ensemble, Store

SEEDS = 2 * settings.default.max_examples
ROUNDS = 4


def play(seed: int, timer: str = "off", in_place: bool = False, **chances: float) -> Ensemble:
    rng = random.Random(f"job {seed}")
    job = m.JobSpec(
        job="j",
        workers=rng.randint(1, 3),
        servers=1 if in_place else rng.randint(1, 3),
        timer=timer,
        rounds=ROUNDS,
        slice_nbytes=64,
        updater=rng.choice(["optimizer", "addition"]),
        in_place=in_place,
    )
    return Ensemble(seed, job, **chances).run()


def check_finished(run: Ensemble) -> None:
    assert run.end is not None
    assert not run.end.failed
    assert in_words(run.end.reason) == f"the job reached its goal: {ROUNDS} rounds"
    assert all(set(store.history) == set(range(ROUNDS + 1)) for store in run.stores.values())


def test_the_job_reaches_its_rounds() -> None:
    for seed in range(SEEDS):
        run = play(seed, timer_rate=0.0)  # without a timer, round 1 waits for all workers
        check_finished(run)
        assert len(run.promised) >= ROUNDS * run.job.workers
        assert all(life.resumed == list(range(ROUNDS + 1)) for life in run.lives)
        assert not any(life.failed for life in run.lives)


def test_repeated_slices_and_abstaining_workers_change_nothing() -> None:
    for seed in range(SEEDS):
        check_finished(play(seed, repeats=0.2, abstains=0.2))


def test_the_timer_closes_rounds_without_missing_workers() -> None:
    for seed in range(SEEDS):
        check_finished(play(seed, timer="1s", timer_rate=0.15, repeats=0.1, abstains=0.1))


def test_workers_that_read_in_place_see_one_version() -> None:
    for seed in range(SEEDS):
        check_finished(play(seed, timer="1s", in_place=True, abstains=0.1))


@pytest.mark.parametrize("timer", ["off", "1s"])
def test_workers_die_and_join_at_any_moment(timer: str) -> None:
    ends: Counter[str] = Counter()
    for seed in range(SEEDS):
        run = play(seed, timer=timer, timer_rate=0.1, deaths=3, joins=4, abstains=0.1)
        ends[run.end.reason.code if run.end is not None else "none"] += 1
        refused = [life.failed for life in run.lives if life.failed]
        assert all("came too late" in why or "is ending" in why for why in refused), refused
    assert set(ends) <= {"goal", "deserted", "none"}
    assert ends["goal"] > SEEDS / 2


def test_the_job_begins_though_seeding_workers_die() -> None:
    reseeded = 0
    for seed in range(SEEDS):
        run = play(seed, seeder_deaths=2, joins=4)
        reseeded += run.end is not None and max(s.routing for s in run.stores.values()) > 1
    assert reseeded > SEEDS / 4, "too few seeds were repeated to prove anything"


# -- each rule switched off ----------------------------------------------------------------------


def search(**chances: object) -> None:
    """Run until the first violation. Hangs are ignored, because a job without the rule may not end."""
    for seed in range(400):
        try:
            play(seed, **chances)
        except AssertionError as error:
            if "it hangs" not in str(error):
                raise


def test_a_worker_mixes_versions_if_it_ignores_their_numbers(monkeypatch) -> None:
    land = Assembly.land

    def land_blindly(landing: Assembly, *landed: Any) -> None:
        land(landing, *landed)
        landing.whole, landing.version = True, landing.newest

    monkeypatch.setattr(Assembly, "land", land_blindly)
    monkeypatch.setattr(WorkerMachine, "check", lambda self: None)
    with pytest.raises(AssertionError, match=r"goes on with \d, but reads"):
        search()


def test_seeds_mix_if_the_slice_store_ignores_the_routing_epoch(monkeypatch) -> None:
    honest = Store.seed

    def blind(self: Store, message: m.Seed) -> ev.SliceSeeded | None:
        return honest(self, msgspec.structs.replace(message, routing=self.routing))

    monkeypatch.setattr(Store, "seed", blind)
    with pytest.raises(AssertionError, match="mixture of the parameters|seeded after round 0"):
        search(seeder_deaths=2, joins=4)


def test_seeds_are_missing_if_a_server_ignores_the_routing_epoch(monkeypatch) -> None:
    honest = Failover.on_slice_seeded

    def blind(self: Failover, event: ev.SliceSeeded) -> None:
        honest(self, ev.SliceSeeded(event.slice, self._seeding))

    monkeypatch.setattr(Failover, "on_slice_seeded", blind)
    with pytest.raises(AssertionError, match="were not seeded"):
        search(seeder_deaths=2, joins=4)


def test_seeds_are_missing_if_the_lead_ignores_the_routing_epoch(monkeypatch) -> None:
    def seeded(routing: RoutingTable, said: m.Seeded) -> None:
        routing.seeding.on_seeded(said.server, routing._holders)

    monkeypatch.setattr(RoutingTable, "on_seeded", seeded)
    monkeypatch.setattr(RoutingTable, "check", lambda self: None)
    with pytest.raises(AssertionError, match="were not seeded|reads {'unseeded'}"):
        search(seeder_deaths=2, joins=4)


def test_folds_are_torn_if_servers_fold_without_the_leads_order(monkeypatch) -> None:
    contributed = ServerMachine._on_contributed
    fold = ServerMachine._on_fold

    def fold_at_once(self: ServerMachine, event: ev.Contributed, now_ns: int) -> None:
        contributed(self, event, now_ns)
        members = tuple(m.MemberSpec(w, i, "") for w, i in self.state.acks.members.items())
        own = m.Fold(term=self.state.seat.term, round=self.versions.version + 1, members=members)
        fold(self, own, now_ns)

    def answer_only(self: ServerMachine, message: m.Fold, now_ns: int) -> None:
        if message.round == 0:
            fold(self, message, now_ns)
        else:
            self.state.tell_lead(m.Folded(**self.state.identity(), round=message.round, weight=1.0))

    monkeypatch.setitem(ServerMachine._HANDLERS, ev.Contributed, fold_at_once)
    monkeypatch.setitem(ServerMachine._HANDLERS, m.Fold, answer_only)
    with pytest.raises(AssertionError, match=r"was complete when round \d was decided"):
        search()


def test_contributions_are_added_twice_if_duplicates_are_not_detected(monkeypatch) -> None:
    monkeypatch.setattr(HeldSlices, "judge", lambda self, *arguments: Verdict.NEW)
    with pytest.raises(AssertionError, match="twice"):
        search(repeats=0.3)


def test_leased_versions_are_overwritten_if_leases_are_ignored(monkeypatch) -> None:
    monkeypatch.setattr(Versions, "leased", lambda self, slot: False)
    with pytest.raises(AssertionError, match=r"goes on with|changed as it computed"):
        search(timer="1s", timer_rate=0.2)
