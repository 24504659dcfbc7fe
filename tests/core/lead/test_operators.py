"""What the lead does for an operator. An operator may send one request, and only after its
hello."""

from typing import Any

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.machine import Effect
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE
from tests.core.stage import Stage, of, sent

LINK = "operator-1"


def hello(stage: Stage, link: str = LINK, **fields: Any) -> list[Effect]:
    said = m.OperatorHello(**{"name": "anna@host", "job": "j", **fields})
    return stage.tell(ev.OperatorHelloReceived(link, said))


def ask(stage: Stage, link: str = LINK, what: str = "stop", **fields: Any) -> list[Effect]:
    return stage.tell(ev.OperatorRequested(link, m.OperatorRequest(what=what, **fields)))


def leave(stage: Stage, worker: int) -> list[Effect]:
    return stage.tell(m.Leave(**stage.who(worker), reason=DONE))


def answers(effects: list[Effect], link: str = LINK) -> list[m.OperatorAnswer]:
    return sent(effects, m.OperatorAnswer, link)


def refusal(effects: list[Effect], link: str = LINK) -> str:
    (refused,) = sent(effects, m.Refusal, link)
    assert [drop.peer for drop in of(effects, fx.Drop)] == [link]
    return in_words(refused.reason)


def test_a_stop_ends_the_job_in_order_and_names_the_operator() -> None:
    stage = Stage(workers=2).begin()
    assert not hello(stage), "the hello alone changes nothing"
    stage.contribute(0, 1)
    effects = ask(stage)
    assert fx.Note("stopping", {"by": "anna@host"}) in effects
    assert len(sent(effects, m.Pause)) == 2 and not sent(effects, m.Stop)
    (answer,) = answers(effects)
    assert not answer.done and "waiting for 2 workers" in in_words(answer.reason)
    stage.contribute(1, 1)
    released = sent(stage.folded(1), m.Release)
    assert [release.stop for release in released] == [True, True]
    (answer,) = answers(leave(stage, 0))
    assert not answer.done and "waiting for 1 worker " in in_words(answer.reason)
    effects = leave(stage, 1)
    (answer,) = answers(effects)
    assert answer.done and not answer.failed
    assert in_words(answer.reason) == "stopped on request of anna@host"
    (end,) = of(effects, fx.End)
    assert end.reason.code == "stopped" and not end.failed
    (note,) = [note for note in of(effects, fx.Note) if note.what == "ended"]
    assert note.fields["reason"] == "stopped" and note.fields["fields"] == {"by": "anna@host"}
    assert fx.Drop(LINK, end.reason) in effects, "the link is closed after the last answer"


def test_without_rounds_a_stop_names_the_operator_too() -> None:
    stage = Stage(workers=1, sync="asp").begin()
    hello(stage)
    assert sent(ask(stage), m.Fold)[0].last
    stage.folded(1)
    (end,) = of(leave(stage, 0), fx.End)
    assert end.reason.fields == {"by": "anna@host"} and end.reason.code == "stopped"


def test_a_stop_at_once_waits_for_no_worker() -> None:
    stage = Stage(workers=2).begin()
    hello(stage)
    effects = ask(stage, at_once=True)
    assert len(sent(effects, m.Stop)) == 3 and of(effects, fx.End)
    (answer,) = answers(effects)
    assert answer.done and not answer.failed


def test_a_stop_at_once_says_that_the_model_is_being_saved_and_not_that_workers_are_waited_for() -> (
    None
):
    stage = Stage(workers=2, save_model=True).begin()
    hello(stage)
    effects = ask(stage, at_once=True)
    assert len(sent(effects, m.Stop)) == 2 and not of(effects, fx.End)
    told = [in_words(answer.reason) for answer in answers(effects)]
    assert told == ["the job is over, and its model is being written to the disk"]
    assert not answers(leave(stage, 0))


def test_why_says_that_the_job_stops_and_not_that_its_goal_is_reached() -> None:
    stage = Stage(workers=1).begin()
    hello(stage)
    ask(stage)
    stage.contribute(0, 1)
    stage.folded(1)
    assert stage.why.startswith("the job stops; waiting for w0 to leave the training loop")


def test_a_stop_before_round_1_ends_the_job() -> None:
    stage = Stage(workers=2)
    hello(stage)
    assert of(ask(stage), fx.End)


def test_a_second_operator_can_end_a_job_that_stops() -> None:
    stage = Stage(workers=1).begin()
    hello(stage)
    ask(stage)
    hello(stage, "operator-2", name="bert@host")
    effects = ask(stage, "operator-2", at_once=True)
    assert of(effects, fx.End)
    assert answers(effects)[0].done and answers(effects, "operator-2")[0].done


def test_a_second_operator_that_asks_for_the_same_gets_the_same_answers() -> None:
    stage = Stage(workers=1).begin()
    hello(stage)
    ask(stage)
    hello(stage, "operator-2", name="bert@host")
    effects = ask(stage, "operator-2")
    assert "stopping" not in [note.what for note in of(effects, fx.Note)], "it was noted before"
    assert answers(effects, "operator-2")
    stage.contribute(0, 1)
    stage.folded(1)
    effects = leave(stage, 0)
    assert answers(effects)[-1].done and answers(effects, "operator-2")[-1].done


def test_a_request_without_an_operators_hello_is_refused() -> None:
    stage = Stage(workers=1).begin()
    for link in (LINK, "w0", "link-7"):
        effects = ask(stage, link)
        assert "only an operator may" in refusal(effects, link)
        assert not of(effects, fx.End) and not sent(effects, m.Pause)


