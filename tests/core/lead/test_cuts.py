"""Cuts, which are the copies of all slices for a checkpoint: when the lead orders a cut, what it records
for the cut, and when it gives the cut up."""

from typing import Any

import msgspec
import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Effect, Reason
from polyrhythm.core.record import Record, RecordedChunk, RecordedWorker
from polyrhythm.core.values import Schedule
from polyrhythm.errors import UsageError
from polyrhythm.wire import messages as m
from tests.core.stage import SECOND_NS, Stage, of, sent, spec

FILE = m.FileEntry("slices", 10, "digest", (0,))


def stage(every: str = "1rounds", **job: Any) -> Stage:
    asked = {"workers": 2, "servers": 2, "checkpoint_every": every, "store": "s", **job}
    return Stage(**asked).begin()


def notes(effects: list[Effect], what: str) -> list[dict[str, Any]]:
    return [note.fields for note in of(effects, fx.Note) if note.what == what]


def fold(lead: Stage, round_: int) -> list[Effect]:
    """Let both workers contribute and the servers fold the round."""
    lead.contribute(0, round_, round_)
    lead.contribute(1, round_, round_)
    return lead.folded(round_)


def write(lead: Stage, number: int) -> list[Effect]:
    lead.from_servers(m.CutTaken, number=number)
    return lead.from_servers(m.CutWritten, number=number, file=FILE)


@pytest.mark.parametrize(
    ("every", "now_s", "rounds", "due"),
    [
        ("60s", 59.9, 1000, False),
        ("60s", 60, 0, True),
        ("5rounds", 1e6, 4, False),
        ("5rounds", 0, 5, True),
        ("", 1e6, 10**6, False),
    ],
)
def test_a_cut_is_due_after_a_time_or_a_number_of_rounds(
    every: str, now_s: float, rounds: int, due: bool
) -> None:
    schedule = Schedule.parse(every)
    schedule.begin(0, 0)
    assert schedule.due(rounds, round(now_s * SECOND_NS)) == due


@pytest.mark.parametrize("every", ["5", "rounds", "0rounds", "-1rounds", "5 rounds", "often"])
def test_a_schedule_that_is_not_understood_is_refused(every: str) -> None:
    with pytest.raises(UsageError, match="--checkpoint-every"):
        Schedule.parse(every)


def test_with_rounds_the_cut_is_ordered_after_a_fold_and_before_any_release() -> None:
    lead = stage()
    effects = fold(lead, 1)
    kinds = [type(message) for message in sent(effects, m.Cut) + sent(effects, m.Release)]
    assert kinds == [m.Cut, m.Cut, m.Release, m.Release]
    order = [type(e.message) for e in of(effects, fx.Send)]
    assert order.index(m.Release) > order.index(m.Cut)
    assert {cut.number for cut in sent(effects, m.Cut)} == {1}


def test_a_checkpoint_exists_when_every_server_and_the_leads_process_have_written() -> None:
    lead = stage()
    fold(lead, 1)
    lead.from_servers(m.CutTaken, number=1)
    assert not of(lead.tell(m.CutWritten(server=0, number=1, file=FILE)), fx.CommitCut)
    (commit,) = of(lead.tell(m.CutWritten(server=1, number=1, file=FILE)), fx.CommitCut)
    assert commit.record.number == 1 and commit.record.round == 1
    assert commit.files == (FILE, FILE)
    assert notes(lead.tell(ev.CutCommitted(1, 5)), "checkpoint")[0]["nbytes"] == 25


def test_a_checkpoint_counts_though_older_ones_cannot_be_deleted() -> None:
    lead = stage()
    fold(lead, 1)
    write(lead, 1)
    effects = lead.tell(ev.CutCommitted(1, unpruned="the store is read-only"))
    assert notes(effects, "checkpoint") and not notes(effects, "checkpoint-failed")
    assert notes(effects, "checkpoints-kept")[0]["fields"]["detail"] == "the store is read-only"


def test_a_job_makes_no_more_checkpoints_in_a_store_that_another_job_writes_to() -> None:
    lead = stage()
    fold(lead, 1)
    write(lead, 1)
    effects = lead.tell(ev.CutCommitted(1, fault="another job has written it", taken=True))
    assert notes(effects, "checkpoint-failed")[0]["reason"] == "cut-taken"
    assert not sent(fold(lead, 2), m.Cut)
    refused = lead.lead._cuts.ask()
    assert refused is not None and refused.code == "store-taken"


