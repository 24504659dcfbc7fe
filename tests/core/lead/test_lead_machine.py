"""The lead: admission, the opening, rounds, data, and the end of a job."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.errors import UsageError
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import failed
from tests.core.stage import ADDRESS, SECOND_NS, Stage, of, sent, spec

# -- refusals ------------------------------------------------------------------------------------


def refusal(effects: list, link: str) -> str:
    (message,) = sent(effects, m.Refusal, link)
    (drop,) = of(effects, fx.Drop)
    assert drop == fx.Drop(link, message.reason)
    return in_words(message.reason)


def test_a_taken_name_is_refused_and_its_first_worker_stays() -> None:
    stage = Stage(workers=2)
    stage.hello("anna")
    reason = refusal(stage.hello("anna"), "link-anna")
    assert reason == (
        "anna was refused: a worker with this name is in the job; give another with --name"
    )
    assert len(stage.lead.view) == 1


def test_a_name_is_free_again_when_its_worker_has_left() -> None:
    stage = Stage(workers=2)
    stage.hello("anna")
    first = stage.incarnations[0]
    stage.closed("w0")
    assert sent(stage.hello("anna"), m.Admitted, "w0")
    assert stage.incarnations[0] > first


def test_another_job_is_refused() -> None:
    reason = refusal(Stage().hello("anna", job="other"), "link-anna")
    assert reason == "anna was refused: it belongs to another job"


def test_another_protocol_is_refused() -> None:
    reason = refusal(Stage().hello("anna", protocol=99), "link-anna")
    assert reason == f"anna was refused: it speaks protocol 99, this job speaks {m.PROTOCOL}"


def test_servers_are_refused_for_the_same_reasons() -> None:
    stage = Stage(servers=2)
    assert "belongs to another job" in refusal(stage.server(5, job="x"), "link-s5")
    assert "speaks protocol 0" in refusal(stage.server(5, protocol=0), "link-s5")
    assert "s1 is in this job already" in refusal(stage.server(1), "link-s1")


def test_servers_without_a_number_get_the_highest_free_one() -> None:
    lead = LeadMachine(m.JobSpec(job="j", servers=3))
    fields = {"job": "", "address": ADDRESS, "identity": ""}

    def hello(link: str, server: int) -> list:
        hello_event = m.ServerHello(server=server, name=link, **fields)
        return list(lead.handle(ev.ServerHelloReceived(link, hello_event), 1))

    assert not sent(hello("its own", 0), m.Admitted), "it knows its number"
    (admitted,) = sent(hello("first", -1), m.Admitted, "s2")
    assert (admitted.server, admitted.job) == (2, lead.job)
    lead.handle(ev.LinkClosed("s2", "it was told to"), 2)
    (admitted,) = sent(hello("second", -1), m.Admitted, "s2")
    (admitted,) = sent(hello("third", -1), m.Admitted, "s1")
    (admitted,) = sent(hello("fourth", -1), m.Admitted, "s3")
    assert admitted.server == 3, "one more than the job began with"
    ended = of(list(lead.handle(ev.LinkClosed("s1", "it died"), 3)), fx.End)
    assert not ended, "no server has parameters yet, so none are lost"


def test_a_model_that_differs_is_refused_with_the_first_difference() -> None:
    stage = Stage(workers=2)
    for name in ("anna", "bert"):
        stage.hello(name)
    stage.attach(0, spec((64,), (3, 4)))
    effects = stage.attach(1, spec((64,), (4, 3)))
    reason = refusal(effects, "w1")
    assert (
        reason
        == "bert's model differs: the parameter 't1' has shape [4, 3], in the job it has [3, 4]"
    )
    assert len(stage.lead.view) == 1


def test_a_data_set_of_another_length_is_refused() -> None:
    stage = Stage(workers=2).begin()
    out = stage.tell(m.Enrol(**stage.who(0), points=100, batch=8))
    assert sent(out, m.Leased, "w0")
    assert [effect.fields for effect in out if isinstance(effect, fx.Note)] == [
        {"points": 100, "batch": 8}
    ]
    reason = refusal(stage.tell(m.Enrol(**stage.who(1), points=90)), "w1")
    assert reason == (
        "worker-1's data set has 90 points, the job's has 100; if every worker"
        " has its own data set, give --data-private"
    )


def test_an_empty_data_set_is_refused() -> None:
    stage = Stage().begin()
    assert "empty" in refusal(stage.tell(m.Enrol(**stage.who(0), points=0)), "w0")


def test_messages_of_other_incarnations_are_ignored() -> None:
    """A message changes nothing if the worker's incarnation in it is not the current one."""
    stage = Stage(workers=1).begin()
    ghost = {"worker": 0, "incarnation": stage.incarnations[0] + 7}
    for message in (
        m.Attach(**ghost, spec=spec()),
        m.Enrol(**ghost, points=10),
        m.Trailer(**ghost, sequence=1, report=m.ContributionReport()),
        m.Arrived(**ghost, server=0, sequence=1, round=1),
        m.Abstained(**ghost),
        m.Report(**ghost, metrics={}),
        m.Leave(**ghost),
    ):
        assert stage.tell(message) == []


