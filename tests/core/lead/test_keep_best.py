"""How the lead keeps the best model. It saves the version that was evaluated if the servers still
have it, and otherwise the version after the next fold."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import failed
from tests.core.stage import Stage, of, sent
from tests.restored_lead import handle_and_restore

BEST = "model-best.safetensors"


def stage_of(**job: object) -> Stage:
    named = {"workers": 2, "servers": 2, "save_model": True, "keep_best": "accuracy"}
    return Stage(**{**named, **job}).begin()


def report(stage: Stage, accuracy: float, round_: int, worker: int = 0) -> list[Effect]:
    metrics = {"accuracy": accuracy}
    return stage.tell(m.Report(**stage.who(worker), round=round_, metrics=metrics))


def round_of(stage: Stage, number: int) -> list[Effect]:
    stage.contribute(0, number, number)
    stage.contribute(1, number, number)
    return stage.folded(number)


def copies(effects: list[Effect]) -> list[int]:
    """The rounds whose parameters the servers are told to copy."""
    created = [effect.round for effect in of(effects, fx.CreateModel) if effect.file == BEST]
    assert len(sent(effects, m.Capture)) == 2 * len(created), "every primary copies"
    assert not any(effect.last for effect in of(effects, fx.CreateModel) if effect.file == BEST)
    return created


def write(stage: Stage, number: int) -> list[Effect]:
    effects: list[Effect] = []
    for slice_ in range(4):
        effects += stage.tell(ev.SliceStored(number, slice_))
    assert of(effects, fx.CommitModel) == [fx.CommitModel(number)]
    return stage.tell(ev.ModelSaved(number, f"runs/run/{number}", 256))


def best_lines(effects: list[Effect]) -> list[tuple[float, int, bool]]:
    notes = [note.fields for note in of(effects, fx.Note) if note.what == "best"]
    return [(line["value"], line["round"], line["exact"]) for line in notes]


def test_the_version_that_was_evaluated_is_copied_before_the_next_fold() -> None:
    stage = stage_of()
    round_of(stage, 1)
    effects = report(stage, 0.5, 1)
    assert copies(effects) == [1]
    assert all(collect.copied for collect in sent(effects, m.Collect))
    assert best_lines(write(stage, 2)) == [(0.5, 1, True)]


@pytest.mark.parametrize("restored", [False, True])
def test_only_a_better_report_is_kept(restored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a lead that restores itself from its snapshot after every event."""
    if restored:
        monkeypatch.setattr(LeadMachine, "handle", handle_and_restore)
    stage = stage_of()
    round_of(stage, 1)
    report(stage, 0.5, 1)
    write(stage, 2)
    round_of(stage, 2)
    assert not copies(report(stage, 0.4, 2)) and not copies(report(stage, 0.5, 2, worker=1))
    round_of(stage, 3)
    assert copies(report(stage, 0.6, 3)) == [3]


def test_without_the_flag_nothing_is_copied() -> None:
    stage = stage_of(keep_best="")
    round_of(stage, 1)
    assert not copies(report(stage, 0.5, 1))


def test_a_version_that_is_gone_or_was_none_is_replaced_by_the_next_fold() -> None:
    for round_ in (1, -1):
        stage = stage_of()
        round_of(stage, 1)
        round_of(stage, 2)
        assert not copies(report(stage, 0.5, round_))
        assert copies(round_of(stage, 3)) == [3]
        assert best_lines(write(stage, 2)) == [(0.5, 3, False)]


def test_a_report_during_a_fold_waits_for_its_end() -> None:
    stage = stage_of()
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    assert not copies(report(stage, 0.5, 1)), "not every server has folded round 1"
    assert copies(stage.folded(1)) == [1]


def test_one_file_is_written_at_a_time() -> None:
    stage = stage_of()
    round_of(stage, 1)
    report(stage, 0.5, 1)
    round_of(stage, 2)
    assert not copies(report(stage, 0.6, 2)), "the first is being written"
    effects = write(stage, 2)
    assert best_lines(effects) == [(0.5, 1, True)]
    assert copies(effects) == [2], "the servers still have the version that was evaluated"
    assert best_lines(write(stage, 4)) == [(0.6, 2, True)]


def test_the_present_version_is_copied_if_the_evaluated_one_is_gone_when_a_file_is_complete() -> (
    None
):
    stage = stage_of()
    round_of(stage, 1)
    report(stage, 0.5, 1)
    report(stage, 0.6, 1)
    assert not copies(round_of(stage, 2)), "the first is being written"
    assert copies(write(stage, 2)) == [2]
    assert best_lines(write(stage, 4)) == [(0.6, 2, False)]


def test_after_local_steps_the_copy_waits_for_a_fold_although_a_file_is_complete() -> None:
    """The worker had made local steps when it evaluated, and the servers do not have these
    steps."""
    stage = stage_of()
    round_of(stage, 1)
    report(stage, 0.5, 1)
    report(stage, 0.6, -1)
    assert not copies(write(stage, 2))
    assert copies(round_of(stage, 2)) == [2]


def test_a_better_report_after_the_last_fold_is_kept_although_a_file_is_being_written() -> None:
    stage = stage_of(rounds=2)
    round_of(stage, 1)
    report(stage, 0.5, 1)
    round_of(stage, 2)
    assert not copies(report(stage, 0.6, 2)), "the first is being written"
    for worker in (0, 1):
        stage.tell(m.Leave(**stage.who(worker), reason=failed(""), failed=False))
    assert not of(write(stage, 1), fx.End), "the best model is not written yet"
    effects = write(stage, 2)
    assert copies(effects) == [2] and not of(effects, fx.End)
    effects = write(stage, 4)
    assert best_lines(effects) == [(0.6, 2, True)]
    assert of(effects, fx.End)


