"""The state of the user's code in checkpoints: which worker the lead asks for it, and what happens
if that worker is lost, slow or hostile."""

import itertools
from typing import Any

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Effect
from polyrhythm.core.model import PART_NBYTES, most_nbytes, parts_of
from polyrhythm.wire import messages as m
from tests.core.lead.test_cuts import RECORD, fold, notes, stage, write
from tests.core.stage import Stage, of, sent, spec


def keeping(*workers: int, **job: Any) -> Stage:
    """A job in which these workers keep a state."""
    lead = stage(**job)
    for worker in workers:
        lead.tell(m.Keeping(**lead.who(worker)))
    return lead


def kept(lead: Stage, worker: int, number: int = 1, **fields: Any) -> list[Effect]:
    """A worker sends its state, in one part unless the fields say otherwise."""
    fields = {"nbytes": 10, "offset": 0, "part": 10, **fields}
    return lead.tell(m.Kept(**lead.who(worker), number=number, **fields))


def asked(effects: list[Effect]) -> list[int]:
    """The workers that were asked for their state."""
    return [message.worker for message in sent(effects, m.Keep)]


def test_the_first_worker_is_asked_before_it_is_released() -> None:
    lead = keeping(1, 0)
    effects = fold(lead, 1)
    assert asked(effects) == [0]
    order = [type(e.message) for e in of(effects, fx.Send) if e.to == "w0"]
    assert order == [m.Keep, m.Release], "so its state is that after the round of the cut"
    (expected,) = of(effects, fx.ExpectKept)
    assert (expected.number, expected.worker) == (1, 0)
    assert expected.most_nbytes == most_nbytes(spec((64,)))


def test_names_decide_and_not_the_order_in_which_workers_joined() -> None:
    names = ["worker-10", "worker-2", "worker-1"]
    lead = Stage(workers=3, servers=2, checkpoint_every="1rounds", store="s")
    for number, name in enumerate(names):
        lead.hello(name)
        lead.attach(number)
    for message in (m.Placed, m.Seeded):
        lead.from_servers(message)
    lead.folded(0)
    for number in range(3):
        lead.tell(m.Keeping(**lead.who(number)))
        lead.contribute(number, 1, 1)
    assert asked(lead.folded(1)) == [2]


def test_a_worker_that_keeps_nothing_is_not_asked() -> None:
    lead = keeping(1)
    assert asked(fold(lead, 1)) == [1]
    assert not asked(fold(stage(), 1))


def test_the_checkpoint_waits_for_the_whole_state() -> None:
    lead = keeping(0)
    fold(lead, 1)
    assert not of(write(lead, 1), fx.CommitCut)
    assert not of(kept(lead, 0, nbytes=20), fx.CommitCut)
    (commit,) = of(kept(lead, 0, nbytes=20, offset=10), fx.CommitCut)
    assert commit.kept
    effects = lead.tell(ev.CutCommitted(1))
    assert of(effects, fx.ExpectKept) == [fx.ExpectKept()], "the memory is freed"
    assert not notes(effects, "state-missing")


def test_a_state_that_came_early_waits_for_the_servers() -> None:
    lead = keeping(0)
    fold(lead, 1)
    assert not of(kept(lead, 0), fx.CommitCut)
    (commit,) = of(write(lead, 1), fx.CommitCut)
    assert commit.kept


@pytest.mark.parametrize("other", [{"worker": 1}, {"number": 7}], ids=["worker", "cut"])
def test_only_the_state_that_was_asked_for_counts(other: dict[str, int]) -> None:
    lead = keeping(0, 1)
    fold(lead, 1)
    write(lead, 1)
    assert not of(kept(lead, **{"worker": 0, "number": 1, **other}), fx.CommitCut)
    assert of(kept(lead, 0), fx.CommitCut)


def test_if_the_keeper_is_lost_the_next_cut_asks_its_successor() -> None:
    lead = keeping(0, 1)
    fold(lead, 1)
    write(lead, 1)
    effects = lead.closed("w0")
    (failed,) = notes(effects, "checkpoint-failed")
    assert failed["reason"] == "keeper-lost"
    assert not of(effects, fx.CommitCut)
    lead.contribute(1, 2, 2)
    effects = lead.folded(2)
    assert asked(effects) == [1], "the successor's state after this round belongs to this cut"
    write(lead, 2)
    (commit,) = of(kept(lead, 1, number=2), fx.CommitCut)
    assert commit.record.round == 2 and commit.kept


def test_a_keeper_that_is_lost_after_it_has_sent_its_state_is_not_missed() -> None:
    lead = keeping(0)
    fold(lead, 1)
    kept(lead, 0)
    lead.closed("w0")
    (commit,) = of(write(lead, 1), fx.CommitCut)
    assert commit.kept


def test_a_worker_that_came_back_has_not_seen_all_rounds_and_is_asked_last() -> None:
    lead = keeping(0, 1, every="2rounds")
    lead.closed("w0")
    lead.contribute(1, 1, 1)
    lead.folded(1)
    lead.hello("worker-0")
    lead.attach(0)
    lead.tell(m.Keeping(**lead.who(0)))
    lead.contribute(1, 2, 2)
    lead.contribute(0, 1, 2)
    assert asked(lead.folded(2)) == [1]