def test_a_wrong_policy_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="--sync 'nonsense' is not known"):
        LeadMachine(m.JobSpec(job="j", sync="nonsense"))


# -- beginning -----------------------------------------------------------------------------------


def test_workers_wait_for_the_servers() -> None:
    stage = Stage(servers=0)
    stage.job = m.JobSpec(job="j", servers=2)
    stage.lead = LeadMachine(stage.job)
    assert sent(stage.hello("anna"), m.Admitted) == []
    stage.server(0)
    (admitted,) = sent(stage.server(1), m.Admitted, "w0")
    assert admitted.servers == (m.ServerSpec(0, ADDRESS, 1), m.ServerSpec(1, ADDRESS, 1))
    assert admitted.job == stage.job


def test_a_worker_that_gave_up_waiting_is_not_admitted() -> None:
    stage = Stage(servers=0)
    stage.job = m.JobSpec(job="j", servers=1)
    stage.lead = LeadMachine(stage.job)
    stage.hello("anna")
    stage.closed("link-anna")
    assert sent(stage.server(0), m.Admitted) == []


def test_the_first_model_is_placed_and_its_worker_seeds() -> None:
    stage = Stage(workers=2, servers=2)
    stage.hello("anna")
    stage.hello("bert")
    placed = sent(stage.attach(0), m.Place)
    assert len(placed) == 2
    assert {route.primary for route in placed[0].routes} == {0, 1}
    assert sent(stage.attach(1), m.Place) == []
    routings = sent(stage.from_servers(m.Placed), m.Routing)
    assert [(routing.worker, routing.seed) for routing in routings] == [(0, True), (1, False)]


def test_round_1_opens_with_the_last_worker() -> None:
    stage = Stage(workers=2)
    stage.hello("anna")
    stage.attach(0)
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    assert stage.why == "waiting for 1 more worker to join and to attach a model"
    stage.hello("bert")
    (fold,) = sent(stage.attach(1), m.Fold)
    assert fold.round == 0
    assert [member.name for member in fold.members] == ["anna", "bert"]
    releases = sent(stage.folded(0), m.Release)
    assert [(release.worker, release.round) for release in releases] == [(0, 0), (1, 0)]


def test_first_members_pull_because_a_push_could_overtake_their_routing() -> None:
    stage = Stage(workers=1)
    stage.hello("anna")
    stage.attach(0)
    stage.from_servers(m.Placed)
    (fold,) = sent(stage.from_servers(m.Seeded), m.Fold)
    assert fold.readers == ()
    (release,) = sent(stage.folded(0), m.Release)
    assert not release.pushed
    (fold,) = sent(stage.contribute(0, 1), m.Fold)
    assert fold.readers == (0,)
    (release,) = sent(stage.folded(1), m.Release)
    assert release.pushed


def test_after_the_start_timeout_round_1_opens_with_the_present_workers() -> None:
    stage = Stage(workers=3, start_timeout_s=60.0)
    stage.hello("anna")
    assert stage.lead.wake_at() == stage.now_ns + 60 * SECOND_NS
    stage.attach(0)
    stage.from_servers(m.Placed)
    assert sent(stage.from_servers(m.Seeded), m.Fold) == []
    assert sent(stage.tick(59.0), m.Fold) == []
    (fold,) = sent(stage.tick(2.0), m.Fold)
    assert [member.name for member in fold.members] == ["anna"]


def test_a_worker_that_attaches_after_the_start_timeout_opens_round_1() -> None:
    stage = Stage(workers=3, start_timeout_s=60.0)
    stage.hello("anna")
    stage.tick(61.0)
    assert stage.lead.wake_at() > stage.now_ns + 10**14, "it would be woken for ever"
    stage.attach(0)
    stage.from_servers(m.Placed)
    assert sent(stage.from_servers(m.Seeded), m.Fold)