def test_one_cut_is_made_at_a_time() -> None:
    lead = stage()
    assert sent(fold(lead, 1), m.Cut)
    assert not sent(fold(lead, 2), m.Cut), "the first one is being written"
    write(lead, 1)
    assert not sent(fold(lead, 3), m.Cut), "its manifest is being written"
    lead.tell(ev.CutCommitted(1))
    assert sent(fold(lead, 4), m.Cut)


@pytest.mark.parametrize("silent", ["server 1 in round 2", "trailer missing"])
def test_a_fold_with_a_contribution_on_some_servers_only_is_no_cut(silent: str) -> None:
    lead = stage(timer="1s")
    lead.contribute(0, 1)
    if silent == "trailer missing":
        lead.from_servers(m.Arrived, **lead.who(1), sequence=1, round=1)
    else:
        lead.tell(m.Trailer(**lead.who(1), sequence=1, report=m.ContributionReport(weight=2.0)))
        lead.tell(m.Arrived(**lead.who(1), sequence=1, round=1, server=0, routing=lead.routing))
    assert sent(lead.tick(2.0), m.Fold), "the timer closes the round"
    if silent != "trailer missing":
        arrived = m.Arrived(**lead.who(1), sequence=1, round=2, server=1, routing=lead.routing)
        lead.tell(arrived)
    assert not sent(lead.folded(1), m.Cut)


def test_a_cut_that_a_server_found_torn_is_given_up_and_the_next_fold_is_tried() -> None:
    lead = stage("100rounds")
    lead.lead._cuts.ask()
    assert sent(fold(lead, 1), m.Cut)
    effects = lead.tell(m.CutTaken(server=1, number=1, torn=1))
    assert notes(effects, "checkpoint-failed")[0]["reason"] == "cut-torn"
    assert {cut.number for cut in sent(fold(lead, 2), m.Cut)} == {2}
    assert not of(write(lead, 1), fx.CommitCut), "what is written of the old cut does not count"


def test_a_cut_is_given_up_if_a_server_cannot_write_and_the_next_one_is_made() -> None:
    lead = stage()
    fold(lead, 1)
    lead.from_servers(m.CutTaken, number=1)
    effects = lead.tell(m.CutWritten(server=1, number=1, fault="the disk is full"))
    assert notes(effects, "checkpoint-failed")[0]["fields"]["detail"] == "the disk is full"
    assert sent(fold(lead, 2), m.Cut)


def test_a_cut_is_given_up_if_a_server_is_lost_before_it_has_written() -> None:
    lead = stage(servers=3, replicas=1)
    fold(lead, 1)
    lead.from_servers(m.CutTaken, number=1)
    effects = lead.closed("s1")
    assert notes(effects, "checkpoint-failed")[0]["reason"] == "cut-server-lost"


def test_progress_of_a_contribution_that_is_not_in_the_cut_is_not_in_the_record() -> None:
    """The contribution comes while the servers fold round 1, so all of them add it to round 2."""
    lead = stage(timer="1s", min_batch=1)
    for worker in (0, 1):
        lead.tell(m.Enrol(**lead.who(worker), points=64, batch=2))
    lead.contribute(0, 1, 1, (m.ChunkProgress(0, 0, 1),))
    assert sent(lead.tick(2.0), m.Fold)
    lead.contribute(1, 1, 2, (m.ChunkProgress(16, 0, 1),))
    assert sent(lead.folded(1), m.Cut)
    (commit,) = of(write(lead, 1), fx.CommitCut)
    cursors = [chunk.cursor for chunk in commit.record.chunks]
    assert cursors[0] == 1 and sum(cursors) == 1


@pytest.mark.parametrize("skipped", [None, Reason("not-finite")], ids=["visited", "left-out"])
@pytest.mark.parametrize(("round_", "in_the_cut"), [(1, True), (2, False)])
def test_points_that_are_reported_during_a_fold_belong_to_the_round_of_the_report(
    round_: int, in_the_cut: bool, skipped: Reason | None
) -> None:
    """A member that contributes nothing reports points: they are in the fold under way if the report
    is about its round."""
    lead = stage(timer="1s", min_batch=1)
    for worker in (0, 1):
        lead.tell(m.Enrol(**lead.who(worker), points=64, batch=2))
    lead.contribute(0, 1, 1, (m.ChunkProgress(0, 0, 1),))
    assert sent(lead.tick(2.0), m.Fold)
    progress = (m.ChunkProgress(16, 0, 1),)
    lead.tell(m.Abstained(**lead.who(1), round=round_, progress=progress, skipped=skipped))
    assert sent(lead.folded(1), m.Cut)
    (commit,) = of(write(lead, 1), fx.CommitCut)
    assert [chunk.cursor for chunk in commit.record.chunks].count(1) == 1 + in_the_cut