def test_an_operator_may_ask_once() -> None:
    stage = Stage(workers=1).begin()
    hello(stage)
    ask(stage)
    assert "has sent a request already" in refusal(ask(stage, at_once=True))
    assert not of(ask(stage, at_once=True), fx.End), "its link is forgotten"


def test_an_unknown_request_is_refused() -> None:
    stage = Stage(workers=1).begin()
    hello(stage)
    effects = ask(stage, what="dance\x1b[2J")
    assert refusal(effects) == "the lead does not know the request 'dance\\x1b[2J'"


def test_an_operator_of_another_job_or_version_is_refused() -> None:
    stage = Stage(workers=1).begin()
    assert "another job" in refusal(hello(stage, job="k"))
    assert "protocol" in refusal(hello(stage, protocol=1))
    assert "control characters" in refusal(hello(stage, name="\x1b[2J"))
    assert "only an operator may" in refusal(ask(stage))


def test_an_operator_that_hangs_up_withdraws_nothing() -> None:
    stage = Stage(workers=1).begin()
    hello(stage)
    ask(stage)
    stage.closed(LINK)
    stage.contribute(0, 1)
    stage.folded(1)
    effects = leave(stage, 0)
    assert of(effects, fx.End) and not answers(effects)


def test_the_job_waits_for_no_operator() -> None:
    """The job ends before an operator has sent its request. The operator is told why the job
    ended."""
    stage = Stage(workers=1, rounds=1).begin()
    hello(stage)
    stage.contribute(0, 1)
    stage.folded(1)
    effects = leave(stage, 0)
    (end,) = of(effects, fx.End)
    assert end.reason.code == "goal"
    assert answers(effects)[0].reason == end.reason


def test_a_goal_that_is_reached_first_is_the_reason_of_the_end() -> None:
    stage = Stage(workers=1, rounds=1).begin()
    hello(stage)
    ask(stage)
    stage.contribute(0, 1)
    stage.folded(1)
    (answer,) = answers(leave(stage, 0))
    assert answer.done and answer.reason.code == "goal"


@pytest.mark.parametrize(
    ("job", "sent_"),
    [({"path": "/a/job.py", "code_digest": "d"}, True), ({"served": True}, False), ({}, False)],
)
def test_the_code_of_a_job_is_sent_if_it_is_a_file(job: dict[str, Any], sent_: bool) -> None:
    stage = Stage(workers=1, servers=1, **job)
    hello(stage, LINK)
    effects = stage.tell(ev.OperatorRequested(LINK, m.OperatorRequest(what="code")))
    assert [effect.to for effect in of(effects, fx.SendCode)] == ([LINK] if sent_ else [])
    refused = [answer.reason.code for answer in answers(effects) if answer.failed]
    assert refused == ([] if sent_ else ["code-none"])
    assert [effect.peer for effect in of(effects, fx.Drop)] == [LINK]


def test_a_page_of_the_journal_is_sent_in_every_phase_of_a_job_and_is_not_noted() -> None:
    stage = Stage(workers=1)
    for at, go_on in enumerate((stage.begin, lambda: stage.contribute(0, 1), lambda: None)):
        hello(stage)
        effects = stage.tell(ev.OperatorRequested(LINK, m.OperatorRequest(what="journal", at=at)))
        assert of(effects, fx.SendJournal) == [fx.SendJournal(LINK, at)]
        assert [drop.peer for drop in of(effects, fx.Drop)] == [LINK], "one page for each link"
        assert not of(effects, fx.Note), "the journal would grow whenever it is read"
        go_on()


def test_a_server_may_be_drained_twice_and_is_stopped_when_its_workers_know() -> None:
    stage = Stage(workers=1, servers=2).begin()

    def drain(link: str) -> list[Effect]:
        hello(stage, link)
        return ask(stage, link, what="drain", server=1)

    drain("first")
    stage.from_servers(m.Placed)
    stage.tell(m.CaughtUp(server=1, peer=0, routing=stage.routing))
    stage.from_servers(m.Placed)
    stage.contribute(0, 1)
    stage.folded(1)
    stage.from_servers(m.Placed, round=1)  # s1 holds nothing any more, and leaves
    assert not answers(drain("second"), "second") and not stage.tell(m.Drain(server=1))
    effects = stage.tell(m.Placed(server=0, routing=stage.routing, round=1))
    assert [sent(effects, m.Stop, "s1")[0].reason.code] == ["drained"]
    (first,), (second,) = answers(effects, "first"), answers(effects, "second")
    (third,) = answers(drain("third"), "third")
    assert [(each.reason.code, each.failed) for each in (first, second, third)] == [
        ("drained", False)
    ] * 3


@pytest.mark.parametrize(
    ("job", "code"),
    [({"sync": "asp", "kind": "statistics"}, "slices-stay"), ({"rounds": 1}, "ending-already")],
)
def test_a_server_that_asks_to_leave_and_cannot_is_told_why(job: dict[str, Any], code: str) -> None:
    stage = Stage(workers=1, servers=2, **job).begin()
    if code == "ending-already":
        stage.contribute(0, 1)
        stage.folded(1)
    (effect,) = stage.tell(m.Drain(server=1))
    assert isinstance(effect, fx.Send) and effect.to == "s1"
    assert isinstance(effect.message, m.Stays) and effect.message.reason.code == code