def test_when_the_seeder_dies_another_one_seeds() -> None:
    stage = Stage(workers=3)
    for number, name in enumerate(("anna", "bert", "cleo")):
        stage.hello(name)
        stage.attach(number)
    stage.from_servers(m.Placed)
    assert stage.why == "waiting for w0 to send the initial parameters"
    (place,) = sent(stage.closed("w0"), m.Place, "s0")
    assert place.routing == 2
    assert stage.why == "waiting for the servers to allocate the model's slices"
    routings = sent(stage.from_servers(m.Placed), m.Routing)
    assert [(r.worker, r.seed, r.routing) for r in routings] == [(1, True, 2), (2, False, 2)]
    assert stage.why == "waiting for w1 to send the initial parameters"


def test_seeds_of_a_dead_seeder_are_not_counted() -> None:
    """The first seeder dies while its seeds are in flight. Servers still report them with routing
    epoch 1, and the lead counts only reports of epoch 2."""
    stage = Stage(workers=2, servers=2)
    for number, name in enumerate(("anna", "bert", "cleo")):
        stage.hello(name)
        stage.attach(number)
    stage.from_servers(m.Placed)
    stage.tell(m.Seeded(server=0, routing=1))
    assert [place.routing for place in sent(stage.closed("w0"), m.Place)] == [2, 2]
    assert stage.tell(m.Placed(server=0, routing=2)) == []
    assert stage.tell(m.Seeded(server=1, routing=1)) == []
    assert stage.tell(m.Placed(server=1, routing=1)) == [], "it has not made room anew yet"
    assert sent(stage.tell(m.Placed(server=1, routing=2)), m.Routing)
    assert stage.tell(m.Seeded(server=1, routing=2)) == []
    assert stage.tell(m.Seeded(server=0, routing=1)) == []
    folds = sent(stage.tell(m.Seeded(server=0, routing=2)), m.Fold)
    assert [(fold.round, fold.routing) for fold in folds] == [(0, 2), (0, 2)]


def test_seeders_may_die_one_after_the_other() -> None:
    stage = Stage(workers=1, servers=2)
    for number, name in enumerate(("anna", "bert", "cleo")):
        stage.hello(name)
        stage.attach(number)
    stage.from_servers(m.Placed)
    stage.closed("w0")
    assert sent(stage.closed("w1"), m.Place) == [], "it was not asked to seed yet"
    (routing,) = sent(stage.from_servers(m.Placed), m.Routing)
    assert (routing.worker, routing.seed, routing.routing) == (2, True, 2)
    assert sent(stage.closed("w2"), m.Place)
    assert stage.from_servers(m.Placed) == []
    stage.hello("dora")
    (routing,) = sent(stage.attach(3), m.Routing)
    assert (routing.worker, routing.seed, routing.routing) == (3, True, 3)


def test_the_next_worker_seeds_when_the_only_one_died_seeding() -> None:
    stage = Stage(workers=1)
    stage.hello("anna")
    stage.attach(0)
    stage.from_servers(m.Placed)
    stage.closed("w0")
    stage.hello("bert")
    assert stage.attach(1) == [], "the servers make room anew first"
    (routing,) = sent(stage.from_servers(m.Placed), m.Routing)
    assert routing.seed


def test_a_seeder_may_die_when_all_servers_are_seeded() -> None:
    stage = Stage(workers=2)
    stage.hello("anna")
    stage.attach(0)
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    assert sent(stage.closed("w0"), m.Place) == []
    stage.hello("bert")
    (routing,) = sent(stage.attach(1), m.Routing)
    assert not routing.seed


def test_a_seeder_that_rejoins_does_not_overwrite_what_was_learned() -> None:
    stage = Stage(workers=2).begin()
    stage.closed("w0")
    stage.hello("worker-0")
    (routing,) = sent(stage.attach(0), m.Routing)
    assert not routing.seed


# -- rounds --------------------------------------------------------------------------------------


def test_a_contribution_counts_when_all_reports_and_its_trailer_have_come() -> None:
    stage = Stage(workers=1, servers=2).begin()
    who = stage.who(0)
    assert (
        sent(stage.tell(m.Arrived(**who, routing=1, server=0, sequence=1, round=1)), m.Fold) == []
    )
    assert (
        sent(
            stage.tell(m.Trailer(**who, sequence=1, report=m.ContributionReport(weight=1.0))),
            m.Fold,
        )
        == []
    )
    folds = sent(stage.tell(m.Arrived(**who, routing=1, server=1, sequence=1, round=1)), m.Fold)
    assert [fold.round for fold in folds] == [1, 1]