def test_a_silent_keeper_does_not_delay_the_checkpoint_for_ever() -> None:
    lead = keeping(0)
    fold(lead, 1)
    write(lead, 1)
    effects = lead.tick(9)
    assert not of(effects, fx.CommitCut)
    kept(lead, 0, nbytes=30)
    assert not of(lead.tick(9), fx.CommitCut), "each part gives it more time"
    effects = lead.tick(2)
    (commit,) = of(effects, fx.CommitCut)
    assert not commit.kept
    (missing,) = notes(effects, "state-missing")
    assert missing["reason"] == "keeper-late" and missing["number"] == 1
    assert not notes(kept(lead, 0, nbytes=30, offset=10, part=20), "state-missing")


def test_the_parts_of_a_state_are_signs_of_life() -> None:
    """On the worker's link, heartbeats wait behind the parts of a large state."""
    lead = keeping(0, heartbeat_s=0.5)
    fold(lead, 1)
    evicted: list[m.Evicted] = []
    for number in range(60):
        lead.tell(m.Alive(**lead.who(1)))
        effects = kept(lead, 0, nbytes=1000, offset=10 * number)
        evicted += sent(effects + lead.tick(0.25), m.Evicted)
    assert not evicted
    assert sent(lead.tick(60), m.Evicted), "a worker that sends nothing is evicted"


def test_a_state_that_cannot_be_kept_is_reported_and_the_checkpoint_is_made() -> None:
    lead = keeping(0)
    fold(lead, 1)
    write(lead, 1)
    effects = kept(lead, 0, fault="ema.f cannot be kept")
    (commit,) = of(effects, fx.CommitCut)
    assert not commit.kept
    assert notes(effects, "state-missing")[0]["fields"]["detail"] == "ema.f cannot be kept"


def test_a_state_that_the_leads_process_found_damaged_is_reported() -> None:
    lead = keeping(0)
    fold(lead, 1)
    write(lead, 1)
    kept(lead, 0)
    effects = lead.tell(ev.CutCommitted(1, unkept="it is damaged"))
    assert notes(effects, "checkpoint") and notes(effects, "state-missing")


def test_if_no_keeper_is_left_the_journal_says_so() -> None:
    lead = keeping(0)
    lead.closed("w0")
    lead.contribute(1, 1, 1)
    (missing,) = notes(lead.folded(1), "state-missing")
    assert missing["reason"] == "no-keeper"


def test_without_rounds_the_keeper_is_asked_when_it_withholds() -> None:
    lead = keeping(0, 1, sync="asp", every="1s")
    effects = lead.tick(2)
    order = [type(e.message) for e in of(effects, fx.Send) if e.to == "w0"]
    assert order == [m.Withhold, m.Keep]
    assert asked(effects) == [0]
    kept(lead, 0)
    for worker in (0, 1):
        effects = lead.tell(m.Withheld(**lead.who(worker), number=1))
    assert sent(effects, m.Cut)
    (commit,) = of(write(lead, 1), fx.CommitCut)
    assert commit.kept


def test_the_time_of_a_pause_of_the_lead_does_not_count_for_the_keeper() -> None:
    lead = keeping(0, heartbeat_s=0.5)
    fold(lead, 1)
    write(lead, 1)
    assert not notes(lead.sleep(60.0), "state-missing")
    (commit,) = of(kept(lead, 0), fx.CommitCut)
    assert commit.kept


def test_without_rounds_a_lost_keeper_ends_the_cut_and_the_withholding() -> None:
    lead = keeping(0, 1, sync="asp", every="1s")
    lead.tick(2)
    effects = lead.closed("w0")
    assert notes(effects, "checkpoint-failed")[0]["reason"] == "keeper-lost"
    assert asked(effects) == [1], "the next cut begins at once"


def resumed(nbytes: int) -> Stage:
    lead = Stage(workers=2, servers=2, store="s", resume="s", resume_number=7, resume_round=40)
    lead.tell(ev.ResumeAsked(RECORD, spec((64,)), nbytes))
    lead.hello("worker-0")
    return lead


def test_a_resumed_worker_gets_the_state_once_per_incarnation() -> None:
    lead = resumed(100)
    who = lead.who(0)
    effects = lead.tell(m.Keeping(**who, restore=True))
    assert of(effects, fx.SendKept) == [fx.SendKept(who["worker"], who["incarnation"])]
    assert not of(lead.tell(m.Keeping(**who, restore=True)), fx.SendKept)


def test_a_resumed_worker_is_told_if_the_checkpoint_has_no_state() -> None:
    lead = resumed(0)
    effects = lead.tell(m.Keeping(**lead.who(0), restore=True))
    assert not of(effects, fx.SendKept)
    assert [message.nbytes for message in sent(effects, m.Restored)] == [0]


def test_parts_cover_a_state_without_gaps() -> None:
    for nbytes in (1, PART_NBYTES, PART_NBYTES + 1, 3 * PART_NBYTES - 1):
        parts = list(parts_of(nbytes))
        assert parts[0][0] == 0 and parts[-1][1] == nbytes
        assert all(end == first for (_, end), (first, _) in itertools.pairwise(parts))
