"""Two processes that cannot talk to each other are named by `why` and in the story."""

from polyrhythm.observe.state import RunState, fold
from polyrhythm.observe.story import tell
from polyrhythm.observe.why import explain, in_sentences
from tests.observe.journals import Line, joined, left, line, opened, rounds, totals

PAIR = {"worker": 1, "name": "worker-1", "server": 1}
CUT_OFF = [
    line(20.0, "cut-off", **PAIR, silent_s=4.0),
    left(20.0, 1, "cut-off", name="worker-1", server=1, silent_s=4.0),
    joined(20.5, 1, 7) | {"what": "rejoined"},
    line(30.5, "unopened", **PAIR, detail="timed out"),
    rounds(31.0, 9),
]
WORKS = line(40.0, "link-works", **PAIR, seconds=24.0)


def run(*lines: Line) -> RunState:
    return fold([*opened(0, 1), *lines])


def test_why_names_the_pair_and_since_when() -> None:
    said = in_sentences(explain(run(*CUT_OFF), 31.0))
    assert said[:2] == [
        "waiting for nothing: round 9, 1 worker at work",
        "cut off: worker-1 and s1 have not reached each other for 15.0 s: worker-1 is excluded until"
        " their link works",
    ]
    assert any("check the network between these two hosts" in text for text in said)


def test_a_link_that_works_again_is_forgotten() -> None:
    said = in_sentences(explain(run(*CUT_OFF, WORKS, rounds(41.0, 10, {"1": totals(1)})), 41.0))
    assert said == ["waiting for nothing: round 10, 2 workers at work"]


def test_a_worker_that_has_left_or_a_lost_server_is_forgotten() -> None:
    assert not run(*CUT_OFF, left(32.0, 1, "link-ended", detail="it died")).cut_off
    lost = line(32.0, "server-lost", server=1, reason="server-silent", fields={})
    assert not run(*CUT_OFF, lost).cut_off


def test_why_explains_a_wait_for_a_link() -> None:
    fields = {"workers": [1], "servers": [1]}
    wait = line(20.0, "waiting", reason="link-silent", fields=fields, since_s=3.0, until_s=None)
    said = in_sentences(explain(run(wait), 20.0))
    assert said[:2] == [
        "worker-1 and s1 cannot reach each other: nothing comes over their link, although both"
        " can reach the lead",
        "missing: s1",
    ]
    assert "since: 3.0 s ago, at 17.0 s" in said


def test_the_story_tells_who_was_excluded_and_came_back() -> None:
    begun = len(list(tell(opened(0, 1))))
    said = list(tell([*opened(0, 1), *CUT_OFF[:4], CUT_OFF[3], WORKS]))[begun:]
    assert said == [
        "  20.0 s  worker-1 is excluded: nothing has come over the link between worker-1 and s1 for"
        " 4.0 s, although both can reach the lead; 1 goes on without it",
        "  20.5 s  worker-1 comes back when its link to s1 works",
        "  30.5 s  worker-1 cannot connect to s1, and tries again: timed out",
        "  40.0 s  worker-1 and s1 can reach each other again, after 24.0 s: worker-1 is back",
    ]


def test_a_drained_server_is_forgotten() -> None:
    placed = line(5.0, "placed", nbytes=64, slices=[1, 1], optimizer="SGD", rate=0.1, momentum=None)
    drained = line(32.0, "drained", server=1, left=1)
    state = run(placed, *CUT_OFF, drained)
    assert state.slices == {0: 1} and not state.cut_off