def test_workers_are_released_when_all_servers_have_folded() -> None:
    stage = Stage(workers=2, servers=2).begin()
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    assert sent(stage.tell(m.Folded(server=0, round=1, weight=1.0)), m.Release) == []
    releases = sent(stage.tell(m.Folded(server=1, round=1, weight=1.0)), m.Release)
    assert [(r.worker, r.round, r.pushed, r.stop) for r in releases] == [
        (1, 1, True, False),
        (0, 1, True, False),
    ], "the last to arrive is released first"


def test_a_worker_that_joins_late_enters_at_the_next_fold() -> None:
    stage = Stage(workers=1).begin()
    stage.hello("late")
    (routing,) = sent(stage.attach(1), m.Routing, "w1")
    assert not routing.seed
    (fold,) = sent(stage.contribute(0, 1), m.Fold)
    assert [member.worker for member in fold.members] == [0, 1]
    assert fold.readers == (0,)
    releases = sent(stage.folded(1), m.Release)
    assert [(release.worker, release.pushed) for release in releases] == [(0, True), (1, False)]
    assert stage.contribute(0, 2, 2) == [], "now it is waited for"
    assert sent(stage.contribute(1, 1, 2), m.Fold)


def test_a_worker_that_rejoins_during_a_fold_enters_at_the_next() -> None:
    """The fold was ordered before the worker came back, so the servers do not know its new
    incarnation and would not answer its pull."""
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    assert sent(stage.contribute(1, 1), m.Fold)
    stage.closed("w1")
    stage.hello("worker-1")
    stage.attach(1)
    assert [release.worker for release in sent(stage.folded(1), m.Release)] == [0]
    (fold,) = sent(stage.contribute(0, 2, 2), m.Fold)
    assert [(s.worker, s.incarnation) for s in fold.members] == [(0, 1), (1, stage.incarnations[1])]
    assert [release.worker for release in sent(stage.folded(2), m.Release)] == [0, 1]


def test_a_worker_that_attaches_during_the_opening_enters_at_round_1() -> None:
    stage = Stage(workers=1)
    stage.hello("first")
    stage.attach(0)
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    stage.hello("early")
    stage.attach(1)
    assert [release.worker for release in sent(stage.folded(0), m.Release)] == [0]
    (fold,) = sent(stage.contribute(0, 1), m.Fold)
    assert [member.worker for member in fold.members] == [0, 1]
    assert [release.worker for release in sent(stage.folded(1), m.Release)] == [0, 1]


def test_a_round_does_not_wait_for_a_dead_member() -> None:
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    (fold,) = sent(stage.closed("w1"), m.Fold)
    assert [member.worker for member in fold.members] == [0]


def test_a_round_does_not_wait_for_a_member_that_left() -> None:
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    assert sent(stage.tell(m.Leave(**stage.who(1))), m.Fold)


def test_the_timer_folds_without_the_missing_workers() -> None:
    stage = Stage(workers=2, timer="5s").begin()
    stage.contribute(0, 1)
    assert stage.why == "round 1 waits for w1"
    assert stage.lead.wake_at() is not None
    effects = stage.tick(6.0)
    (fold,) = sent(effects, m.Fold)
    assert fold.readers == (0,)
    effects = stage.folded(1)
    assert [release.worker for release in sent(effects, m.Release)] == [0]
    (line,) = [note for note in of(effects, fx.Note) if note.what == "rounds"]
    assert line.fields["reason"] == "timer"


def test_a_late_worker_whose_contribution_is_in_pulls_and_continues() -> None:
    stage = Stage(workers=2, timer="5s").begin()
    stage.contribute(0, 1)
    stage.tick(6.0)
    stage.contribute(1, 1, 1)
    releases = sent(stage.folded(1), m.Release)
    assert [(release.worker, release.pushed) for release in releases] == [(0, True), (1, False)]


def test_the_barrier_does_not_wait_for_a_member_that_abstains() -> None:
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    assert sent(stage.tell(m.Abstained(**stage.who(1), round=1)), m.Fold)


