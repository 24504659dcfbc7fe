import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core.lead.members.view import View
from polyrhythm.core.lead.operators import Operators
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.rounds.folds import Rounds
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.lead.servers.servers import UNKNOWN_FACTOR, Servers, ServersState
from polyrhythm.core.lead.state import begin_state
from polyrhythm.core.liveness import Suspicion
from polyrhythm.core.placement.network import Network
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import Reason
from tests.core.stage import ADDRESS, of, sent, spec

ENDED = Reason("link-ended", {"detail": "reset"})

BEAT_S = 1.0
BEAT_NS = 10**9


class SeededServers:
    """Servers of a job that have all parameters."""

    def __init__(self, servers: int, replicas: int = 0) -> None:
        job = m.JobSpec(job="j", servers=servers, replicas=replicas, heartbeat_s=BEAT_S)
        self.routing = RoutingTable.begin(servers, m.Division(servers, 64), replicas)
        self.outbox = LeadOutbox(View(), self.routing)
        self.servers = Servers(
            ServersState(Suspicion(job.heartbeat_s, UNKNOWN_FACTOR)),
            job,
            self.routing,
            Network(),
            Rounds(),
            self.outbox,
            Operators({}, self.outbox),
        )
        for server in range(servers):
            assert self.join(server)
        self.servers.place(spec((64,), (64,), (64,)))
        self.placed()
        for server in range(servers):
            self.routing.on_seeded(m.Seeded(server=server, routing=self.routing.epoch))
        assert self.routing.all_seeded

    def join(self, server: int, now_ns: int = 0) -> bool:
        hello = m.ServerHello(
            server=server, name=f"s{server}", job="j", address=ADDRESS, identity=""
        )
        return self.servers.join(f"link-{server}", hello, now_ns)

    def placed(self) -> bool:
        epoch = self.routing.epoch
        said = [m.Placed(server=server, routing=epoch) for server in self.routing.roster.servers]
        return [self.servers.on_placed(message, 0) for message in said][-1]


def notes(effects: list) -> list[str]:
    return [note.what for note in of(effects, fx.Note)]


def test_a_server_gets_the_number_that_it_asks_for_or_a_new_one() -> None:
    servers = SeededServers(2)
    effects = servers.outbox.out = []
    assert not servers.join(1) and not servers.join(9), "numbers follow each other"
    already, never = sent(effects, m.Refusal)
    assert "is in this job already" in in_words(already.reason)
    assert never.reason.code == "server-taken"
    assert servers.join(-1) and servers.join(-1)
    assert servers.routing.roster.servers == [0, 1, 2, 3]


@pytest.mark.parametrize("beats", [False, True], ids=["hangs", "lives"])
def test_a_server_that_hangs_when_it_has_joined_does_not_hold_up_the_others(beats: bool) -> None:
    """No other slice could move, because routes change only when every server follows them."""
    servers = SeededServers(2)
    joins_ns = 100 * BEAT_NS
    assert servers.join(2, joins_ns)
    effects = servers.outbox.out = []
    for beat in range(1, 4 * UNKNOWN_FACTOR):
        if beats and beat % UNKNOWN_FACTOR == 0:
            servers.servers.beat(2, joins_ns + beat * BEAT_NS)
        servers.servers.suspect(joins_ns + beat * BEAT_NS)
    assert "server-lost" not in notes(effects), "it may still allocate its slices"
    servers.servers.suspect(joins_ns + 4 * UNKNOWN_FACTOR * BEAT_NS)
    assert ("server-lost" in notes(effects)) is not beats
    if not beats:
        assert servers.placed()
        servers.servers.on_followed(joins_ns)
        assert servers.routing.change is None


def test_a_job_whose_slices_cannot_move_keeps_its_servers() -> None:
    servers = SeededServers(2)
    servers.routing.slices_stay = True
    effects = servers.outbox.out = []
    assert not servers.join(-1)
    (full,) = sent(effects, m.Refusal)
    assert "the job has all of its 2 servers" in in_words(full.reason)
    fault = servers.servers.drain(1, "anna@host", 1)
    assert fault is not None and fault.code == "slices-stay"


