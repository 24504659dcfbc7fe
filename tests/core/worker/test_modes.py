import pytest

from polyrhythm.core.effects import Resume, Send
from polyrhythm.core.worker.modes import Mode, WorkerArrivalMode, WorkerRoundsMode, choose_mode
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.pulls import Assembly, Missing
from polyrhythm.wire import messages as m


def with_rounds(outbox: WorkerOutbox | None = None) -> WorkerRoundsMode:
    mode = WorkerRoundsMode(outbox or WorkerOutbox())
    mode.landing = Assembly((m.Route(0), m.Route(1)))
    return mode


def on_arrival(outbox: WorkerOutbox | None = None, *, overlaps: bool = False) -> WorkerArrivalMode:
    mode = WorkerArrivalMode(outbox or WorkerOutbox(), asks=not overlaps, overlaps=overlaps)
    mode.landing = Assembly((m.Route(0), m.Route(1)))
    return mode


def land(mode: Mode, version: int) -> None:
    for server in (0, 1):
        mode.landing.land(server, server, version)


def pulls(effects: list) -> list[tuple[str, int, int]]:
    return [
        (e.to, e.message.round, e.message.sequence)
        for e in effects
        if isinstance(e, Send) and isinstance(e.message, m.Pull)
    ]


@pytest.mark.parametrize(
    ("sync", "mode"),
    [
        ("bsp", WorkerRoundsMode),
        ("psp", WorkerRoundsMode),
        ("ssp:2", WorkerArrivalMode),
        ("asp", WorkerArrivalMode),
    ],
)
def test_the_policy_determines_the_mode(sync: str, mode: type) -> None:
    assert type(choose_mode(m.JobSpec(job="", sync=sync), WorkerOutbox())) is mode


def test_with_rounds_a_worker_resumes_with_one_complete_released_version() -> None:
    mode = with_rounds()
    mode.landing.land(0, 0, 1)
    mode.release(m.Release(round=1), 0, idle=True)
    assert not mode.may_go_on(), "a slice is missing"
    mode.landing.land(1, 1, 1)
    assert mode.may_go_on()
    mode.resume()
    assert not mode.may_go_on(), "once"


def test_a_server_that_is_behind_is_pulled_once() -> None:
    outbox = WorkerOutbox()
    mode = with_rounds(outbox)
    mode.landing.land(0, 0, 2)
    effects = outbox.out
    mode.read_again(0, None, Missing.VERSIONS, enough=False)
    mode.pull_missing()
    assert pulls(effects) == [], "not all servers may know this worker"
    mode.release(m.Release(round=1, pushed=False), 0, idle=True)
    mode.pull_missing()
    mode.pull_missing()
    assert pulls(effects) == [("s1", 2, 0)], "for the version that the other one has"
    mode.read_again(0, None, Missing.VERSIONS, enough=False)
    mode.pull_missing()
    assert len(pulls(effects)) == 2, "after a change of routes"


def test_on_arrival_a_worker_resumes_with_the_last_answer_and_permission() -> None:
    mode = on_arrival()
    mode.pull_after(1)
    mode.pull_after(2)
    for version in (1, 2):
        assert not mode.may_go_on()
        land(mode, version)
    assert not mode.may_go_on(), "the lead has not permitted it"
    mode.release(m.Release(), 2, idle=False)
    assert mode.may_go_on()


def test_on_arrival_the_final_answer_contains_the_last_contribution() -> None:
    outbox = WorkerOutbox()
    mode = on_arrival(outbox)
    effects = outbox.out
    mode.pull_after(3)
    mode.release(m.Release(stop=True), 3, idle=True)
    assert pulls(effects) == [("s0", 1, 3), ("s1", 1, 3), ("s0", 2, 3), ("s1", 2, 3)]


@pytest.mark.parametrize("overlaps", [True, False])
def test_only_read_ahead_waits_for_an_answer_before_the_next_contribution(overlaps: bool) -> None:
    mode = on_arrival(overlaps=overlaps)
    mode.pull_after(1, waits=False)
    assert mode.answer_first == overlaps
    land(mode, 1)
    assert not mode.answer_first


def test_a_worker_reports_once_per_incarnation_that_it_starts_anew() -> None:
    outbox = WorkerOutbox()
    effects = outbox.out
    mode = with_rounds(outbox)
    mode.resume()
    mode.resume()
    assert [e.rejoined for e in effects if isinstance(e, Resume)] == [True, False]