def test_a_worker_that_has_visited_all_points_stays_in_the_mean() -> None:
    stage = Stage(workers=3).begin()
    for worker in range(2):
        stage.contribute(worker, 1)
    (fold,) = sent(stage.contribute(2, 1), m.Fold, "s0")
    assert fold.share == 1.0
    stage.folded(1)
    stage.tell(m.Abstained(**stage.who(1), round=2))
    stage.tell(m.Abstained(**stage.who(2), round=2))
    effects = stage.contribute(0, 2, 2)
    (fold,) = sent(effects, m.Fold, "s0")
    assert fold.share == pytest.approx(1 / 3)
    (note,) = [note for note in of(effects, fx.Note) if note.what == "policy"]
    assert note.fields["reason"] == "points-visited"
    assert (note.fields["fields"]["resting"], note.fields["fields"]["members"]) == (2, 3)


def test_a_worker_that_never_had_points_is_not_in_the_mean() -> None:
    stage = Stage(workers=2).begin()
    stage.tell(m.Abstained(**stage.who(1), round=1))
    (fold,) = sent(stage.contribute(0, 1), m.Fold, "s0")
    assert fold.share == 1.0


def test_a_worker_that_leaves_after_it_abstained_is_not_in_the_mean() -> None:
    stage = Stage(workers=3).begin()
    for worker in range(3):
        stage.contribute(worker, 1)
    stage.folded(1)
    stage.tell(m.Abstained(**stage.who(1), round=2))
    stage.contribute(0, 2, 2)
    stage.tell(m.Leave(**stage.who(1)))
    (fold,) = sent(stage.contribute(2, 2, 2), m.Fold, "s0")
    assert fold.share == 1.0


def test_an_abstention_counts_in_its_own_round_only() -> None:
    stage = Stage(workers=3, timer="5s").begin()
    for worker in range(3):
        stage.contribute(worker, 1)
    stage.folded(1)
    stage.tell(m.Abstained(**stage.who(1), round=2))
    stage.contribute(0, 2, 2)
    stage.contribute(2, 2, 2)
    stage.folded(2)
    stage.contribute(0, 3, 3)
    stage.contribute(2, 3, 3)
    (fold,) = sent(stage.tick(6), m.Fold, "s0")
    assert fold.share == 1.0, "worker 1 has points again, and is late"


def test_a_contribution_to_the_last_fold_does_not_count_in_the_next() -> None:
    stage = Stage(workers=3, timer="5s").begin()
    for worker in range(3):
        stage.contribute(worker, 1)
    stage.folded(1)
    stage.contribute(0, 2, 2)
    stage.contribute(2, 2, 2)
    assert sent(stage.tick(6), m.Fold, "s0"), "the timer fires without worker 1"
    stage.contribute(1, 2, 2)
    stage.folded(2)
    stage.tell(m.Abstained(**stage.who(1), round=3))
    stage.contribute(0, 3, 3)
    (fold,) = sent(stage.contribute(2, 3, 3), m.Fold, "s0")
    assert fold.share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("points", "share"), [((16, 16), 1.0), ((4, 12), 0.5), ((24, 8), 1.0), ((40, 40), 1.0)]
)
def test_a_round_by_the_clock_has_a_share_of_the_whole_batches(
    points: tuple[int, int], share: float
) -> None:
    stage = Stage(workers=2, sync="fsp", kind="gradient", interval="50ms").begin()
    stage.contribute(0, 1, weight=points[0], batch=16)
    (fold,) = sent(stage.contribute(1, 1, weight=points[1], batch=16), m.Fold, "s0")
    assert fold.share == share


def test_points_and_resting_workers_both_count_in_the_share_of_a_round() -> None:
    stage = Stage(workers=2, sync="fsp", kind="gradient", interval="50ms").begin()
    for worker in range(2):
        stage.contribute(worker, 1, weight=16, batch=16)
    stage.folded(1)
    stage.tell(m.Abstained(**stage.who(1), round=2))
    effects = stage.contribute(0, 2, 2, weight=4, batch=16)
    (fold,) = sent(effects, m.Fold, "s0")
    assert fold.share == 1 / 8
    (note,) = [
        note for note in of(effects, fx.Note) if note.fields.get("reason") == "points-visited"
    ]
    assert note.fields["fields"]["share"] == 1 / 2, "the journal tells who takes part"


@pytest.mark.parametrize(
    "job", [{"sync": "bsp"}, {"sync": "fsp", "kind": "local", "interval": "50ms"}]
)
def test_other_rounds_make_whole_steps(job: dict[str, str]) -> None:
    """Workers scale local steps themselves; and without a clock a batch has as many points as its
    worker chose."""
    stage = Stage(workers=1, **job).begin()
    (fold,) = sent(stage.contribute(0, 1, weight=4, batch=16), m.Fold, "s0")
    assert fold.share == 1.0