# -- without rounds --------------------------------------------------------------------------------


def test_without_rounds_the_cut_waits_until_nothing_is_in_flight() -> None:
    lead = stage("5s", sync="asp")
    asked = sent(lead.tick(5.1), m.Withhold)
    assert {message.worker for message in asked} == {0, 1}
    assert not sent(lead.tell(m.Withheld(**lead.who(0), number=1)), m.Cut)
    lead.tell(m.Trailer(**lead.who(1), sequence=1, report=m.ContributionReport(weight=2.0)))
    effects = lead.tell(m.Withheld(**lead.who(1), sequence=1, number=1))
    assert not sent(effects, m.Cut), "a contribution is in flight"
    arrived = lead.from_servers(m.Arrived, **lead.who(1), sequence=1, round=1)
    assert len(sent(arrived, m.Cut)) == 2
    assert not sent(lead.tell(m.CutTaken(server=0, number=1)), m.Proceed)
    assert len(sent(lead.tell(m.CutTaken(server=1, number=1)), m.Proceed)) == 2


def test_without_rounds_the_first_cut_is_due_one_interval_after_the_opening() -> None:
    """A cut at the opening of round 1 would contain only the initial parameters."""
    lead = stage("900ms", sync="asp")
    assert not sent(lead.tick(0.5), m.Withhold)
    assert {message.number for message in sent(lead.tick(0.5), m.Withhold)} == {1}


def test_a_worker_that_joins_meanwhile_withholds_its_contributions_too() -> None:
    lead = stage("5s", sync="asp")
    lead.tick(5.1)
    lead.hello("late")
    effects = lead.attach(2)
    assert sent(effects, m.Withhold, "w2")
    for worker in (0, 1):
        assert not sent(lead.tell(m.Withheld(**lead.who(worker), number=1)), m.Cut)
    effects = lead.folded(1)
    assert not sent(effects, m.Cut), "the new one may be about to contribute"
    assert sent(lead.tell(m.Withheld(**lead.who(2), number=1)), m.Cut)


def test_a_cut_that_waits_too_long_for_a_worker_is_given_up() -> None:
    lead = stage("5s", sync="asp")
    lead.tick(5.1)
    lead.tell(m.Withheld(**lead.who(0), number=1))
    effects = lead.tick(10.1)
    (failed,) = notes(effects, "checkpoint-failed")
    assert failed["reason"] == "cut-busy" and failed["fields"]["workers"] == [1]
    assert len(sent(effects, m.Proceed)) == 2


def test_a_late_answer_to_a_cut_that_was_given_up_does_not_count_for_the_next_one() -> None:
    lead = stage("5s", sync="asp")
    lead.tick(5.1)
    assert notes(lead.tick(10.1), "checkpoint-failed")
    lead.tick(5.1)
    for worker in (0, 1):
        assert not sent(lead.tell(m.Withheld(**lead.who(worker), number=1)), m.Cut)
    lead.tell(m.Withheld(**lead.who(0), number=2))
    effects = lead.tell(m.Withheld(**lead.who(1), number=2))
    assert {cut.number for cut in sent(effects, m.Cut)} == {2}


@pytest.mark.parametrize("first", ["looks", "reads"])
def test_the_time_of_a_pause_does_not_count_for_a_cut_that_waits(first: str) -> None:
    """`first`: what the lead does first after the pause: look at the clock, or read a message."""
    lead = stage("5s", sync="asp", heartbeat_s=0.5)
    lead.tick(5.1)
    effects = lead.sleep(60.0) if first == "looks" else []
    lead.now_ns += 0 if first == "looks" else 60 * SECOND_NS
    effects += lead.tell(m.Withheld(**lead.who(0), number=1))
    assert not notes(effects, "checkpoint-failed")
    assert sent(lead.tell(m.Withheld(**lead.who(1), number=1)), m.Cut)


def test_a_worker_that_leaves_is_not_waited_for() -> None:
    lead = stage("5s", sync="asp")
    lead.tick(5.1)
    lead.tell(m.Withheld(**lead.who(0), number=1))
    lead.tell(m.Leave(**lead.who(1)))
    assert sent(lead.folded(1), m.Cut)


# -- resuming --------------------------------------------------------------------------------------

