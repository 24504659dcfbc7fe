"""Members that leave, die or rejoin while a fold is under way."""

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, of, sent, spec


def with_data(**job: object) -> Stage:
    """A job of two workers, each with chunks of a data set."""
    stage = Stage(workers=2, **job).begin()
    for worker in range(2):
        stage.tell(m.Enrol(**stage.who(worker), points=40, batch=4))
    return stage


def leased_points(effects: list[Effect], worker: int) -> int:
    """How many points the last lease of a worker has; 0 if it got none."""
    leases = sent(effects, m.Leased, f"w{worker}")
    return sum(chunk.last - chunk.first for chunk in leases[-1].chunks) if leases else 0


def test_chunks_of_a_member_that_dies_during_a_fold_wait_for_the_next_one() -> None:
    """The servers learn from the next fold that worker-1 is gone. Until then they may fold a
    contribution of it, which visits its points."""
    stage = with_data()
    stage.contribute(0, 1)
    assert sent(stage.contribute(1, 1), m.Fold)
    stage.closed("w1")
    effects = stage.folded(1)
    assert not leased_points(effects, 0), "its chunks are not free yet"
    trailer = m.Trailer(**stage.who(1), sequence=2, report=m.ContributionReport(weight=2.0))
    stage.tell(trailer)
    stage.from_servers(m.Arrived, **stage.who(1), sequence=2, round=2)
    assert stage.lead.parts.contributions.done(*stage.who(1).values()) == 2, "it counts"
    (fold,) = sent(stage.contribute(0, 2, 2), m.Fold, "s0")
    assert [member.worker for member in fold.members] == [0]
    assert leased_points(stage.folded(2), 0) == 40


def test_the_members_of_a_fold_under_way_do_not_change() -> None:
    stage = with_data()
    stage.contribute(0, 1)
    (fold,) = sent(stage.contribute(1, 1), m.Fold, "s0")
    assert [member.worker for member in fold.members] == [0, 1]
    effects = stage.closed("w1")
    assert not sent(effects, m.Fold) and not sent(effects, m.Release)
    assert [release.worker for release in sent(stage.folded(1), m.Release)] == [0]


def test_a_member_that_rejoins_during_a_fold_is_released_after_the_next_one() -> None:
    """The servers do not know its new incarnation until the next fold, so it could not read the
    version."""
    stage = with_data()
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    before = stage.incarnations[1]
    stage.hello("worker-1", incarnation=before)
    stage.attach(1)
    assert stage.incarnations[1] > before
    assert [release.worker for release in sent(stage.folded(1), m.Release)] == [0]
    (fold,) = sent(stage.contribute(0, 2, 2), m.Fold, "s0")
    assert {member.worker: member.incarnation for member in fold.members} == stage.incarnations
    assert {release.worker for release in sent(stage.folded(2), m.Release)} == {0, 1}


def test_a_contribution_of_an_incarnation_that_is_gone_does_not_count_for_its_successor() -> None:
    stage = with_data()
    stage.contribute(0, 1)
    gone = stage.who(1)
    stage.hello("worker-1", incarnation=gone["incarnation"])
    stage.attach(1)
    stage.folded(1)
    stage.contribute(0, 2, 2)
    stage.folded(2)
    trailer = m.Trailer(**gone, sequence=1, report=m.ContributionReport(weight=2.0))
    assert not stage.tell(trailer)
    assert not stage.from_servers(m.Arrived, **gone, sequence=1, round=3)
    assert stage.lead.parts.contributions.done(*stage.who(1).values()) == 0


def test_the_last_member_dies_during_a_fold() -> None:
    stage = with_data()
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    stage.closed("w1")
    effects = stage.closed("w0")
    assert not sent(effects, m.Fold)
    assert stage.lead.wake_at() is None, "the job has ended"


def test_the_objective_of_a_worker_that_has_left_does_not_make_the_job_fail() -> None:
    """worker-1 reports a loss that is not finite, and dies. The goal counts as reached."""
    stage = Stage(workers=2, sync="asp", rounds=3).begin()
    trailer = m.Trailer(
        **stage.who(1), sequence=1, report=m.ContributionReport(weight=1.0, objective=float("nan"))
    )
    stage.tell(trailer)
    stage.from_servers(m.Arrived, **stage.who(1), sequence=1, round=1)
    assert stage.lead.parts.progress.learning.unfinished
    stage.closed("w1")
    assert not stage.lead.parts.progress.learning.unfinished


