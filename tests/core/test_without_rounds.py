"""Policies without rounds: what the lead, the server and the worker do, event by event."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Effect
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from tests.core.stage import ADDRESS, Stage, of, sent, spec


def ended(effects: list[Effect]) -> str | None:
    return next((in_words(end.reason) for end in of(effects, fx.End)), None)


def enrol(stage: Stage, *workers: int, points: int = 64) -> dict[int, m.Leased]:
    leases = {}
    for worker in workers:
        (leases[worker],) = sent(stage.tell(m.Enrol(**stage.who(worker), points=points)), m.Leased)
    return leases


def whole(lease: m.Leased, passes: int = 1) -> tuple[m.ChunkProgress, ...]:
    return tuple(m.ChunkProgress(chunk.chunk, passes, 0) for chunk in lease.chunks)


# -- the lead: releases ----------------------------------------------------------------------------


def test_asp_sends_no_release_for_a_contribution() -> None:
    stage = Stage(workers=2, sync="asp").begin()
    for sequence in range(1, 20):
        assert sent(stage.contribute(0, sequence), m.Release) == []
    assert stage.why == "no worker is held back"


def test_asp_tells_a_worker_now_and_then_how_far_the_job_has_come() -> None:
    """No release follows a contribution, so the lead tells the progress in a message of its own: with
    the first contribution, and not before 0.05 seconds are over again."""
    stage = Stage(workers=2, sync="asp", rounds=100).begin()
    told = []
    for sequence in range(1, 20):
        told += sent(stage.contribute(0, sequence), m.Progressed)
        stage.tick(0.0125)
    assert [message.worker for message in told] == [0] * 5
    assert [message.rank for message in told] == [0] * 5
    points = [message.progress.points for message in told]
    assert points == sorted(points) and points[-1] > points[0]
    (other,) = sent(stage.contribute(1, 1), m.Progressed)
    assert (other.worker, other.rank) == (1, 1)


def test_ssp_blocks_the_fast_worker_until_the_slow_one_arrives() -> None:
    stage = Stage(workers=2, sync="ssp:1").begin()
    (release,) = sent(stage.contribute(0, 1), m.Release)
    assert (release.worker, release.pushed) == (0, True), "it has asked for its parameters"
    assert sent(stage.contribute(0, 2), m.Release) == []
    assert stage.why == "w0 is 2 steps ahead of w1 (limit 1)"
    releases = sent(stage.contribute(1, 1), m.Release)
    assert [(release.worker, release.pushed) for release in releases] == [(0, False), (1, True)]


def test_ssp_releases_the_fast_worker_when_the_slow_one_dies() -> None:
    stage = Stage(workers=2, sync="ssp:1").begin()
    stage.contribute(0, 1)
    stage.contribute(0, 2)
    (fold,) = sent(stage.closed("w1"), m.Fold)
    assert [member.worker for member in fold.members] == [0]
    assert [release.worker for release in sent(stage.folded(1), m.Release)] == [0]


def test_ssp_restart_releases_all_workers_together() -> None:
    stage = Stage(workers=2, sync="ssp-restart:2").begin()
    assert sent(stage.contribute(0, 1), m.Release)
    assert sent(stage.contribute(0, 2), m.Release) == []
    assert (
        stage.why
        == "w0 stopped 2 steps ahead of the slowest worker; clocks restart when w1 has stopped too"
    )
    releases = sent(stage.contribute(1, 1), m.Release)
    assert [release.worker for release in releases] == [0, 1]


def test_a_new_member_is_released_when_every_server_knows_it() -> None:
    stage = Stage(workers=1, servers=2, sync="ssp:1").begin()
    for sequence in range(1, 6):
        stage.contribute(0, sequence)
    stage.hello("late")
    folds = sent(stage.attach(1), m.Fold)
    assert [fold.round for fold in folds] == [1, 1]
    assert not folds[0].last and folds[0].readers == ()
    assert sent(stage.tell(m.Folded(server=0, round=1)), m.Release) == []
    (release,) = sent(stage.tell(m.Folded(server=1, round=1)), m.Release)
    assert (release.worker, release.pushed) == (1, False)
    assert sent(stage.contribute(0, 6), m.Release), "it starts at the members' minimum"


def test_view_changes_do_not_overlap() -> None:
    stage = Stage(workers=1, sync="asp").begin()
    for name in ("anna", "bert", "cleo"):
        stage.hello(name)
    assert sent(stage.attach(1), m.Fold)
    assert sent(stage.attach(2), m.Fold) == []
    assert sent(stage.attach(3), m.Fold) == []
    effects = stage.folded(1)
    assert [release.worker for release in sent(effects, m.Release)] == [1]
    (fold,) = sent(effects, m.Fold)
    assert [member.worker for member in fold.members] == [0, 1, 2, 3]
    assert [release.worker for release in sent(stage.folded(2), m.Release)] == [2, 3]


# -- the lead: goals -------------------------------------------------------------------------------


def test_one_contribution_per_member_counts_as_a_round() -> None:
    stage = Stage(workers=3, sync="asp", rounds=2).begin()
    for sequence in range(1, 6):
        assert sent(stage.contribute(0, sequence), m.Fold) == []
    (fold,) = sent(stage.contribute(1, 1), m.Fold)
    assert fold.last
    releases = sent(stage.folded(1), m.Release)
    assert [(release.worker, release.stop) for release in releases] == [
        (0, True),
        (1, True),
        (2, True),
    ]


def test_a_contribution_is_weighed_by_the_members_at_its_completion() -> None:
    """The first contribution comes from the only member and counts as a round. The second one comes
    from one of two members and counts as half a round, so a third one is needed for 2 rounds."""
    stage = Stage(workers=1, sync="asp", rounds=2).begin()
    assert sent(stage.contribute(0, 1), m.Fold) == []
    stage.hello("late")
    stage.attach(1)
    stage.folded(1)
    assert sent(stage.contribute(0, 2), m.Fold) == []
    assert sent(stage.contribute(1, 1), m.Fold)[0].last


def test_the_goal_is_reached_when_every_point_is_visited() -> None:
    stage = Stage(workers=2, sync="asp", epochs=1).begin()
    leases = enrol(stage, 0, 1)
    assert sent(stage.contribute(0, 1, progress=whole(leases[0])), m.Fold) == []
    (fold,) = sent(stage.contribute(1, 1, progress=whole(leases[1])), m.Fold)
    assert fold.last
    (release, _) = sent(stage.folded(1), m.Release)
    assert release.stop


def test_a_goal_reached_during_a_view_change_is_followed_by_the_last_fold() -> None:
    stage = Stage(workers=1, sync="asp", rounds=2).begin()
    stage.contribute(0, 1)
    stage.hello("late")
    (turn,) = sent(stage.attach(1), m.Fold)
    assert not turn.last
    stage.contribute(0, 2)
    assert sent(stage.contribute(0, 3), m.Fold) == []
    effects = stage.folded(1)
    assert sent(effects, m.Release) == [], "they could read what is still being folded"
    (last,) = sent(effects, m.Fold)
    assert last.last
    assert {release.worker for release in sent(stage.folded(2), m.Release)} == {0, 1}


def test_a_contribution_after_the_goal_does_not_end_the_job_again() -> None:
    stage = Stage(workers=1, sync="asp", rounds=1).begin()
    assert sent(stage.contribute(0, 1), m.Fold)
    assert sent(stage.contribute(0, 2), m.Fold) == []


def test_epochs_without_batches_end_with_a_reason() -> None:
    effects = Stage(workers=1, sync="asp", epochs=1).begin().contribute(0, 1)
    reason = ended(effects)
    assert reason is not None and reason.startswith("--epochs and --target-change count passes")


def test_a_goal_in_rounds_needs_no_batches() -> None:
    stage = Stage(workers=1, sync="asp", epochs=1, rounds=5).begin()
    assert ended(stage.contribute(0, 1)) is None


# -- the lead: resting -----------------------------------------------------------------------------


def test_a_resting_member_holds_no_other_back() -> None:
    stage = Stage(workers=2, sync="ssp:0").begin()
    enrol(stage, 0, 1)
    assert sent(stage.contribute(0, 1), m.Release) == []
    (release,) = sent(stage.tell(m.Abstained(**stage.who(1), lease=1)), m.Release)
    assert release.worker == 0


@pytest.mark.parametrize("sync", ["asp", "ssp:1", "ssp-restart:1"])
def test_a_resting_member_returns_when_chunks_arrive(sync: str) -> None:
    stage = Stage(workers=2, sync=sync).begin()
    leases = enrol(stage, 0, 1)
    stage.tell(m.Abstained(**stage.who(0), lease=leases[0].number))
    stage.closed("w1")
    effects = stage.folded(1)
    (lease,) = sent(effects, m.Leased, "w0")
    assert len(lease.chunks) == 32
    (release,) = sent(effects, m.Release, "w0")
    assert not release.pushed
    assert effects.index(fx.Send("w0", lease)) < effects.index(fx.Send("w0", release))


def test_a_resting_member_returns_when_its_chunks_crossed_its_abstention() -> None:
    stage = Stage(workers=2, sync="asp").begin()
    leases = enrol(stage, 0, 1)
    stage.closed("w1")
    assert sent(stage.folded(1), m.Leased, "w0")
    late = m.Abstained(**stage.who(0), lease=leases[0].number)
    effects = stage.tell(late)
    assert [release.worker for release in sent(effects, m.Release)] == [0]
    assert ended(effects) is None


def test_a_job_is_idle_when_all_members_rest_and_nothing_is_in_flight() -> None:
    stage = Stage(workers=2, sync="asp", epochs=1).begin()
    leases = enrol(stage, 0, 1)
    assert ended(stage.tell(m.Abstained(**stage.who(0), lease=leases[0].number))) is None
    reason = ended(stage.tell(m.Abstained(**stage.who(1), lease=leases[1].number)))
    assert reason is not None and reason.startswith("no worker had anything to contribute")


def test_a_job_is_not_idle_while_a_contribution_is_in_flight() -> None:
    stage = Stage(workers=1, servers=2, sync="asp", epochs=1).begin()
    who = stage.who(0)
    (lease,) = enrol(stage, 0).values()
    stage.tell(
        m.Trailer(**who, sequence=1, report=m.ContributionReport(weight=1.0, progress=whole(lease)))
    )
    stage.tell(m.Arrived(**who, routing=1, server=0, sequence=1, round=1))
    assert ended(stage.tell(m.Abstained(**who, lease=lease.number))) is None
    folds = sent(stage.tell(m.Arrived(**who, routing=1, server=1, sequence=1, round=1)), m.Fold)
    assert folds and folds[0].last


def test_a_job_is_idle_when_the_last_contribution_in_flight_changes_nothing() -> None:
    stage = Stage(workers=1, servers=2, sync="asp", epochs=1).begin()
    who = stage.who(0)
    (lease,) = enrol(stage, 0).values()
    stage.tell(m.Trailer(**who, sequence=1, report=m.ContributionReport(weight=1.0)))
    stage.tell(m.Arrived(**who, routing=1, server=0, sequence=1, round=1))
    stage.tell(m.Abstained(**who, lease=lease.number))
    reason = ended(stage.tell(m.Arrived(**who, routing=1, server=1, sequence=1, round=1)))
    assert reason is not None and reason.startswith("no worker had anything to contribute")


@pytest.mark.parametrize("rests_before", [True, False])
def test_the_goal_is_reached_when_the_points_that_are_missing_are_lost_with_their_worker(
    rests_before: bool,
) -> None:
    """With private data. The other worker has made all of its passes when the servers know that the
    owner of the missing points is gone."""
    stage = Stage(workers=2, sync="asp", epochs=1, data_private=True).begin()
    lease = enrol(stage, 0, 1)[0]
    assert sent(stage.contribute(0, 1, progress=whole(lease)), m.Fold) == []
    rests = m.Abstained(**stage.who(0), lease=lease.number)
    if rests_before:
        assert ended(stage.tell(rests)) is None
    stage.closed("w1")
    effects = stage.folded(1)
    if not rests_before:
        effects = stage.tell(rests)
    assert ended(effects) is None
    (fold,) = sent(effects, m.Fold)
    assert fold.last
    (release,) = sent(stage.folded(2), m.Release)
    assert release.stop


@pytest.mark.parametrize("announces", [True, False])
def test_a_fast_worker_with_private_data_does_not_reach_the_goal_before_a_slow_one_has_announced_its(
    announces: bool,
) -> None:
    """A member that announces nothing is waited for as long as the start of the job was."""
    job = {"sync": "asp", "epochs": 1, "data_private": True, "start_timeout_s": 30.0}
    stage = Stage(workers=2, **job).begin()
    lease = enrol(stage, 0)[0]
    effects = stage.contribute(0, 1, progress=whole(lease))
    effects += stage.tell(m.Abstained(**stage.who(0), lease=lease.number))
    effects += stage.tick(29)
    assert ended(effects) is None and not sent(effects, m.Fold)
    effects = stage.tick(0 if announces else 1)
    if announces:
        effects += stage.contribute(1, 1, progress=whole(enrol(stage, 1)[1]))
    (fold,) = sent(effects, m.Fold)
    assert fold.last
    said = {note.fields.get("reason") for note in of(effects, fx.Note) if note.what == "data-set"}
    assert said == (set() if announces else {"data-unannounced"})


# -- the server ------------------------------------------------------------------------------------

ANNA, BERT = m.MemberSpec(0, 1, "anna"), m.MemberSpec(1, 2, "bert")


class Seat:
    """The only server."""

    def __init__(self, *members: m.MemberSpec) -> None:
        self.server = ServerMachine(0, m.JobSpec(job="j", sync="asp"))
        self.tell(m.Place(term=1, routing=1, spec=spec((8,)), routes=(m.Route(0),)))
        self.tell(ev.SliceSeeded(0, 1))
        self.tell(m.Fold(term=1, round=0, members=members or (ANNA, BERT)))

    def tell(self, event: object) -> list[Effect]:
        effects = list(self.server.handle(event, 1))
        self.server.check()
        return effects

    def pull(self, sequence: int, ticket: int) -> list[Effect]:
        return self.tell(m.Pull(worker=0, incarnation=1, round=ticket, sequence=sequence))


def published(effects: list[Effect]) -> list[tuple[int, int, int]]:
    return [(p.worker, p.ticket, p.sequence) for p in of(effects, fx.PublishLatest)]


def test_a_pull_is_answered_when_its_own_contribution_is_in() -> None:
    seat = Seat()
    assert published(seat.pull(0, 1)) == [(0, 1, 0)]
    assert seat.pull(1, 2) == []
    effects = seat.tell(ev.Contributed(0, 1, 1, 1))
    assert published(effects) == [(0, 2, 1)]
    assert sent(effects, m.Acknowledged) == [], "the answer acknowledges"
    assert [arrived.sequence for arrived in sent(effects, m.Arrived, "lead")] == [1]


def test_a_contribution_that_asks_is_answered_before_the_lead_hears_of_it() -> None:
    seat = Seat()
    seat.pull(0, 1)
    effects = seat.tell(ev.Contributed(0, 1, 1, 1, pull=2, pulled=1))
    assert published(effects) == [(0, 2, 1)]
    assert of(effects, fx.Unlease) == [fx.Unlease(0, 1)]
    assert sent(effects, m.Acknowledged) == [], "the answer acknowledges"
    kinds = [type(effect) for effect in effects]
    assert kinds.index(fx.PublishLatest) < kinds.index(fx.Send)


def test_a_later_request_that_overtakes_a_contribution_is_the_one_that_is_answered() -> None:
    seat = Seat()
    assert seat.pull(1, 3) == []
    effects = seat.tell(ev.Contributed(0, 1, 1, 1, pull=2))
    assert published(effects) == [(0, 3, 1)]


def test_a_contribution_without_a_pull_is_acknowledged() -> None:
    seat = Seat()
    effects = seat.tell(ev.Contributed(0, 1, 1, 1))
    assert [ack.sequence for ack in sent(effects, m.Acknowledged, "w0")] == [1]
    assert published(seat.pull(1, 1)) == [(0, 1, 1)]


def test_a_repeated_contribution_is_acknowledged_only_when_it_is_folded() -> None:
    seat = Seat()
    assert seat.tell(ev.Repeated(0, 1, 1)) == []
    seat.tell(ev.Contributed(0, 1, 1, 1))
    assert [a.sequence for a in sent(seat.tell(ev.Repeated(0, 1, 1)), m.Acknowledged)] == [1]


def test_a_view_change_folds_nothing_and_is_confirmed_at_once() -> None:
    effects = Seat(ANNA).tell(m.Fold(term=1, round=1, members=(ANNA, BERT)))
    assert of(effects, fx.StartFold) == []
    assert of(effects, fx.Enlist) == [fx.Enlist((ANNA, BERT))]
    assert [folded.round for folded in sent(effects, m.Folded, "lead")] == [1]


def test_the_last_fold_stops_folding_and_answers_all_pulls() -> None:
    seat = Seat()
    assert seat.pull(1, 1) == []
    effects = seat.tell(m.Fold(term=1, round=1, members=(ANNA, BERT), last=True))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(fx.Freeze) < kinds.index(fx.PublishLatest)
    assert published(effects) == [(0, 1, 0)]
    assert published(seat.pull(7, 2)) == [(0, 2, 0)], "nothing more will be in"


def test_a_pull_reports_the_last_answer_that_was_copied() -> None:
    seat = Seat()
    pull = m.Pull(worker=0, incarnation=1, round=2, sequence=0, pulled=1)
    effects = seat.tell(pull)
    assert of(effects, fx.Unlease) == [fx.Unlease(0, 1)] and published(effects) == [(0, 2, 0)]
    assert of(seat.pull(0, 3), fx.Unlease) == []


def test_readers_are_remembered_until_they_have_copied_or_left() -> None:
    seat = Seat()
    pulled = m.Pulled(worker=0, incarnation=1, round=5)
    assert of(seat.tell(pulled), fx.Unlease) == [fx.Unlease(0, 5)]
    assert of(seat.tell(ev.Sent((0,), 6)), fx.Unlease) == [fx.Unlease(0, 6)]
    assert of(seat.tell(ev.LinkClosed("w0", "it died")), fx.Unlease) == [fx.Unlease(0, None)]


def test_contributions_of_an_evicted_worker_are_neither_reported_nor_acknowledged() -> None:
    seat = Seat()
    seat.tell(m.Fold(term=1, round=1, members=(BERT,)))
    assert seat.tell(ev.Contributed(0, 1, 1, 1)) == []
    assert seat.tell(ev.Repeated(0, 1, 1)) == []
    assert seat.pull(0, 1) == []


def test_a_new_incarnation_begins_with_nothing_acknowledged() -> None:
    seat = Seat()
    seat.tell(ev.Contributed(0, 1, 7, 1))
    seat.tell(m.Fold(term=1, round=1, members=(m.MemberSpec(0, 5, "anna"), BERT)))
    pull = m.Pull(worker=0, incarnation=5, round=1, sequence=1)
    assert seat.tell(pull) == [], "its first contribution is not in"
    assert published(seat.tell(ev.Contributed(0, 5, 1, 1))) == [(0, 1, 1)]


# -- the worker ------------------------------------------------------------------------------------

WHO = {"worker": 3, "incarnation": 4}


class Hand:
    """Worker w3 in a job of two servers."""

    def __init__(
        self, sync: str, shape: tuple[int, ...] = (8,), *, read_ahead: bool = False
    ) -> None:
        self.worker = WorkerMachine("anna")
        self.now_ns = 1
        job = m.JobSpec(job="j", servers=2, sync=sync, read_ahead=read_ahead)
        servers = tuple(m.ServerSpec(server, ADDRESS, 1) for server in (0, 1))
        self.tell(m.Admitted(**WHO, job=job, servers=servers))
        self.tell(ev.Attaching(spec(shape)))
        self.tell(ev.Linked(0, 1))
        self.tell(ev.Linked(1, 1))
        self.tell(m.Routing(**WHO, routing=1, routes=(m.Route(0), m.Route(1))))

    def tell(self, event: object) -> list[Effect]:
        effects = list(self.worker.handle(event, self.now_ns))
        self.worker.check()
        return effects

    def release(self, *, pushed: bool = False, stop: bool = False) -> list[Effect]:
        return self.tell(m.Release(**WHO, round=0, pushed=pushed, stop=stop))

    def land(self, ticket: int, sequence: int = 0) -> list[Effect]:
        self.tell(ev.Landed(0, m.EVERY_SLICE, ticket, sequence))
        return self.tell(ev.Landed(1, m.EVERY_SLICE, ticket, sequence))

    def begin(self) -> "Hand":
        self.release()
        self.land(1)
        assert self.worker.state is Phase.COMPUTING
        return self

    def compute(self) -> list[Effect]:
        return self.tell(ev.Computed(0, (0.1,), m.ContributionReport(weight=8.0, lease=6)))


def pulls(effects: list[Effect]) -> list[tuple[int, int]]:
    """The ticket of each pull, and the sequence number of the contribution that its answer must
    contain. A worker pulls with a contribution or with a `Pull`."""
    pushed = [(push.pull, push.sequence) for push in of(effects, fx.PushSlices) if push.pull]
    return pushed + [(pull.round, pull.sequence) for pull in sent(effects, m.Pull)]


def pulled_by(effects: list[Effect]) -> list[int]:
    """The tickets of the answers that a worker reports as copied, with `Pulled` or with its next
    request."""
    requests = [*of(effects, fx.PushSlices), *sent(effects, m.Pull)]
    return [r.pulled for r in requests] + [pulled.round for pulled in sent(effects, m.Pulled)]


@pytest.mark.parametrize("sync", ["asp", "ssp:1", "ssp-restart:1"])
def test_the_answer_has_its_own_contribution_in_it_and_acknowledges_it(sync: str) -> None:
    effects = Hand(sync).begin().compute()
    assert pulls(effects) == [(2, 1), (2, 1)]
    assert sent(effects, m.Pull) == [], "the contribution asks by itself"
    assert pulled_by(effects) == [1, 1], "and says that the answer before was copied"
    (trailer,) = sent(effects, m.Trailer)
    assert trailer.report.lease == 6


LARGE = (1024, 1024)


@pytest.mark.parametrize("shape", [(8,), LARGE])
def test_asp_computes_on_parameters_that_contain_its_last_contribution(
    shape: tuple[int, ...],
) -> None:
    hand = Hand("asp", shape).begin()
    for sequence in range(1, 20):
        effects = hand.compute()
        assert pulls(effects) == [(sequence + 1, sequence)] * 2
        assert of(effects, fx.Resume) == []
        assert in_words(hand.worker.why().reason) == "waiting for the servers' answer"
        (resume,) = of(hand.land(sequence + 1, sequence), fx.Resume)
        assert resume.round == sequence + 1 and hand.worker.acknowledged == sequence


@pytest.mark.parametrize("shape", [(8,), LARGE])
def test_read_ahead_goes_on_at_once_and_takes_the_answer_with_the_next_contribution(
    shape: tuple[int, ...],
) -> None:
    hand = Hand("asp", shape, read_ahead=True).begin()
    effects = hand.compute()
    assert of(effects, fx.Resume) == [fx.Resume(1, False)], "with the parameters at hand"
    assert of(effects, fx.Expect) == [fx.Expect(None, keep=2)], "an early answer is not lost"
    effects = hand.compute()
    assert of(effects, fx.Expect) == [fx.Expect(2)] and of(effects, fx.PushSlices) == []
    assert in_words(hand.worker.why().reason) == "waiting for the servers' answer"
    effects = hand.land(2, 1)
    assert [push.sequence for push in of(effects, fx.PushSlices)] == [2, 2]
    assert of(effects, fx.Resume) == [fx.Resume(2, False)]
    assert pulls(effects) == [(3, 2), (3, 2)]
    assert 2 in pulled_by(effects)
    assert hand.worker.acknowledged == 1


def test_read_ahead_sends_the_last_contribution_without_reading_anything_more() -> None:
    hand = Hand("asp", read_ahead=True).begin()
    hand.compute()
    hand.tell(ev.LeaveAsked())
    effects = hand.compute()
    assert [push.sequence for push in of(effects, fx.PushSlices)] == [2, 2]
    assert pulls(effects) == [] and of(effects, fx.Resume) == []
    assert of(effects, fx.StopWaiting) == [fx.StopWaiting()]
    hand.tell(ev.Skipped(0, 2, 1))
    hand.tell(ev.Skipped(1, 2, 1))
    assert hand.worker.unacknowledged == 0


def test_read_ahead_takes_no_mixture_of_two_answers() -> None:
    hand = Hand("asp", read_ahead=True).begin()
    hand.compute()
    hand.compute()
    assert of(hand.tell(ev.Landed(0, m.EVERY_SLICE, 2, 1)), fx.Resume) == []
    assert of(hand.tell(ev.Landed(1, m.EVERY_SLICE, 2, 1)), fx.Resume) == [fx.Resume(2, False)]


@pytest.mark.parametrize("first", ["word", "parameters"])
def test_ssp_needs_the_leads_release_too(first: str) -> None:
    hand = Hand("ssp:1").begin()
    hand.compute()
    if first == "word":
        assert of(hand.release(pushed=True), fx.Resume) == []
        assert of(hand.land(2, 1), fx.Resume) == [fx.Resume(2, False)]
    else:
        assert of(hand.land(2, 1), fx.Resume) == []
        assert of(hand.release(pushed=True), fx.Resume) == [fx.Resume(2, False)]


def test_a_worker_that_was_held_pulls_again_when_it_is_released() -> None:
    hand = Hand("ssp:1").begin()
    hand.compute()
    hand.land(2, 1)
    effects = hand.release(pushed=False)
    assert pulls(effects) == [(3, 1), (3, 1)]
    assert of(effects, fx.Resume) == []
    assert of(hand.land(3, 1), fx.Resume) == [fx.Resume(3, False)]


def test_an_answer_to_an_earlier_pull_is_ignored() -> None:
    hand = Hand("ssp:1").begin()
    hand.compute()
    hand.release(pushed=False)
    assert of(hand.land(2, 1), fx.Resume) == []
    assert of(hand.land(3, 1), fx.Resume) == [fx.Resume(3, False)]


def test_a_worker_that_rested_returns_with_a_new_pull() -> None:
    hand = Hand("asp").begin()
    effects = hand.tell(ev.Exhausted(6))
    assert [abstained.lease for abstained in sent(effects, m.Abstained)] == [6]
    assert hand.worker.state is Phase.RESTING and pulls(effects) == []
    assert pulls(hand.release()) == [(2, 0), (2, 0)]
    assert of(hand.land(2), fx.Resume) == [fx.Resume(2, False)]


def test_a_worker_pulls_once_more_at_the_end() -> None:
    hand = Hand("asp").begin()
    hand.compute()
    assert pulls(hand.release(stop=True)) == [(3, 1), (3, 1)]
    assert of(hand.land(2, 1), fx.Resume) == [], "that was asked before the end"
    assert of(hand.land(3, 1), fx.Resume) == [fx.Resume(3, True)]


def test_a_step_that_ends_after_the_job_is_not_sent() -> None:
    hand = Hand("asp").begin()
    assert hand.release(stop=True) == []
    effects = hand.compute()
    assert of(effects, fx.PushSlices) == [] and pulls(effects) == [(2, 0), (2, 0)]
    assert of(hand.land(2), fx.Resume) == [fx.Resume(2, True)]


def test_a_worker_that_stops_between_two_slices_reads_the_rest_from_the_new_primary() -> None:
    """One server has answered the pull, and the other is lost. The user's code may still read the
    parameters, so all slices must come from the same answer."""
    hand = Hand("ssp:1").begin()
    hand.compute()
    hand.tell(ev.Landed(0, m.EVERY_SLICE, 2, 1))
    assert of(hand.tell(ev.LeaveAsked()), fx.StopWaiting) == []
    here = (m.ServerSpec(0, ADDRESS, 1),)
    effects = hand.tell(m.Routing(**WHO, routing=2, routes=(m.Route(0), m.Route(0)), servers=here))
    assert pulls(effects) == [(3, 1)]
    effects = hand.tell(ev.Landed(0, m.EVERY_SLICE, 3, 1, 2, holds=(0, 1)))
    assert of(effects, fx.StopWaiting) == [fx.StopWaiting()]


def test_a_worker_that_stops_and_loses_a_server_amid_an_answer_rejoins() -> None:
    """No server replaces the lost one, so the worker can get a whole version only by joining again."""
    hand = Hand("ssp:1").begin()
    hand.compute()
    hand.tell(ev.Landed(0, m.EVERY_SLICE, 2, 1))
    hand.tell(ev.LeaveAsked())
    hand.tell(ev.LinkClosed("s1", "cut"))
    effects = list(hand.worker.handle(ev.Tick(), 60 * 10**9))
    assert len(of(effects, fx.Rejoin)) == 1 and of(effects, fx.StopWaiting) == []