def test_a_worker_that_contributes_after_it_abstained_counts_once() -> None:
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    stage.folded(1)
    stage.tell(m.Abstained(**stage.who(1), round=2))
    stage.contribute(0, 2, 2)
    stage.folded(2)
    stage.contribute(0, 3, 3)
    (fold,) = sent(stage.contribute(1, 2, 3), m.Fold, "s0")
    assert fold.share == 1.0


# -- data ----------------------------------------------------------------------------------------


def leased(effects: list, worker: int) -> set[int]:
    (lease,) = sent(effects, m.Leased, f"w{worker}")
    return {chunk.chunk for chunk in lease.chunks}


@pytest.mark.parametrize(("batch", "chunks"), [(1, [1, 1, 0]), (2, [1, 0, 0]), (0, [1, 0, 0])])
def test_a_chunk_has_one_point_only_where_the_user_asks_for_such_batches(
    batch: int, chunks: list[int]
) -> None:
    stage = Stage(workers=3).begin()
    enrol = [m.Enrol(**stage.who(worker), points=2, batch=batch) for worker in range(3)]
    found = [len(leased(stage.tell(message), worker)) for worker, message in enumerate(enrol)]
    assert found == chunks


def test_a_dead_members_chunks_are_leased_again_at_the_fold() -> None:
    stage = Stage(workers=2).begin()
    mine = leased(stage.tell(m.Enrol(**stage.who(0), points=64)), 0)
    theirs = leased(stage.tell(m.Enrol(**stage.who(1), points=64)), 1)
    assert mine and theirs and not mine & theirs
    assert sent(stage.closed("w1"), m.Leased) == [], "not while a contribution is on its way"
    assert sent(stage.contribute(0, 1), m.Leased) == [], "not before every server knows"
    assert leased(stage.folded(1), 0) == mine | theirs


def test_a_new_member_gets_its_share_at_the_fold() -> None:
    stage = Stage(workers=1).begin()
    everything = leased(stage.tell(m.Enrol(**stage.who(0), points=64)), 0)
    stage.hello("late")
    stage.attach(1)
    stage.contribute(0, 1)
    (lease,) = sent(stage.folded(1), m.Leased, "w0")
    kept = {chunk.chunk for chunk in lease.chunks}
    assert leased(stage.tell(m.Enrol(**stage.who(1), points=64)), 1) == set()
    assert sent(stage.contribute(0, 2, 2), m.Leased) == [], "it was computed under the old lease"
    stage.contribute(1, 1, 2)
    stage.folded(2)
    share = leased(stage.contribute(0, 3, 3, lease=lease.number), 1)
    assert kept | share == everything and not kept & share
    assert len(kept) == len(share)


def test_points_count_with_their_contribution() -> None:
    stage = Stage(workers=1, epochs=1).begin()
    (lease,) = sent(stage.tell(m.Enrol(**stage.who(0), points=32)), m.Leased)
    done = tuple(m.ChunkProgress(chunk.chunk, 1, 0) for chunk in lease.chunks)
    trailer = m.Trailer(
        **stage.who(0), sequence=1, report=m.ContributionReport(weight=32.0, progress=done)
    )
    stage.tell(trailer)
    assert stage.lead.parts.plan.passes == 0
    stage.from_servers(m.Arrived, **stage.who(0), sequence=1, round=1)
    assert stage.lead.parts.plan.passes == 1


# -- the end -------------------------------------------------------------------------------------


def test_a_goal_in_rounds_ends_the_job() -> None:
    stage = Stage(workers=1, rounds=2).begin()
    stage.contribute(0, 1, 1)
    assert not sent(stage.folded(1), m.Release)[0].stop
    stage.contribute(0, 2, 2)
    (release,) = sent(stage.folded(2), m.Release)
    assert release.stop and release.round == 2
    (end,) = of(stage.tell(m.Leave(**stage.who(0))), fx.End)
    assert not end.failed
    assert in_words(end.reason) == "the job reached its goal: 2 rounds"
    assert stage.lead.wake_at() is None
    assert stage.hello("too late") == []