def test_the_reports_of_a_worker_that_has_left_do_not_count_for_a_target() -> None:
    """The mean of both reports is below the target; that of worker-0 alone is not."""
    stage = Stage(workers=2, targets=(m.Target("accuracy", 0.8, at_least=True),)).begin()
    for worker, value in ((0, 0.9), (1, 0.1)):
        stage.tell(m.Report(**stage.who(worker), round=0, metrics={"accuracy": value}))
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    assert not any(release.stop for release in sent(stage.folded(1), m.Release))
    stage.closed("w1")
    stage.contribute(0, 2, 2)
    assert all(release.stop for release in sent(stage.folded(2), m.Release))


def test_a_fold_does_not_wait_for_what_a_dead_worker_was_to_send_again() -> None:
    """A server that is promoted lacks the contribution of worker-0, which dies before it has sent it
    again."""
    stage = Stage(workers=2, servers=3, replicas=1).begin()
    stage.contribute(0, 1)
    stage.closed("s1")
    for server in (0, 2):
        stage.tell(m.Placed(server=server, routing=stage.routing))
    assert stage.lead.parts.contributions.owed
    stage.tell(m.Trailer(**stage.who(1), sequence=1, report=m.ContributionReport(weight=2.0)))
    for server in (0, 2):
        where = {"server": server, "routing": stage.routing, "round": 1}
        last = stage.tell(m.Arrived(**where, **stage.who(1), sequence=1))
    assert not sent(last, m.Fold), "worker-0 is to send its contribution again"
    assert sent(stage.closed("w0"), m.Fold)


def test_a_server_may_name_a_contribution_before_anything_else_is_heard_of_it() -> None:
    """Server 0 lacked only slices that it has given up. It says that it has the contribution of
    worker-1 when it follows the new routes, and does not report it again."""
    stage = Stage(workers=2, servers=3, replicas=1).begin()
    stage.closed("s1")
    row = m.Row(1, stage.incarnations[1], 1)
    for server, rows in ((0, (row,)), (2, ())):
        stage.tell(m.Placed(server=server, routing=stage.routing, rows=rows))
    for worker, servers in ((1, (2,)), (0, (0, 2))):
        stage.tell(
            m.Trailer(**stage.who(worker), sequence=1, report=m.ContributionReport(weight=2.0))
        )
        for server in servers:
            where = {"server": server, "routing": stage.routing, "round": 1}
            effects = stage.tell(m.Arrived(**where, **stage.who(worker), sequence=1))
        assert stage.lead.parts.contributions.done(*stage.who(worker).values()) == 1
    assert sent(effects, m.Fold)


def test_a_job_that_has_reached_its_goal_does_not_break_off_a_round() -> None:
    stage = Stage(workers=1, rounds=1).begin()
    effects = [*stage.contribute(0, 1), *stage.folded(1)]
    effects += stage.tell(m.Leave(**stage.who(0)))
    assert of(effects, fx.End)
    lines = [note.fields["round"] for note in of(effects, fx.Note) if note.what == "rounds"]
    assert lines == [1]


def test_an_answer_to_the_last_fold_is_none_to_this_one() -> None:
    """A server may answer a fold twice, because the order is sent again with new routes."""
    stage = Stage(workers=1, servers=2).begin()
    stage.contribute(0, 1)
    stage.folded(1)
    assert sent(stage.contribute(0, 2, 2), m.Fold)
    again = m.Folded(server=1, routing=stage.routing, round=1, weight=1.0)
    stage.tell(again)
    assert not sent(stage.tell(msgspec.structs.replace(again, server=0, round=2)), m.Release)
    assert sent(stage.tell(msgspec.structs.replace(again, round=2)), m.Release)


