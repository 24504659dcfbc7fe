"""What the lead and a worker do when the worker is silent, is evicted, and rejoins."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.liveness import link_timeout_s
from polyrhythm.core.machine import Effect
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import Reason, refused
from tests.core.stage import SECOND_NS, Stage, of, sent

SILENT = Reason("silent-for", {"silent_s": 6.0})


def beat(stage: Stage, worker: int, after_s: float = 0.0) -> list[Effect]:
    stage.now_ns += round(after_s * SECOND_NS)
    return stage.tell(m.Alive(**stage.who(worker)))


def regular(stage: Stage, *workers: int, beats: int = 5) -> None:
    for _ in range(beats):
        stage.now_ns += SECOND_NS // 2
        for worker in workers:
            beat(stage, worker)


def chunks(effects: list[Effect], worker: int) -> set[int]:
    (lease,) = sent(effects, m.Leased, f"w{worker}")
    return {chunk.chunk for chunk in lease.chunks}


def silence(stage: Stage, *awake: int, seconds: float = 2.1) -> list[Effect]:
    """Let all workers but `awake` be silent until the lead reacts; returns the effects."""
    effects: list[Effect] = []
    for _ in range(round(seconds / 0.3)):
        effects += stage.tick(0.3)
        for worker in awake:
            effects += beat(stage, worker)
    return effects + stage.tick(0.0)


def begin(workers: int = 2, **job: object) -> Stage:
    stage = Stage(workers=workers, heartbeat_s=0.5, **job).begin()
    regular(stage, *range(workers))
    return stage


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:2"])
def test_a_silent_worker_is_evicted_with_the_derivation_of_its_limit(sync: str) -> None:
    stage = begin(sync=sync)
    effects = silence(stage, 0)
    (note,) = [note for note in of(effects, fx.Note) if note.what == "evicted"]
    assert note.fields["worker"] == 1 and note.fields["limit_s"] == pytest.approx(2.0)
    assert note.fields["silent_s"] == pytest.approx(2.0)
    assert note.fields["name"] != "w1", "users know workers by their names"
    (told,) = sent(effects, m.Evicted, "w1")
    assert told.incarnation == stage.incarnations[1]
    limit = "2.00 s = mean gap 0.50 s (of the last 4) + 2 x 0.50 s"
    assert in_words(told.reason).startswith(
        f"{note.fields['name']} has been silent for 2.00 s; it is suspect after {limit}"
    )
    assert [member.worker for member in stage.lead.view.members()] == [0]


def test_a_worker_that_beats_or_contributes_is_not_evicted() -> None:
    stage = begin(sync="asp")
    for sequence in range(1, 9):
        stage.now_ns += SECOND_NS
        beat(stage, 0)
        stage.contribute(1, sequence)
        assert sent(stage.tick(0.0), m.Evicted) == []


def test_bytes_of_a_worker_are_a_sign_of_life_though_its_heartbeats_wait_behind_them() -> None:
    stage = begin()
    heard = ev.PeersHeard((("w1", stage.incarnations[1]), ("w9", 1), ("s7", 1)))
    for _ in range(9):
        stage.now_ns += SECOND_NS
        beat(stage, 0)
        stage.tell(heard)
        assert sent(stage.tick(0.0), m.Evicted) == []
    earlier = ev.PeersHeard((("w1", stage.incarnations[1] + 1),))
    for _ in range(3):
        stage.now_ns += SECOND_NS
        beat(stage, 0)
        stage.tell(earlier)
    assert len(sent(stage.tick(0.0), m.Evicted, "w1")) == 1, "bytes of another incarnation"


def test_a_worker_has_twenty_heartbeats_time_before_its_rhythm_is_known() -> None:
    stage = Stage(workers=1, heartbeat_s=0.5).begin()
    assert sent(stage.tick(9.9), m.Evicted) == []
    assert sent(stage.tick(0.2), m.Evicted, "w0")


def test_an_evicted_worker_rejoins_under_a_new_incarnation() -> None:
    stage = begin(sync="asp")
    old = stage.incarnations[1]
    silence(stage, 0)
    stage.folded(1)
    effects = stage.hello("worker-1")
    (admitted,) = sent(effects, m.Admitted, "w1")
    assert admitted.incarnation == stage.incarnations[1] > old
    assert [note.what for note in of(effects, fx.Note)] == ["rejoined"]
    stage.attach(1)
    (release,) = sent(stage.folded(2), m.Release)
    assert (release.worker, release.incarnation) == (1, admitted.incarnation)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_the_chunks_of_an_evicted_worker_move_when_every_server_knows(sync: str) -> None:
    stage = begin(sync=sync, servers=2)
    mine = chunks(stage.tell(m.Enrol(**stage.who(0), points=64)), 0)
    theirs = chunks(stage.tell(m.Enrol(**stage.who(1), points=64)), 1)
    assert sent(silence(stage, 0), m.Leased) == [], "not before"
    if sync == "bsp":
        stage.contribute(0, 1)
    assert sent(stage.tell(m.Folded(server=0, round=1)), m.Leased) == [], "not by all"
    assert chunks(stage.tell(m.Folded(server=1, round=1)), 0) == mine | theirs


def test_a_worker_that_rejoins_gets_chunks_when_others_have_given_them_up() -> None:
    stage = begin(sync="asp")
    stage.tell(m.Enrol(**stage.who(0), points=64))
    stage.tell(m.Enrol(**stage.who(1), points=64))
    silence(stage, 0)
    everything = chunks(stage.folded(1), 0)
    stage.hello("worker-1")
    stage.attach(1)
    (lease,) = sent(stage.folded(2), m.Leased, "w0")
    kept = {chunk.chunk for chunk in lease.chunks}
    assert chunks(stage.tell(m.Enrol(**stage.who(1), points=64)), 1) == set()
    assert chunks(stage.contribute(0, 1, lease=lease.number), 1) == everything - kept


@pytest.mark.parametrize("how", ["evicted", "died"])
def test_contributions_of_a_removed_worker_count_until_every_server_knows(how: str) -> None:
    stage = begin(sync="asp", servers=2)
    who = stage.who(1)
    for sequence in (1, 2):
        stage.tell(m.Trailer(**who, sequence=sequence, report=m.ContributionReport(weight=1.0)))
        stage.tell(m.Arrived(**who, routing=1, server=0, sequence=sequence, round=1))
    if how == "evicted":
        silence(stage, 0)
    else:
        stage.closed("w1")
    stage.tell(m.Arrived(**who, routing=1, server=1, sequence=1, round=1))
    assert stage.lead.parts.progress.accounting.workers[1].contributions == 1
    stage.from_servers(m.Folded, round=1)
    stage.tell(m.Arrived(**who, routing=1, server=1, sequence=2, round=1))
    assert stage.lead.parts.progress.accounting.workers[1].contributions == 1, "not after"


def test_messages_of_an_evicted_incarnation_are_ignored() -> None:
    stage = begin(sync="asp")
    ghost = stage.who(1)
    silence(stage, 0)
    stage.folded(1)
    for message in (
        m.Alive(**ghost),
        m.Trailer(**ghost, sequence=1, report=m.ContributionReport(weight=1.0)),
        m.Abstained(**ghost),
        m.Enrol(**ghost, points=5),
        m.Leave(**ghost),
    ):
        assert stage.tell(message) == []


# -- no member is left ---------------------------------------------------------------------------


def ended(effects: list[Effect]) -> str | None:
    return next((in_words(end.reason) for end in of(effects, fx.End)), None)


def test_a_job_waits_for_its_only_worker_after_an_eviction() -> None:
    stage = begin(workers=1, sync="asp")
    effects = silence(stage)
    assert sent(effects, m.Evicted) and ended(effects) is None
    assert ended(stage.tick(3600.0)) is None
    assert sent(stage.hello("worker-0"), m.Admitted)


def test_an_evicted_worker_may_close_its_link_before_it_rejoins() -> None:
    stage = begin(workers=1, sync="asp")
    silence(stage)
    assert ended(stage.closed("w0")) is None
    assert ended(stage.tick(4.0)) is None
    assert sent(stage.hello("worker-0"), m.Admitted)
    assert ended(stage.tick(4.0)) is None


def test_the_end_of_the_old_link_may_be_noticed_after_the_rejoin() -> None:
    stage = begin(workers=1, sync="asp")
    before = stage.incarnations[0]
    silence(stage)
    again = m.WorkerHello(name="worker-0", job="j", identity="")
    stage.tell(ev.WorkerHelloReceived("link-again", again))
    late = ev.LinkClosed("w0", "it hung up", before)
    assert stage.tell(late) == []
    assert len(stage.lead.view) == 1
    assert ended(stage.tell(ev.LinkClosed("w0", "it died", stage.incarnations[0]))) is not None


def test_an_evicted_worker_that_died_is_not_waited_for_long() -> None:
    stage = begin(workers=1, sync="asp")
    silence(stage)
    stage.closed("w0")
    assert stage.lead.parts.removals.deadline.wake_ns == stage.now_ns + 5 * SECOND_NS
    assert ended(stage.tick(5.1)) == "all workers left before the job reached its goal"


def test_without_respawn_a_deserted_job_ends_at_once() -> None:
    assert (
        ended(begin(workers=1).closed("w0")) == "all workers left before the job reached its goal"
    )


def test_with_respawn_a_deserted_job_waits_for_the_next_worker() -> None:
    stage = begin(workers=1, respawn=True, start_timeout_s=30.0)
    assert ended(stage.closed("w0")) is None
    assert stage.lead.parts.removals.deadline.wake_ns == stage.now_ns + 30 * SECOND_NS
    assert ended(stage.tick(29.0)) is None
    assert sent(stage.hello("worker-0"), m.Admitted)
    assert ended(stage.tick(5.0)) is None, "a worker has joined"
    stage.closed("w0")
    assert ended(stage.tick(30.1)) == "all workers left before the job reached its goal"


# -- the links of an evicted worker ---------------------------------------------------------------


def test_the_links_of_an_evicted_worker_are_freed_when_it_does_not_wake() -> None:
    stage = begin(workers=2, sync="asp", servers=2, lead_timeout_s=20.0)
    before = stage.incarnations[0]
    assert sent(silence(stage, 1), m.Evicted, "w0")
    evicted_ns = stage.now_ns
    effects: list[Effect] = []
    while not of(effects, fx.Drop):
        assert stage.now_ns - evicted_ns < 60 * SECOND_NS, "the links are never freed"
        beat(stage, 1)
        effects = stage.tick(0.3)
    kept_s = (stage.now_ns - evicted_ns) / SECOND_NS
    assert kept_s == pytest.approx(link_timeout_s(20.0), abs=0.7)
    assert [drop.peer for drop in of(effects, fx.Drop)] == ["w0"]
    told = sent(effects, m.Dismissed)
    assert [(dismissed.worker, dismissed.incarnation) for dismissed in told] == [(0, before)] * 2
    assert len(stage.lead.view) == 1
    assert sent(stage.hello("worker-0"), m.Admitted), "it may still wake later"


def test_a_server_frees_the_link_of_a_dismissed_worker_and_of_no_later_one() -> None:
    server = ServerMachine(1, m.JobSpec(job="j", servers=2, workers=2))
    server.handle(m.Introduced(worker=0, incarnation=3), 0)
    assert of(list(server.handle(m.Dismissed(worker=0, incarnation=3), 1)), fx.Drop)
    server.handle(m.Introduced(worker=0, incarnation=5), 2)
    assert not of(list(server.handle(m.Dismissed(worker=0, incarnation=3), 3)), fx.Drop)


# -- the worker's side ---------------------------------------------------------------------------

WHO = {"worker": 3, "incarnation": 4}
SERVERS = (m.ServerSpec(0, m.Address("h", 1, "", ""), 1),)


def worker(sync: str = "asp", lead: int = 0) -> WorkerMachine:
    """`lead`: the server in which the lead runs."""
    made = WorkerMachine("anna")
    job = m.JobSpec(job="j", sync=sync)
    for event in (
        m.Admitted(**WHO, job=job, servers=SERVERS, seat=lead),
        ev.Attaching(m.ModelSpec((), m.OptimizerSpec("SGD", ()))),
        ev.Linked(0, 1),
        m.Routing(**WHO, routing=1, routes=(m.Route(0),), seat=lead),
        m.Release(**WHO, round=0, pushed=False),
        ev.Landed(0, m.EVERY_SLICE, 0 if sync == "bsp" else 1, 0),
    ):
        made.handle(event, 1)
    assert made.state is Phase.COMPUTING
    return made


COMPUTED = ev.Computed(0, (0.1,), m.ContributionReport(weight=8.0))


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:1"])
@pytest.mark.parametrize("after", [COMPUTED, ev.Exhausted(), ev.Enrolling(5)])
def test_an_evicted_worker_rejoins_when_the_users_code_has_finished_its_step(
    sync: str, after: object
) -> None:
    made = worker(sync)
    assert made.handle(m.Evicted(**WHO, reason=SILENT), 2) == []
    effects = list(made.handle(after, 3))
    assert of(effects, fx.Rejoin) == [fx.Rejoin(SILENT, WHO["incarnation"])]
    assert of(effects, fx.PushSlices) == [], "what it computed is dropped"
    assert made.state is Phase.JOINING and made.incarnation == 0
    assert in_words(made.why().reason) == "this worker joins again: it was silent for 6.0 s"


def test_an_evicted_worker_that_waits_rejoins_at_once() -> None:
    made = worker()
    made.handle(COMPUTED, 2)
    # under asp the worker now waits for the answer to its first contribution
    made.handle(COMPUTED, 2)
    effects = list(made.handle(m.Evicted(**WHO, reason=SILENT), 3))
    assert of(effects, fx.Rejoin)
    assert of(effects, fx.Expect) == [fx.Expect(None)], "what is on its way must not land"


def test_the_eviction_of_an_earlier_incarnation_is_ignored() -> None:
    made = worker()
    assert made.handle(m.Evicted(worker=3, incarnation=2, reason=SILENT), 2) == []
    assert of(list(made.handle(COMPUTED, 3)), fx.Rejoin) == []


def test_a_worker_that_rejoins_attaches_and_enrols_by_itself() -> None:
    made = worker()
    made.handle(ev.Enrolling(64), 2)
    made.handle(m.Evicted(**WHO, reason=SILENT), 3)
    made.handle(COMPUTED, 4)
    again = {"worker": 3, "incarnation": 9}
    job = m.JobSpec(job="j", sync="asp")
    admitted = m.Admitted(**again, job=job, servers=SERVERS)
    assert of(list(made.handle(admitted, 5)), fx.Dial)
    (attach,) = sent(list(made.handle(ev.Linked(0, 1), 6)), m.Attach, "lead")
    assert attach.incarnation == 9
    routing = m.Routing(**again, routing=1, routes=(m.Route(0),))
    (enrol,) = sent(list(made.handle(routing, 7)), m.Enrol, "lead")
    assert (enrol.incarnation, enrol.points) == (9, 64)


def test_messages_from_before_the_rejoin_are_ignored() -> None:
    made = worker("ssp:1")
    made.handle(COMPUTED, 2)
    made.handle(m.Evicted(**WHO, reason=SILENT), 3)
    for late in (
        ev.Landed(0, m.EVERY_SLICE, 2, 1),
        ev.Landed(0, 0, 2, 1),
        m.Acknowledged(**WHO, server=0, sequence=1),
        m.Release(**WHO, round=0),
        m.Release(**WHO, round=0, stop=True),
    ):
        assert made.handle(late, 4) == []
        made.check()
    assert made.state is Phase.JOINING
    assert not made.stopping


def test_a_worker_beats_as_often_as_the_job_says() -> None:
    made = worker()
    first_ns = made.wake_at()
    assert first_ns == 1 + SECOND_NS // 2
    assert of(list(made.handle(ev.Tick(), first_ns - 1)), fx.Beat) == []
    (effect,) = of(list(made.handle(ev.Tick(), first_ns)), fx.Beat)
    assert (effect.message.worker, effect.message.incarnation) == (3, 4)
    assert made.wake_at() == first_ns + SECOND_NS // 2


def test_a_worker_that_loses_a_server_waits_for_the_lead_first() -> None:
    made = worker(lead=1)
    assert of(list(made.handle(ev.LinkClosed("s0", "reset"), 2)), fx.Fail) == []
    (fail,) = of(list(made.handle(m.Stop(reason=refused("server s0 died")), 3)), fx.Fail)
    assert in_words(fail.reason) == "server s0 died" and fail.stopped


@pytest.mark.guarantee("worker-cut", policies=("bsp",), k=(0,))
def test_a_worker_that_loses_a_server_rejoins_when_the_lead_is_silent() -> None:
    made = worker("bsp", lead=1)
    made.handle(COMPUTED, 2)
    made.handle(ev.LinkClosed("s0", "reset"), 2)
    until_ns = 2 + 5 * SECOND_NS
    assert of(list(made.handle(ev.Tick(), until_ns - 1)), fx.Rejoin) == []
    effects = list(made.handle(ev.Tick(), until_ns))
    (rejoin,) = of(effects, fx.Rejoin)
    assert in_words(rejoin.reason) == "anna lost its link to s0: reset"
    (leave,) = sent(effects, m.Leave, "lead")
    assert leave.rejoins and leave.incarnation == rejoin.incarnation
    told = effects.index(fx.Send("lead", leave))
    assert told < effects.index(rejoin), "its link to the lead ends when it rejoins"


@pytest.mark.guarantee("worker-cut", policies=("bsp",), k=(0,))
def test_a_worker_that_loses_the_lead_rejoins_at_once() -> None:
    made = worker("bsp")
    made.handle(COMPUTED, 2)
    (rejoin,) = of(list(made.handle(ev.LinkClosed("s0", "reset"), 2)), fx.Rejoin)
    assert in_words(rejoin.reason) == "anna lost its link to the lead (s0): reset"
