"""The evaluator: the lead chooses the member that evaluates for all, and a successor when it is
gone."""

from polyrhythm.core.names import own_number
from polyrhythm.wire import messages as m
from tests.core.lead.test_cuts import notes
from tests.core.stage import SECOND_NS, Stage, sent


def named(*names: str) -> Stage:
    """A job whose workers join in this order, and whose slices are seeded."""
    lead = Stage(workers=len(names), servers=1)
    for number, name in enumerate(names):
        lead.hello(name)
        lead.attach(number)
    lead.from_servers(m.Placed)
    return lead


def test_the_member_with_the_lowest_number_is_told_before_it_is_released() -> None:
    lead = named("worker-2", "worker-10", "worker-1")
    effects = lead.from_servers(m.Seeded)
    (appointed,) = sent(effects, m.Appointed)
    assert lead.who(2) == {"worker": appointed.worker, "incarnation": appointed.incarnation}
    assert not sent(effects, m.Release), "so it knows when its loop begins"
    (note,) = notes(effects, "evaluator")
    assert (note["name"], note["reason"]) == ("worker-1", "lowest-number")
    assert not sent(lead.folded(0), m.Appointed)


def test_members_without_a_number_follow_in_the_order_of_their_admission() -> None:
    lead = named("zoe", "anna", "rank-7")
    assert notes(lead.from_servers(m.Seeded), "evaluator")[0]["name"] == "rank-7"
    lead.folded(0)
    assert notes(lead.closed("w2"), "evaluator")[0]["name"] == "zoe"
    assert notes(lead.closed("w0"), "evaluator")[0]["name"] == "anna"


def test_when_the_evaluator_dies_the_next_one_takes_over_and_keeps_the_task() -> None:
    lead = Stage(workers=3, servers=1, respawn=True).begin()
    effects = lead.closed("w0")
    assert [message.worker for message in sent(effects, m.Appointed)] == [1]
    (note,) = notes(effects, "evaluator")
    assert note["reason"] == "evaluator-gone" and note["fields"] == {"name": "worker-0"}
    back = [*lead.hello("worker-0"), *lead.attach(0), *lead.folded(1), *lead.folded(2)]
    assert not sent(back, m.Appointed), "a former evaluator does not take over again"
    assert not sent(lead.closed("w2"), m.Appointed)
    assert [message.worker for message in sent(lead.closed("w1"), m.Appointed)] == [0]


def test_a_member_that_left_or_was_evicted_is_replaced_too() -> None:
    lead = Stage(workers=3, servers=1, heartbeat_s=1.0).begin()
    left = lead.tell(m.Leave(**lead.who(0)))
    assert [message.worker for message in sent(left, m.Appointed)] == [1]
    for _ in range(40):
        lead.now_ns += SECOND_NS
        lead.tell(m.Alive(**lead.who(2)))
        effects = lead.tick(0.0)
        if notes(effects, "evicted"):
            break
    assert [message.worker for message in sent(effects, m.Appointed)] == [2]


def test_a_member_that_has_not_entered_is_not_chosen() -> None:
    lead = Stage(workers=1, servers=1, respawn=True).begin()
    lead.hello("worker-7")
    assert not sent(lead.closed("w0"), m.Appointed)
    assert [message.worker for message in sent(lead.attach(1), m.Appointed)] == [1]


def test_at_the_end_of_the_job_no_successor_is_chosen() -> None:
    lead = Stage(workers=2, servers=1, rounds=1).begin()
    for worker in range(2):
        lead.contribute(worker, 1)
    assert sent(lead.folded(1), m.Release)
    assert not sent(lead.tell(m.Leave(**lead.who(0))), m.Appointed)


def test_numbers_in_names() -> None:
    numbered = {"worker-0": 0, "rank-12": 12}
    others = ["worker", "worker-", "worker-x", "node-3", "3", "worker-" + "9" * 30, "worker-٣"]
    assert {name: own_number(name) for name in numbered} == numbered
    assert [own_number(name) for name in others] == [None] * len(others)