def test_a_worker_that_rested_and_contributes_to_the_same_round_counts_once() -> None:
    """worker-1 had no points left, and got chunks of a worker that has left."""
    stage = Stage(workers=2).begin()
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    stage.folded(1)
    stage.tell(m.Abstained(**stage.who(1), round=2))
    stage.tell(m.Trailer(**stage.who(1), sequence=2, report=m.ContributionReport(weight=2.0)))
    stage.from_servers(m.Arrived, **stage.who(1), sequence=2, round=2)
    (fold,) = sent(stage.contribute(0, 2, 2), m.Fold, "s0")
    assert fold.share == 1.0


def test_without_rounds_a_view_change_waits_for_all_servers_although_routes_change() -> None:
    """The chunks of a worker that has died are free when every server knows that it is gone. Server 1
    dies before that, and server 2 has not answered yet."""
    stage = with_data(sync="asp", servers=3, replicas=1)
    (fold,) = {fold.round for fold in sent(stage.closed("w1"), m.Fold)}
    answer = m.Folded(server=0, routing=stage.routing, round=fold)
    stage.tell(answer)
    effects = stage.closed("s1")
    for server in (0, 2):
        effects += stage.tell(m.Placed(server=server, routing=stage.routing))
    assert not leased_points(effects, 0)
    assert sent(effects, m.Fold, "s2"), "the order is sent again"
    effects = stage.tell(m.Folded(server=2, routing=stage.routing, round=fold))
    assert leased_points(effects, 0) == 40


def placed(stage: Stage, **by_server: m.Placed) -> list[Effect]:
    """Let every server follow the present routes; `by_server`: what some of them say."""
    return [
        effect
        for server in range(3)
        for effect in stage.tell(
            by_server.get(f"s{server}", m.Placed(server=server, routing=stage.routing, round=1))
        )
    ]


def test_the_routes_of_a_move_in_a_fold_name_the_contributions_of_this_fold() -> None:
    """All primaries have folded round 1 when a slice gets its new primary, before workers are
    released. The contribution of round 1 is in every slice and must not be sent again."""
    stage = Stage(workers=1, servers=2).begin()
    stage.server(2)
    placed(stage)
    for primary in (0, 1):
        stage.tell(m.CaughtUp(server=primary, peer=2, routing=stage.routing))
    placed(stage)
    stage.contribute(0, 1)
    (place,) = sent(stage.folded(1), m.Place, "s2")
    assert any(route.primary == 2 for route in place.routes)
    effects = placed(stage)
    assert [routing.secured for routing in sent(effects, m.Routing, "w0")] == [1]
    assert [release.round for release in sent(effects, m.Release)] == [1]
    stage.contribute(0, 2, 2)
    arrived = m.Arrived(**stage.who(0), server=2, routing=stage.routing, sequence=2, round=2)
    assert sent(stage.tell(arrived), m.Fold)
    assert stage.lead.parts.rounds.folded == 1, "no server has folded round 2 yet"


def fold_without_s1(**job: object) -> Stage:
    """Three servers with one copy of each slice. The fold of round 1 is ordered. If s1 dies, s2 has
    all of its slices."""
    stage = Stage(workers=1, servers=3, replicas=1, **job)
    stage.hello("worker-0")
    stage.attach(0, spec((16 * 12,)))
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    stage.folded(0)
    assert sent(stage.contribute(0, 1), m.Fold)
    return stage


def answer(stage: Stage, kind: type[m.Message], server: int, **fields: object) -> list[Effect]:
    return stage.tell(kind(**{"server": server, "routing": stage.routing, **fields}))


def test_a_server_that_gets_a_slice_without_this_fold_must_fold_again() -> None:
    """s2 has folded round 1 in its own slices when it becomes the primary of a slice of s1, which
    died before its replica had the fold."""
    stage = fold_without_s1()
    for server in (0, 2):
        answer(stage, m.Folded, server, round=1, weight=2.0)
    (place,) = sent(stage.closed("s1"), m.Place, "s0")
    assert {route.primary for route in place.routes if route.since == stage.routing} == {2}
    row = (m.Row(0, stage.incarnations[0], 1),)
    effects = answer(stage, m.Placed, 0, round=1, rows=row)
    effects += answer(stage, m.Placed, 2, round=0, rows=row)
    assert [fold.round for fold in sent(effects, m.Fold, "s2")] == [1]
    assert not sent(effects, m.Fold, "s0")
    assert not sent(effects, m.Release), "s2 has not folded all of its slices yet"
    effects = answer(stage, m.Folded, 2, round=1, weight=2.0)
    assert [release.round for release in sent(effects, m.Release)] == [1]