def test_replicas_take_over_from_a_lost_server() -> None:
    servers = SeededServers(3, replicas=1)
    effects = servers.outbox.out = []
    assert servers.servers.lose(1, ENDED, 5) is None
    assert notes(effects) == ["server-lost", "rerouting"]
    assert len(sent(effects, m.Place)) == 2
    assert servers.servers.lose(1, ENDED, 6) is None, "again"
    assert notes(effects) == ["server-lost", "rerouting"]
    assert servers.placed()
    change, _, _ = servers.servers.on_followed(7)
    assert change.lost == [1] and notes(effects)[-1] == "rerouted"


def test_without_replicas_the_job_cannot_go_on() -> None:
    fatal = SeededServers(2).servers.lose(1, ENDED, 5)
    assert fatal is not None and fatal.code == "server-died"


def test_the_end_of_an_older_link_loses_no_server() -> None:
    servers = SeededServers(3, replicas=1)
    effects = servers.outbox.out = []
    assert servers.servers.on_link_ended(1, 99, "reset", 5) is None
    assert effects == [] and 1 in servers.routing.roster.addresses


def test_a_silent_server_is_lost_unless_it_has_the_only_copy() -> None:
    servers = SeededServers(3, replicas=1)
    effects = servers.outbox.out = []
    wake_ns = servers.servers.suspicion.deadline.wake_ns
    assert wake_ns is not None and wake_ns > BEAT_NS
    servers.servers.suspect(wake_ns - 1)
    assert effects == []
    servers.servers.suspect(wake_ns)
    assert notes(effects) == ["server-lost", "rerouting", "server-silent"], (
        "copies are of the other"
    )
    servers.servers.suspect(wake_ns)
    assert notes(effects).count("server-silent") == 1
    (silent,) = servers.servers._silent
    servers.servers.beat(silent, wake_ns + 1)
    servers.servers.beat(silent, wake_ns + 2)
    assert notes(effects).count("server-heard") == 1


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_server_that_ends_before_all_have_parameters_loses_nothing(replicas: int) -> None:
    """Not every server has the initial parameters yet, so the seeder sends them again."""
    servers = SeededServers(3, replicas)
    servers.routing.seeding.done = False
    servers.routing.begin_again()
    effects = servers.outbox.out = []
    assert servers.servers.lose(1, ENDED, 5) is None
    assert servers.routing.roster.servers == [0, 2]
    assert {route.primary for route in servers.routing.routes} == {0, 2}
    (placed,) = [note for note in of(effects, fx.Note) if note.what == "placed"]
    assert placed.fields["slices"] == [6, 0, 6]


def test_the_journal_says_what_a_server_holds_that_joins_before_all_have_parameters() -> None:
    """Its slices do not move there, so no other line says it."""
    servers = SeededServers(2)
    servers.routing.seeding.done = False
    effects = servers.outbox.out = []
    assert servers.join(-1)
    assert notes(effects) == ["server-joined", "placed"]
    assert of(effects, fx.Note)[1].fields["slices"] == [4, 4, 4]


def test_without_replicas_a_server_that_is_silent_before_all_have_parameters_is_waited_for() -> (
    None
):
    servers = SeededServers(3)
    servers.routing.seeding.done = False
    effects = servers.outbox.out = []
    wake_ns = servers.servers.suspicion.deadline.wake_ns
    assert wake_ns is not None
    servers.servers.suspect(wake_ns)
    assert notes(effects) == ["server-silent", "server-silent"]
    assert servers.routing.roster.servers == [0, 1, 2]


@pytest.mark.parametrize(
    "job", [m.JobSpec(job="j", in_place=True), m.JobSpec(job="j", sync="asp", kind="statistics")]
)
def test_slices_stay_where_workers_cannot_follow_them(job: m.JobSpec) -> None:
    assert begin_state(job).routing.slices_stay
    assert not begin_state(m.JobSpec(job="j")).routing.slices_stay
