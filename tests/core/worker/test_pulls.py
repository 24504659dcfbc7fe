import pytest

from polyrhythm.core.effects import Resume, Send
from polyrhythm.core.worker.assembly import Assembly
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.pulls import Pulls, ReadMode
from polyrhythm.wire import messages as m


def reading(post: WorkerOutbox | None = None, **manner: bool) -> Pulls:
    made = Pulls(post or WorkerOutbox(), ReadMode(**manner))
    made.landing = Assembly((m.Route(0), m.Route(1)))
    return made


def pulls(effects: list) -> list[tuple[str, int, int]]:
    return [
        (e.to, e.message.round, e.message.sequence)
        for e in effects
        if isinstance(e, Send) and isinstance(e.message, m.Pull)
    ]


def test_with_rounds_it_goes_on_with_one_version_that_was_released() -> None:
    made = reading()
    made.landing.land(0, 0, 1)
    made.release(m.Release(round=1))
    assert not made.may_go_on(), "a slice is missing"
    made.landing.land(1, 1, 1)
    assert made.may_go_on()
    made.resume()
    assert not made.may_go_on(), "once"


def test_a_server_that_is_behind_is_asked_once() -> None:
    post = WorkerOutbox()
    made = reading(post)
    made.landing.land(0, 0, 2)
    effects = post.begin()
    made.ask_anew()
    made.pull_missing()
    assert pulls(effects) == [], "not all servers may know this worker"
    made.release(m.Release(round=1, pushed=False))
    made.pull_missing()
    made.pull_missing()
    assert pulls(effects) == [("s1", 2, 0)], "for what the other one has"
    made.ask_anew()
    made.pull_missing()
    assert len(pulls(effects)) == 2, "after a change of routes"


def test_without_rounds_it_goes_on_with_the_answers_to_its_last_question_and_when_it_may() -> None:
    made = reading(rounds=False)
    made.pull_after(1)
    made.pull_after(2)
    for version in (1, 2):
        assert not made.may_go_on()
        made.landing.land(0, 0, version)
        made.landing.land(1, 1, version)
    assert not made.may_go_on(), "the lead has not let it"
    made.release(m.Release())
    assert made.may_go_on()


def test_without_a_bound_the_answer_must_contain_the_last_contribution_too() -> None:
    post = WorkerOutbox()
    made = reading(post, rounds=False, asks=False)
    effects = post.begin()
    made.pull_after(3)
    made.release(m.Release(stop=True))
    made.pull_after(3)
    assert pulls(effects) == [("s0", 1, 3), ("s1", 1, 3), ("s0", 2, 3), ("s1", 2, 3)]


@pytest.mark.parametrize("small", [True, False])
def test_only_read_ahead_takes_an_answer_before_the_next_contribution(small: bool) -> None:
    for ahead in (True, False):
        made = reading(rounds=False, asks=False, small=small, ahead=ahead)
        made.pull_after(1, awaited=False)
        assert made.reads_first == ahead
        made.landing.land(0, 0, 1)
        made.landing.land(1, 1, 1)
        assert not made.reads_first


def test_who_rejoins_begins_anew() -> None:
    post = WorkerOutbox()
    effects = post.begin()
    made = reading(post)
    made.resume()
    made.resume()
    assert [e.anew for e in effects if isinstance(e, Resume)] == [True, False]