def test_a_fold_is_not_over_while_slices_of_a_lost_server_change_hands() -> None:
    """s0 and s2 answer for the slices that they had. They are the only primaries now, but s2 has not
    folded the slices of s1."""
    stage = fold_without_s1()
    stage.closed("s1")
    for server in (0, 2):
        assert not sent(answer(stage, m.Folded, server, round=1, weight=2.0), m.Release)
    row = (m.Row(0, stage.incarnations[0], 1),)
    effects = answer(stage, m.Placed, 0, round=1, rows=row)
    effects += answer(stage, m.Placed, 2, round=0, rows=row)
    assert sent(effects, m.Fold, "s2") and not sent(effects, m.Release)
    assert [routing.secured for routing in sent(effects, m.Routing, "w0")] == [0]


def test_a_fold_is_not_repeated_before_a_lost_contribution_was_sent_again() -> None:
    """s2 gets a slice in which the contribution of round 1 is missing. If it folded now, the fold
    would lack this contribution."""
    stage = fold_without_s1()
    answer(stage, m.Folded, 0, round=1, weight=2.0)
    stage.closed("s1")
    row = (m.Row(0, stage.incarnations[0], 1),)
    effects = answer(stage, m.Placed, 0, round=1, rows=row)
    effects += answer(stage, m.Placed, 2, round=0)
    assert stage.lead.parts.contributions.owed and not sent(effects, m.Fold)
    effects = answer(stage, m.Arrived, 2, **stage.who(0), sequence=1, round=1)
    assert [fold.round for fold in sent(effects, m.Fold, "s2")] == [1]


def test_a_fold_is_not_repeated_while_the_slices_of_a_second_server_change_hands() -> None:
    """s2 lacks a contribution of worker-0, which dies before it has sent it again. Meanwhile s3 has
    died, and its new primary may lack the contribution of worker-1: it must not fold yet."""
    stage = Stage(workers=2, servers=4, replicas=2)
    for worker in range(2):
        stage.hello(f"worker-{worker}")
        stage.attach(worker, spec((16 * 12,)))
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    stage.folded(0)
    stage.contribute(0, 1)
    assert sent(stage.contribute(1, 1), m.Fold)
    of_first, of_second = (m.Row(worker, stage.incarnations[worker], 1) for worker in range(2))
    stage.closed("s1")
    for server in (0, 3):
        answer(stage, m.Placed, server, rows=(of_first, of_second))
    answer(stage, m.Placed, 2, rows=(of_second,))
    assert stage.lead._contributions.owing() == ({0}, {2})
    stage.closed("s3")
    assert stage.lead._routing.moving
    assert not sent(stage.closed("w0"), m.Fold)
    answer(stage, m.Placed, 0)
    effects = answer(stage, m.Placed, 2, rows=(of_second,))
    assert stage.lead._contributions.owing() == ({1}, {0})
    assert not sent(effects, m.Fold), "worker-1 is to send its contribution again"
    effects = answer(stage, m.Arrived, 0, **stage.who(1), sequence=1, round=1)
    assert [fold.round for fold in sent(effects, m.Fold, "s0")] == [1]


def test_no_fold_is_ordered_after_the_end_of_the_job_was_decided() -> None:
    """Without rounds: the goal is reached while servers learn that worker-1 is gone, and the last
    worker dies before all of them have answered."""
    stage = Stage(workers=2, sync="asp", rounds=1, save_model=True).begin()
    (fold,) = {fold.round for fold in sent(stage.closed("w1"), m.Fold)}
    stage.contribute(0, 1)
    assert stage.lead._ending.goal is not None
    stage.closed("w0")
    assert stage.lead._ending.decided
    assert not sent(stage.folded(fold), m.Fold)


