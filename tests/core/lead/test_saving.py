"""How the lead saves the model. It collects the slices when the workers are told to end. The
servers stop when the file is complete or cannot be written."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Effect
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import failed
from tests.core.stage import Stage, of, sent, spec


def stage_of(**job: object) -> Stage:
    """A job of 2 workers whose round 1 is open; by default with 2 servers and 1 slice each."""
    return Stage(**{"workers": 2, "servers": 2, "save_model": True, **job}).begin()


def leave(stage: Stage, worker: int, *, fails: bool = False) -> list[Effect]:
    return stage.tell(m.Leave(**stage.who(worker), reason=failed(""), failed=fails))


def end_by_goal(stage: Stage) -> list[Effect]:
    stage.contribute(0, 1)
    stage.contribute(1, 1)
    stage.folded(1)
    leave(stage, 0)
    return leave(stage, 1)


def notes(effects: list[Effect]) -> list[str]:
    return [note.what for note in of(effects, fx.Note)]


def asked(effects: list[Effect]) -> dict[str, list[int]]:
    """The slices that each server is asked for."""
    found: dict[str, list[int]] = {}
    for effect in of(effects, fx.Send):
        if isinstance(effect.message, m.Collect):
            found.setdefault(effect.to, []).extend(effect.message.slices)
    return found


def store(stage: Stage, *slices: int) -> list[Effect]:
    effects: list[Effect] = []
    for slice_ in slices:
        effects += stage.tell(ev.SliceStored(1, slice_))
    return effects


SAVED = ev.ModelSaved(1, "runs/run/model.safetensors", 256)


def test_servers_stop_when_the_model_is_saved_and_not_before() -> None:
    stage = stage_of(rounds=1)
    effects = end_by_goal(stage)
    (create,) = of(effects, fx.CreateModel)
    assert create.file == "model.safetensors" and create.round == 1
    wanted = asked(effects)
    assert sorted(slice_ for slices in wanted.values() for slice_ in slices) == [0, 1, 2, 3]
    assert not sent(effects, m.Stop) and not of(effects, fx.End)
    assert "saving" in notes(effects) and "ended" not in notes(effects)
    assert not of(store(stage, 0, 1, 2), fx.CommitModel)
    assert of(store(stage, 3), fx.CommitModel)
    effects = stage.tell(SAVED)
    assert len(sent(effects, m.Stop)) == 2 and notes(effects) == ["saved", "ended"]
    (end,) = of(effects, fx.End)
    assert not end.failed and end.reason.code == "goal"


def test_a_job_that_saves_no_model_ends_at_once() -> None:
    effects = end_by_goal(stage_of(rounds=1, save_model=False))
    assert of(effects, fx.End) and not of(effects, fx.CreateModel)


def test_a_job_whose_round_1_did_not_open_saves_nothing() -> None:
    stage = Stage(workers=2, save_model=True)
    stage.hello("worker-0")
    effects = stage.tell(ev.StopAsked())
    assert of(effects, fx.End) and not of(effects, fx.CreateModel)


def test_the_model_is_saved_when_every_worker_has_gone() -> None:
    stage = stage_of()
    stage.closed("w0")
    effects = stage.closed("w1")
    assert of(effects, fx.CreateModel)
    store(stage, 0, 1, 2, 3)
    (end,) = of(stage.tell(SAVED), fx.End)
    assert end.failed and end.reason.code == "deserted"


def test_a_job_that_was_deserted_waits_for_its_model_only() -> None:
    """The lead is not woken again because the job has no member."""
    stage = stage_of()
    stage.closed("w0")
    stage.closed("w1")
    assert stage.lead.parts.removals.deadline.wake_ns is None
    assert (wake_ns := stage.lead.wake_at()) is not None and wake_ns > stage.now_ns


def test_a_failed_worker_stops_the_others_while_the_model_is_saved() -> None:
    stage = stage_of(on_error="end")
    effects = leave(stage, 0, fails=True)
    assert len(sent(effects, m.Stop, "w1")) == 1, "it must not train on"
    assert not sent(effects, m.Stop, "s0") and of(effects, fx.CreateModel)
    assert not sent(stage.contribute(1, 1), m.Fold), "no round is folded any more"
    store(stage, 0, 1, 2, 3)
    (end,) = of(stage.tell(SAVED), fx.End)
    assert end.failed and end.reason.code == "worker-failed"


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_stop_at_once_saves_the_model_too(sync: str) -> None:
    stage = stage_of(sync=sync)
    effects = stage.tell(ev.StopAsked(at_once=True))
    assert of(effects, fx.CreateModel) and not of(effects, fx.End)
    assert not stage.tell(ev.StopAsked(at_once=True)), "a second request changes nothing"
    store(stage, 0, 1, 2, 3)
    assert of(stage.tell(SAVED), fx.End)


def test_few_slices_are_asked_for_at_a_time() -> None:
    stage = Stage(workers=1, servers=1, save_model=True)
    stage.hello("worker-0")
    stage.attach(0, spec((16 * 20,)))
    stage.from_servers(m.Placed)
    stage.from_servers(m.Seeded)
    stage.folded(0)
    effects = stage.closed("w0")
    assert asked(effects) == {"s0": [0, 1, 2, 3]}
    assert asked(store(stage, 2)) == {"s0": [4]}
    assert asked(store(stage, 2)) == {}, "it was stored before"
    assert asked(store(stage, 0, 1)) == {"s0": [5, 6]}


def test_a_fault_of_the_disk_ends_the_job_with_its_words() -> None:
    stage = stage_of(rounds=1)
    end_by_goal(stage)
    effects = stage.tell(ev.SavingFailed(1, "cannot write m: No space left on device"))
    assert notes(effects) == ["not-saved", "ended"] and len(sent(effects, m.Stop)) == 2
    (end,) = of(effects, fx.End)
    assert end.failed
    expected = "the trained model could not be saved: cannot write m: No space left on device"
    assert in_words(end.reason) == expected


FULL = "cannot write m: No space left on device"


def test_a_model_that_cannot_be_written_is_held_and_tried_again() -> None:
    stage = stage_of(rounds=1)
    end_by_goal(stage)
    store(stage, 0, 1)
    effects = stage.tell(ev.SavingFailed(1, FULL, again=True))
    assert notes(effects) == ["model-held"] and not sent(effects, m.Stop)
    assert not asked(effects) and not of(stage.tick(4), fx.CreateModel), "it rests"
    effects = stage.tick(1.1)
    (create,) = of(effects, fx.CreateModel)
    assert create.number == 3 and not create.to_store and create.last
    assert asked(effects) == {"s1": [0, 1], "s0": [2, 3]}, "the first file is gone"
    assert not notes(stage.tell(ev.SavingFailed(3, FULL, again=True))), "it is said once"
    assert of(stage.tick(5.1), fx.CreateModel)
    for slice_ in range(4):
        stage.tell(ev.SliceStored(5, slice_))
    (end,) = of(stage.tell(ev.ModelSaved(5, "runs/run/model.safetensors", 256)), fx.End)
    assert not end.failed and end.reason.code == "goal"


def test_a_model_that_cannot_be_written_to_the_folder_goes_to_the_store() -> None:
    stage = stage_of(rounds=1, store="memory://it")
    end_by_goal(stage)
    effects = stage.tell(ev.SavingFailed(1, FULL, again=True))
    (create,) = of(effects, fx.CreateModel)
    assert create.to_store and create.number == 3 and not notes(effects)
    for slice_ in range(4):
        stage.tell(ev.SliceStored(3, slice_))
    effects = stage.tell(ev.ModelSaved(3, "memory://it/model.safetensors", 256))
    assert of(effects, fx.Note)[0].fields["store"] is True and of(effects, fx.End)


def test_the_folder_and_the_store_are_tried_in_turn() -> None:
    stage = stage_of(rounds=1, store="memory://it")
    end_by_goal(stage)
    stage.tell(ev.SavingFailed(1, FULL, again=True))
    (held,) = of(stage.tell(ev.SavingFailed(3, "the store is full")), fx.Note)
    assert held.what == "model-held" and held.fields["fields"]["detail"] == (
        f"{FULL} and the store is full"
    )
    (create,) = of(stage.tick(5.1), fx.CreateModel)
    assert not create.to_store
    (create,) = of(stage.tell(ev.SavingFailed(create.number, FULL, again=True)), fx.CreateModel)
    assert create.to_store


def test_a_stop_gives_a_held_model_up() -> None:
    stage = stage_of(rounds=1)
    end_by_goal(stage)
    assert not of(stage.tell(ev.StopAsked()), fx.End), "it is being written"
    stage.tell(ev.SavingFailed(1, FULL, again=True))
    effects = stage.tell(ev.StopAsked())
    assert notes(effects) == ["not-saved", "ended"]
    (end,) = of(effects, fx.End)
    assert end.failed and in_words(end.reason) == f"the trained model could not be saved: {FULL}"


def test_the_loss_of_slices_gives_a_held_model_up() -> None:
    stage = stage_of(rounds=1)
    end_by_goal(stage)
    stage.tell(ev.SavingFailed(1, FULL, again=True))
    (end,) = of(stage.closed("s1"), fx.End)
    assert end.failed and end.reason.code == "server-died"


def test_a_job_that_failed_keeps_its_reason_when_the_disk_fails_too() -> None:
    stage = stage_of()
    stage.closed("w0")
    stage.closed("w1")
    (end,) = of(stage.tell(ev.SavingFailed(1, "cannot write m")), fx.End)
    assert end.failed and end.reason.code == "deserted"


def test_the_loss_of_a_server_without_copies_ends_the_attempt() -> None:
    stage = stage_of(rounds=1)
    end_by_goal(stage)
    effects = stage.closed("s1")
    assert of(effects, fx.DiscardModel) and notes(effects) == ["not-saved", "ended"]
    (end,) = of(effects, fx.End)
    assert end.failed and "server s1 died" in in_words(end.reason)


def test_a_job_that_loses_slices_saves_nothing() -> None:
    stage = stage_of()
    effects = stage.closed("s1")
    assert of(effects, fx.End) and not of(effects, fx.CreateModel)


def test_the_replica_of_a_lost_server_is_asked_for_what_is_missing() -> None:
    stage = stage_of(rounds=1, replicas=1)
    wanted = asked(end_by_goal(stage))
    first, *rest = wanted["s1"]
    store(stage, first)
    assert asked(stage.closed("s1")) == {}, "the replica does not apply the routes yet"
    effects = stage.tell(m.Placed(server=0, routing=stage.routing, round=1))
    assert asked(effects) == {"s0": rest}
    assert stage.why.startswith("the job is over; the model is being saved, and s0 still sends")
    store(stage, *wanted["s0"], *rest)
    (end,) = of(stage.tell(SAVED), fx.End)
    assert not end.failed


def test_the_lead_gives_up_after_a_minute_without_progress() -> None:
    stage = stage_of(rounds=1)
    end_by_goal(stage)
    assert not of(stage.tick(59), fx.End)
    store(stage, 0)
    assert not of(stage.tick(59), fx.End), "a slice was stored in between"
    effects = stage.tick(2)
    assert of(effects, fx.DiscardModel)
    (end,) = of(effects, fx.End)
    assert end.failed and "no part of the model was written for a minute" in in_words(end.reason)


def test_workers_that_come_while_the_model_is_saved_are_refused() -> None:
    stage = stage_of()
    stage.tell(ev.StopAsked(at_once=True))
    (refusal,) = sent(stage.hello("worker-7"), m.Refusal)
    assert refusal.ending