def test_a_goal_in_passes_ends_the_job() -> None:
    stage = Stage(workers=1, epochs=2).begin()
    (lease,) = sent(stage.tell(m.Enrol(**stage.who(0), points=20)), m.Leased)
    for epoch in (1, 2):
        progress = tuple(m.ChunkProgress(chunk.chunk, epoch, 0) for chunk in lease.chunks)
        stage.contribute(0, epoch, epoch, progress)
        (release,) = sent(stage.folded(epoch), m.Release)
        assert release.stop == (epoch == 2)


def test_workers_that_compute_at_the_end_must_pull_the_final_version() -> None:
    stage = Stage(workers=2, rounds=1, timer="5s").begin()
    stage.contribute(0, 1)
    stage.tick(6.0)
    releases = sent(stage.folded(1), m.Release)
    assert [(r.worker, r.pushed, r.stop) for r in releases] == [(0, True, True), (1, False, True)]


def test_a_worker_that_joins_too_late_is_refused_and_does_not_delay_the_end() -> None:
    """The servers do not know the worker, so it could never read the final version."""
    stage = Stage(workers=1, rounds=1).begin()
    stage.contribute(0, 1)
    stage.hello("attached")
    stage.attach(1)
    stage.hello("admitted")
    effects = stage.folded(1)
    assert sent(effects, m.Release, "w1") == sent(effects, m.Release, "w2") == []
    assert [drop.peer for drop in of(effects, fx.Drop)] == ["w1", "w2"]
    reason = "attached came too late: the job reached its goal: 1 round"
    assert [in_words(refused.reason) for refused in sent(effects, m.Refusal, "w1")] == [reason]
    assert of(stage.tell(m.Leave(**stage.who(0))), fx.End)


def test_a_hello_while_the_job_ends_is_refused() -> None:
    stage = Stage(workers=1, rounds=1).begin()
    stage.contribute(0, 1)
    stage.folded(1)
    assert refusal(stage.hello("late"), "link-late") == "late was refused: the job is ending"
    words = in_words(stage.lead.why().reason)
    assert words == "the goal is reached; waiting for w0 to finish"


def test_the_death_of_a_server_ends_the_job_with_one_reason() -> None:
    stage = Stage(workers=2, servers=2).begin()
    effects = stage.closed("s1", "s1 closed the link")
    (end,) = of(effects, fx.End)
    assert end.failed
    reason = "server s1 died (s1 closed the link); without replicas its slices are lost"
    assert in_words(end.reason) == reason
    stops = sent(effects, m.Stop)
    assert len(stops) == 4 and {in_words(stop.reason) for stop in stops} == {reason}
    assert stage.closed("s0") == [], "one reason is enough"


def test_a_stop_at_once_reaches_every_process() -> None:
    stage = Stage(workers=2, servers=2).begin()
    effects = stage.tell(ev.StopAsked(at_once=True))
    (end,) = of(effects, fx.End)
    assert not end.failed and in_words(end.reason) == "stopped on request"
    assert {effect.to for effect in of(effects, fx.Send)} == {"w0", "w1", "s0", "s1"}


def test_workers_that_wait_for_admission_are_told_of_the_end() -> None:
    lead = LeadMachine(m.JobSpec(job="j", servers=1))
    hello = m.WorkerHello(name="anna", job="j", identity="")
    lead.handle(ev.WorkerHelloReceived("link-1", hello), 0)
    assert "stopped" in refusal(list(lead.handle(ev.StopAsked(), 1)), "link-1")


def test_a_job_fails_when_every_worker_leaves() -> None:
    stage = Stage(workers=1).begin()
    (end,) = of(stage.closed("w0"), fx.End)
    assert end.failed
    assert in_words(end.reason) == "all workers left before the job reached its goal"


def test_reports_go_to_the_journal() -> None:
    stage = Stage().begin()
    (note,) = stage.tell(m.Report(**stage.who(0), round=-1, metrics={"accuracy": 0.5}))
    fields = {"worker": 0, "name": "worker-0", "evaluated": False, "metrics": {"accuracy": 0.5}}
    fields.update(passes=0, points=0)
    assert note == fx.Note("reported", fields)


@pytest.mark.parametrize(
    ("sync", "resumed", "noted"), [("bsp", 0, 3), ("bsp", 10, 13), ("asp", 0, None)]
)
def test_a_report_has_the_round_of_its_version(sync: str, resumed: int, noted: int | None) -> None:
    """Without rounds versions have no numbers."""
    stage = Stage(sync=sync, resume_round=resumed).begin()
    (note,) = stage.tell(m.Report(**stage.who(0), round=3, metrics={"accuracy": 0.5}))
    assert isinstance(note, fx.Note) and note.fields.get("round") == noted