def test_no_slice_moves_in_a_fold_that_becomes_a_cut() -> None:
    """The cut of the checkpoint belongs to the routes with which the round was folded."""
    stage = Stage(workers=1, servers=2, checkpoint_every="2rounds", store="s").begin()
    stage.contribute(0, 1)
    stage.folded(1)
    stage.server(2)
    placed(stage)
    for primary in (0, 1):
        stage.tell(m.CaughtUp(server=primary, peer=2, routing=stage.routing))
    placed(stage)
    stage.contribute(0, 2, 2)
    effects = stage.folded(2)
    assert sent(effects, m.Cut) and not sent(effects, m.Place)
    stage.from_servers(m.CutTaken, number=1)
    file = m.FileEntry("slices", 10, "digest", (0,))
    stage.from_servers(m.CutWritten, number=1, file=file)
    stage.contribute(0, 3, 3)
    (place,) = sent(stage.folded(3), m.Place, "s2")
    assert any(route.primary == 2 for route in place.routes)


def test_a_contribution_that_another_copy_has_is_not_sent_again() -> None:
    """s2 gets the slices of s1 and lacks the contribution of round 1. It dies too, and its slices go to
    servers that have this contribution."""
    stage = Stage(workers=1, servers=4, replicas=2)
    stage.hello("worker-0")
    stage.attach(0, spec((16 * 12,)))
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    stage.folded(0)
    assert sent(stage.contribute(0, 1), m.Fold)
    row = (m.Row(0, stage.incarnations[0], 1),)
    stage.closed("s1")
    for server, rows in ((0, row), (3, row), (2, ())):
        answer(stage, m.Placed, server, rows=rows)
    assert stage.lead._contributions.owing() == ({0}, {2})
    stage.closed("s2")
    effects = answer(stage, m.Placed, 0, rows=row)
    effects += answer(stage, m.Placed, 3, rows=row)
    assert not stage.lead._contributions.owed
    assert {fold.round for fold in sent(effects, m.Fold)} == {1}


def test_an_answer_counts_although_a_slice_gets_its_new_primary_meanwhile() -> None:
    """Without rounds: servers 0 and 2 answer the view change before they follow the new routes."""
    stage = with_data(sync="asp", servers=3, replicas=1)
    (fold,) = {fold.round for fold in sent(stage.closed("w1"), m.Fold)}
    stage.closed("s1")
    effects: list[Effect] = []
    for server in (0, 2):
        stage.tell(m.Folded(server=server, routing=stage.routing, round=fold))
    for server in (0, 2):
        effects += stage.tell(m.Placed(server=server, routing=stage.routing))
    assert not sent(effects, m.Fold), "both have answered"
    assert leased_points(effects, 0) == 40


def test_a_version_that_lacks_a_part_of_a_contribution_is_told_to_its_readers() -> None:
    """Kind statistics: the fold names a contribution of worker-0. Of the servers that have it one
    dies, and worker-0 too, before it has sent the contribution again. Workers must make no step from
    this version, because its sum has the contribution in some slices only."""
    stage = Stage(workers=2, servers=3, replicas=1, kind="statistics").begin()
    stage.contribute(0, 1)
    assert sent(stage.contribute(1, 1), m.Fold)
    stage.closed("s1")
    rows = [m.Row(worker, stage.incarnations[worker], 1) for worker in range(2)]
    answer(stage, m.Placed, 0, rows=tuple(rows))
    answer(stage, m.Placed, 2, rows=(rows[1],))
    assert stage.lead._contributions.owing() == ({0}, {2})
    stage.closed("w0")
    effects = [
        effect
        for server in (0, 2)
        for effect in answer(stage, m.Folded, server, round=1, weight=2.0)
    ]
    assert [release.torn for release in sent(effects, m.Release, "w1")] == [True]
    stage.tell(m.Trailer(**stage.who(1), sequence=2, report=m.ContributionReport(weight=2.0)))
    for server in (0, 2):
        answer(stage, m.Arrived, server, **stage.who(1), sequence=2, round=2)
    for server in (0, 2):
        effects = answer(stage, m.Folded, server, round=2, weight=2.0)
    assert [release.torn for release in sent(effects, m.Release, "w1")] == [False]