RECORD = Record(
    number=7,
    round=40,
    view=9,
    routing=4,
    seed=3,
    points=60,
    chunks=tuple(RecordedChunk(10 * n, 10 * n + 10, 2, n, f"worker-{n % 2}") for n in range(6)),
    workers=(
        RecordedWorker(name="worker-0", number=0, clock=40),
        RecordedWorker(name="worker-1", number=1, clock=39),
    ),
)


class Resumed(Stage):
    """A lead that resumes from a record."""

    def __init__(self, record: Record = RECORD, **job: Any) -> None:
        self._asked, self._record = False, record
        resumed = {"resume": "s", "resume_number": 7, "resume_round": 40, "checkpoints": 7}
        super().__init__(**{"workers": 2, "servers": 2, "store": "s", **resumed, **job})

    def server(self, number: int, **fields: Any) -> list[Effect]:
        if not self._asked:
            self._asked = True
            self.tell(ev.ResumeAsked(self._record, spec((64,))))
        return super().server(number, **fields)


def test_the_wait_for_workers_of_a_resumed_job_begins_with_the_job() -> None:
    """It has a model before any worker is here, and must not say that it has waited since the machine
    was started."""
    lead = Stage(workers=2, servers=1, store="s", resume="s")
    lead.tell(ev.ResumeAsked(RECORD, spec((64,))))
    assert lead.lead.why().since_ns == lead.now_ns > SECOND_NS


def test_epochs_and_incarnations_continue_after_a_resume() -> None:
    lead = Resumed()
    assert lead.routing == RECORD.routing + 1
    lead.hello("worker-1")
    lead.hello("worker-0")
    assert lead.incarnations == {1: RECORD.view + 1, 0: RECORD.view + 2}


def test_servers_read_the_checkpoint_and_no_worker_seeds() -> None:
    lead = Resumed()
    lead.hello("worker-0")
    lead.attach(0)
    (routing,) = sent(lead.from_servers(m.Placed), m.Routing)
    assert not routing.seed


def test_a_worker_gets_the_chunks_that_its_name_held_and_they_continue_where_they_were() -> None:
    lead = Resumed().begin()
    leases = {}
    for worker in (0, 1):
        enrol = m.Enrol(**lead.who(worker), points=60, batch=2)
        (leases[worker],) = sent(lead.tell(enrol), m.Leased)
    assert [chunk.chunk for chunk in leases[1].chunks] == [1, 3, 5]
    assert [(chunk.passes, chunk.cursor) for chunk in leases[0].chunks] == [(2, 0), (2, 2), (2, 4)]
    assert leases[0].seed == RECORD.seed


def test_more_workers_share_the_chunks_without_overlap() -> None:
    lead = Resumed(workers=3).begin()
    held: list[int] = []
    for worker in range(3):
        enrol = m.Enrol(**lead.who(worker), points=60, batch=2)
        (lease,) = sent(lead.tell(enrol), m.Leased)
        held += [chunk.chunk for chunk in lease.chunks]
    assert sorted(held) == list(range(6))


def test_rounds_and_numbers_of_checkpoints_continue() -> None:
    lead = Resumed(checkpoint_every="1rounds", rounds=42).begin()
    assert {cut.number for cut in sent(fold(lead, 1), m.Cut)} == {8}
    (commit,) = of(write(lead, 8), fx.CommitCut)
    assert commit.record.round == 41
    assert {worker.name: worker.clock for worker in commit.record.workers}["worker-0"] == 41
    assert all(release.stop for release in sent(fold(lead, 2), m.Release)), "round 42 is the goal"


def test_the_best_value_is_recorded_and_a_resumed_job_keeps_only_better_models() -> None:
    lead = stage(keep_best="accuracy")
    lead.tell(m.Report(**lead.who(0), round=0, metrics={"accuracy": 0.8}))
    fold(lead, 1)
    (commit,) = of(write(lead, 1), fx.CommitCut)
    assert commit.record.best == 0.8
    resumed = Stage(workers=1, servers=2, store="s", resume="s", keep_best="accuracy")
    resumed.tell(ev.ResumeAsked(msgspec.structs.replace(RECORD, best=0.8), spec((64,))))
    resumed.begin()
    worse = resumed.tell(m.Report(**resumed.who(0), round=0, metrics={"accuracy": 0.7}))
    assert not sent(worse, m.Capture)
    better = resumed.tell(m.Report(**resumed.who(0), round=0, metrics={"accuracy": 0.9}))
    assert sent(better, m.Capture)