# -- why -----------------------------------------------------------------------------------------


def test_why_names_the_reason_in_every_phase() -> None:
    stage = Stage(workers=2, servers=1)
    assert stage.why == "waiting for 2 more workers to join and to attach a model"
    stage.hello("anna")
    stage.hello("bert")
    stage.attach(0)
    stage.attach(1)
    assert stage.why == "waiting for the servers to allocate the model's slices"
    stage.from_servers(m.Placed)
    assert stage.why == "waiting for w0 to send the initial parameters"
    stage.from_servers(m.Seeded)
    assert stage.why == "the servers fold round 0"
    stage.folded(0)
    assert stage.why == "round 1 waits for w0 and w1"
    stage.contribute(1, 1)
    assert stage.why == "round 1 waits for w0"
    stage.contribute(0, 1)
    assert stage.why == "the servers fold round 1"


def test_why_names_a_late_server_and_not_the_workers() -> None:
    stage = Stage(workers=2, servers=2).begin()
    for worker in (0, 1):
        stage.tell(
            m.Trailer(**stage.who(worker), sequence=1, report=m.ContributionReport(weight=2.0))
        )
        stage.tell(m.Arrived(**stage.who(worker), routing=1, server=0, sequence=1, round=1))
        if worker == 0:
            assert stage.why == "round 1 waits for w0 and w1", "one of them has not sent anything"
    assert stage.why == "s1 has not reported what w0 and w1 contributed"
    for worker in (0, 1):
        stage.tell(m.Arrived(**stage.who(worker), routing=1, server=1, sequence=1, round=1))
    stage.tell(m.Folded(server=1, round=1, weight=1.0))
    assert stage.lead.why().reason.fields["servers"] == [0]
    stage.tell(m.Folded(server=0, round=1, weight=1.0))
    assert stage.why == "round 2 waits for w0 and w1"


@pytest.mark.parametrize(("on_error", "ends"), [("go-on", False), ("end", True)])
def test_a_workers_exception_ends_the_job_if_asked(on_error: str, ends: bool) -> None:
    stage = Stage(workers=2, on_error=on_error).begin()
    effects = stage.tell(m.Leave(**stage.who(0), reason=failed("no"), failed=True))
    assert [(in_words(end.reason), end.failed) for end in of(effects, fx.End)] == (
        [("worker-0 left: it failed: no; with --on-error end, this ends the job", True)]
        if ends
        else []
    )


@pytest.mark.parametrize("opened", [False, True], ids=["before round 1", "in round 1"])
def test_a_job_that_the_engine_gives_up_has_failed(opened: bool) -> None:
    stage = Stage(workers=2)
    if opened:
        stage.begin()
    effects = stage.tell(ev.StopAsked(at_once=True, failed="no worker is left: worker-0 failed"))
    (end,) = of(effects, fx.End)
    assert end.failed and in_words(end.reason) == "no worker is left: worker-0 failed"


def test_the_exception_of_the_only_worker_ends_the_job() -> None:
    stage = Stage(workers=1, on_error="go-on")
    stage.hello("anna")
    effects = stage.tell(m.Leave(**stage.who(0), reason=failed("no"), failed=True))
    (end,) = of(effects, fx.End)
    assert end.failed and in_words(end.reason) == "no worker is left"
    assert end.reason.fields["detail"] == "no"


def test_the_exception_of_the_only_worker_does_not_end_a_job_that_starts_workers_again() -> None:
    stage = Stage(workers=1, respawn=True).begin()
    effects = stage.tell(m.Leave(**stage.who(0), reason=failed("no"), failed=True))
    assert not of(effects, fx.End)


def test_the_job_goes_on_if_a_guest_trains_beside_the_only_worker_that_fails() -> None:
    stage = Stage(workers=1).begin()
    stage.hello("guest")
    effects = stage.tell(m.Leave(**stage.who(0), reason=failed("no"), failed=True))
    assert not of(effects, fx.End)


def test_a_worker_without_points_is_noted_once() -> None:
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    effects = stage.tell(m.Abstained(**stage.who(1)))
    assert [note.fields["name"] for note in of(effects, fx.Note) if note.what == "no-points"] == [
        "worker-1"
    ]
    stage.folded(1)
    stage.contribute(0, 2, round_=2)
    effects = stage.tell(m.Abstained(**stage.who(1)))
    assert not [note for note in of(effects, fx.Note) if note.what == "no-points"]
