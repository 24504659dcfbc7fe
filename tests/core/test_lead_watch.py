"""Workers and servers watch the lead. They report a lead that is silent for too long, and end after
a timeout."""

from typing import Any

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.pacemaker import Pacemaker
from polyrhythm.core.liveness import HeardThrottle, link_timeout_s
from polyrhythm.core.machine import Machine
from polyrhythm.core.names import LEAD
from polyrhythm.core.senders import is_to_lead, sender
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.observe.reasons import in_words, limit_in_words
from polyrhythm.wire import messages as m

BEAT_S, TIMEOUT_S = 0.5, 20.0
SECOND = 10**9
BEAT = round(BEAT_S * SECOND)
LIMIT = 2 * SECOND
"""How long a lead with a heartbeat every 0.5 s may be silent: the mean gap of 0.5 s, twice that
gap, and 0.5 s for the network."""


class Watcher:
    """Wakes a machine whenever it wants to be woken, and keeps its notes, failures and ends."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = SECOND
        self.seen: list[tuple[int, Any]] = []
        self.tell(ev.LeadLinked(BEAT_S, TIMEOUT_S))

    def tell(self, event: Any) -> None:
        for effect in self.machine.handle(event, self.now):
            if isinstance(effect, fx.Note | fx.Fail | fx.End):
                self.seen.append((self.now, effect))

    def pass_to(self, until: int) -> None:
        while (wake := self.machine.wake_at()) is not None and wake <= until:
            self.now = max(wake, self.now)
            self.tell(ev.Tick())
        self.now = until

    def beats(self, count: int) -> None:
        for _ in range(count):
            self.pass_to(self.now + BEAT)
            self.tell(m.Alive(term=1))

    def notes(self) -> list[tuple[int, str]]:
        return [(at, effect.what) for at, effect in self.seen if isinstance(effect, fx.Note)]

    def endings(self) -> list[tuple[int, Any]]:
        return [(at, each) for at, each in self.seen if isinstance(each, fx.Fail | fx.End)]


@pytest.fixture(params=["worker", "server"])
def watcher(request: pytest.FixtureRequest) -> Watcher:
    if request.param == "worker":
        return Watcher(WorkerMachine("worker-0"))
    return Watcher(ServerMachine(1, m.JobSpec(job="j", servers=2)))


def test_a_lead_that_beats_is_not_suspected(watcher: Watcher) -> None:
    watcher.beats(100)
    assert watcher.seen == []


def test_silence_is_reported_once_as_soon_as_it_is_suspect(watcher: Watcher) -> None:
    watcher.beats(10)
    began = watcher.now
    watcher.pass_to(began + 15 * SECOND)
    assert watcher.notes() == [(began + LIMIT, "lead-silent")]
    _, note = watcher.seen[0]
    assert note.fields["silent_s"] == pytest.approx(2.0)
    assert limit_in_words(note.fields).startswith("2.00 s = mean gap 0.50 s")
    assert watcher.machine.why().reason.code == "lead-suspect"
    assert watcher.machine.why().until_ns == began + round(TIMEOUT_S * SECOND)


def test_a_lead_that_comes_back_is_reported(watcher: Watcher) -> None:
    watcher.beats(10)
    began = watcher.now
    watcher.pass_to(began + 7 * SECOND)
    watcher.tell(m.Alive(term=1))
    assert [what for _, what in watcher.notes()] == ["lead-silent", "lead-heard"]
    assert watcher.seen[1][1].fields == {"silent_s": pytest.approx(7.0)}
    watcher.beats(60)
    assert len(watcher.seen) == 2, "the silence taught no rhythm, and is not reported again"
    watcher.pass_to(watcher.now + 3 * SECOND)
    assert [what for _, what in watcher.notes()][2:] == ["lead-silent"]


def test_a_lead_that_does_not_come_back_is_given_up(watcher: Watcher) -> None:
    watcher.beats(10)
    began = watcher.now
    watcher.pass_to(began + 60 * SECOND)
    ((at, ending),) = watcher.endings()
    assert at == began + round(TIMEOUT_S * SECOND)
    assert ending.reason.code == "lead-lost"
    text = in_words(ending.reason)
    assert text == "the lead has sent nothing for 20.0 s (--lead-timeout 20)"
    assert watcher.machine.wake_at() is None, "it has ended"
    assert getattr(ending, "stopped", True) and getattr(ending, "failed", True)


@pytest.mark.parametrize("pause_s", [3, 300])
def test_time_in_which_the_process_was_paused_itself_does_not_count(
    watcher: Watcher, pause_s: int
) -> None:
    watcher.beats(10)
    watcher.pass_to(watcher.now + BEAT)
    # the process is stopped for this time, so it misses its wake-ups
    watcher.now += pause_s * SECOND
    watcher.tell(ev.Tick())
    assert watcher.seen == []
    watcher.pass_to(watcher.now + 3 * SECOND)
    assert [what for _, what in watcher.notes()] == ["lead-silent"], "it listens again"
    assert watcher.endings() == []


def test_any_message_of_the_lead_is_a_sign_of_life(watcher: Watcher) -> None:
    watcher.beats(10)
    for _ in range(60):
        watcher.pass_to(watcher.now + SECOND)
        watcher.tell(ev.LeadHeard())
    assert watcher.seen == []


def test_a_timeout_below_the_limit_of_suspicion_is_kept(watcher: Watcher) -> None:
    watcher.tell(ev.LeadLinked(BEAT_S, 1.0))
    began = watcher.now
    watcher.pass_to(began + 5 * SECOND)
    assert watcher.notes() == [(began + SECOND, "lead-silent")]
    assert [at for at, _ in watcher.endings()] == [began + SECOND]


def test_the_leads_own_server_does_not_watch_the_lead() -> None:
    server = ServerMachine(0, m.JobSpec(job="j"))
    assert server.wake_at() is None


def test_the_lead_beats_as_often_as_was_agreed() -> None:
    pacemaker = Pacemaker(m.JobSpec(job="j", heartbeat_s=BEAT_S))
    assert len(pacemaker.handle(ev.Tick(), SECOND)) == 1
    for _ in range(10):
        wake = pacemaker.wake_at()
        assert wake is not None
        assert pacemaker.handle(ev.Tick(), wake - 1) == ()
        (beat,) = pacemaker.handle(ev.Tick(), wake)
        assert isinstance(beat, fx.BeatAll)
    assert pacemaker.wake_at() == SECOND + 11 * BEAT


def test_the_leads_heartbeat_goes_to_servers_and_theirs_to_the_lead() -> None:
    assert not is_to_lead(m.Alive(term=1))
    assert sender(m.Alive(term=1)) == LEAD
    for alive, name in ((m.Alive(worker=0), "w0"), (m.Alive(server=0), "s0")):
        assert is_to_lead(alive)
        assert sender(alive) == name


def test_links_outlast_the_lead_timeout_and_never_end_within_a_minute() -> None:
    """If a link timed out before the lead timeout, a process that is cut off from the lead would
    end for either reason. If it timed out within a minute, a peer that is only stopped would lose
    its link."""
    assert link_timeout_s(5) == 60
    assert link_timeout_s(120) == 130
    assert link_timeout_s(float("nan")) == 60
    assert link_timeout_s(float("inf")) == 86_400


@pytest.mark.parametrize(
    ("heartbeat_s", "timeout_s", "every_s"),
    [(0.5, 30.0, 0.25), (30.0, 120.0, 15.0), (30.0, 40.0, 5.0), (0.01, 1.0, 0.25)],
)
def test_bytes_of_the_lead_are_reported_twice_per_heartbeat_or_more_often(
    heartbeat_s: float, timeout_s: float, every_s: float
) -> None:
    throttle = HeardThrottle(heartbeat_s, timeout_s)
    assert throttle.due(100 * SECOND)
    every_ns = round(every_s * SECOND)
    assert throttle.next_ns == 100 * SECOND + every_ns
    assert not throttle.due(100 * SECOND + every_ns - 1)
    assert throttle.due(100 * SECOND + every_ns)