def test_a_better_report_is_kept_although_the_file_before_it_could_not_be_written() -> None:
    stage = stage_of(rounds=2)
    round_of(stage, 1)
    report(stage, 0.5, 1)
    round_of(stage, 2)
    report(stage, 0.6, 2)
    assert copies(stage.tell(ev.SavingFailed(2, "cannot write"))) == [2]


def test_a_report_of_an_unknown_version_after_the_last_fold_is_kept_at_once() -> None:
    stage = stage_of(rounds=1)
    round_of(stage, 1)
    assert copies(report(stage, 0.5, -1)) == [1]
    assert best_lines(write(stage, 2)) == [(0.5, 1, False)]


def test_rounds_before_a_resume_count_in_the_round_of_the_best_model() -> None:
    stage = stage_of(resume_round=75)
    round_of(stage, 1)
    assert copies(report(stage, 0.5, 1)) == [76]
    assert best_lines(write(stage, 2)) == [(0.5, 76, True)]


def test_without_rounds_the_round_of_the_best_model_is_a_round_equivalent() -> None:
    stage = stage_of(sync="asp", resume_round=75)
    for sequence in (1, 2, 3):
        stage.contribute(0, sequence)
        stage.contribute(1, sequence)
    assert copies(report(stage, 0.5, -1)) == [78]


def test_a_pause_of_the_lead_does_not_end_the_writing_of_the_best_model() -> None:
    stage = stage_of(heartbeat_s=0.5)
    round_of(stage, 1)
    report(stage, 0.5, 1)
    assert not of(stage.sleep(120.0), fx.DiscardModel)
    assert best_lines(write(stage, 2)) == [(0.5, 1, True)]


def test_without_rounds_the_parameters_are_copied_at_once() -> None:
    stage = stage_of(sync="asp")
    stage.contribute(0, 1)
    assert len(copies(report(stage, 0.5, -1))) == 1
    assert not copies(report(stage, 0.6, -1)), "the first is being written"
    effects = write(stage, 2)
    assert len(copies(effects)) == 1 and len(best_lines(effects)) == 1


def test_the_job_ends_when_both_files_are_written() -> None:
    stage = stage_of(rounds=1)
    round_of(stage, 1)
    assert copies(report(stage, 0.5, 1)) == [1], "the code after the loop has evaluated"
    for worker in (0, 1):
        stage.tell(m.Leave(**stage.who(worker), reason=failed(""), failed=False))
    assert not of(write(stage, 1), fx.End), "the best model is not written yet"
    (end,) = of(write(stage, 2), fx.End)
    assert not end.failed


def test_a_fault_of_the_best_file_does_not_end_the_job() -> None:
    stage = stage_of()
    round_of(stage, 1)
    report(stage, 0.5, 1)
    effects = stage.tell(ev.SavingFailed(2, "cannot write"))
    assert [note.what for note in of(effects, fx.Note)] == ["best-not-saved"]
    round_of(stage, 2)
    assert copies(report(stage, 0.6, 2)) == [2]


def test_copies_of_a_lost_server_are_made_again_by_its_replica() -> None:
    stage = stage_of(replicas=1)
    round_of(stage, 1)
    report(stage, 0.5, 1)
    stage.closed("s1")
    effects = stage.tell(m.Placed(server=0, routing=stage.routing, round=1))
    assert of(effects, fx.DiscardModel) == [fx.DiscardModel(2)]
    assert [effect.round for effect in of(effects, fx.CreateModel)] == [1]
    assert len(sent(effects, m.Capture, "s0")) == 1
    assert best_lines(write(stage, 4)) == [(0.5, 1, True)]


@pytest.mark.parametrize("failed", [False, True])
def test_the_version_that_was_evaluated_is_kept_though_its_slices_move(failed: bool) -> None:
    """s1 is drained. It sends the copies that it has made, and leaves when they are written."""
    stage = stage_of()
    round_of(stage, 1)
    report(stage, 0.5, 1)
    stage.tell(m.Drain(server=1))
    stage.from_servers(m.Placed, round=1)
    stage.tell(m.CaughtUp(server=1, peer=0, routing=stage.routing))
    stage.from_servers(m.Placed, round=1)
    round_of(stage, 2)
    effects = stage.from_servers(m.Placed, round=2)
    assert sent(effects, m.Release) and not of(effects, fx.DiscardModel)
    assert {route.primary for route in sent(effects, m.Routing)[0].routes} == {0}
    epoch = stage.routing
    if failed:
        stage.tell(ev.SavingFailed(2, "cannot write"))
    else:
        assert best_lines(write(stage, 2)) == [(0.5, 1, True)]
    assert stage.routing == epoch + 1
    effects = stage.tell(m.Placed(server=0, routing=stage.routing, round=2))
    assert [stop.reason.code for stop in sent(effects, m.Stop, "s1")] == ["drained"]


def test_a_loss_is_best_when_it_is_lowest() -> None:
    stage = stage_of(keep_best="val_loss")
    round_of(stage, 1)
    for value, number in ((0.5, 2), (0.6, None), (0.4, 4)):
        metrics = {"val_loss": value, "accuracy": 1.0 - value}
        effects = stage.tell(m.Report(**stage.who(0), round=1, metrics=metrics))
        assert copies(effects) == ([] if number is None else [1])
        if number is not None:
            (note,) = [each for each in of(write(stage, number), fx.Note) if each.what == "best"]
            assert (note.fields["metric"], note.fields["value"]) == ("val_loss", value)
