from polyrhythm.core import effects as fx
from polyrhythm.core.lead.members import View
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import Routing
from polyrhythm.core.lead.servers import Servers
from polyrhythm.wire import messages as m
from tests.core.stage import ADDRESS, of, sent, spec

BEAT_S = 1.0
BEAT_NS = 10**9


class SeededServers:
    """As many as asked for, and all of them have the parameters."""

    def __init__(self, servers: int, replicas: int = 0) -> None:
        job = m.JobSpec(job="j", servers=servers, replicas=replicas, heartbeat_s=BEAT_S)
        self.placing = Routing(servers, 64, replicas)
        self.dispatch = LeadOutbox(View(), self.placing)
        self.site = Servers(job, self.placing, Rounds(), self.dispatch)
        for server in range(servers):
            assert self.come(server)
        self.site.place(spec((64,), (64,), (64,)))
        self.placed()
        for server in range(servers):
            self.placing.seeded(m.Seeded(server=server, routing=self.placing.epoch))
        assert self.placing.all_seeded

    def come(self, server: int) -> bool:
        hello = m.ServerHello(
            server=server, name=f"s{server}", job="j", address=ADDRESS, identity=""
        )
        return self.site.come(f"link-{server}", hello, 0)

    def placed(self) -> bool:
        epoch = self.placing.epoch
        said = [m.Placed(server=server, routing=epoch) for server in self.placing.servers]
        return [self.site.placed(message, 0) for message in said][-1]


def notes(effects: list) -> list[str]:
    return [note.what for note in of(effects, fx.Note)]


def test_there_is_a_seat_for_as_many_as_the_job_has() -> None:
    servers = SeededServers(2)
    effects = servers.dispatch.begin()
    assert not servers.come(1) and not servers.come(-1)
    already, full = sent(effects, m.Refusal)
    assert "is in this job already" in already.reason
    assert "the job has its 2 server(s)" in full.reason


def test_replicas_take_over_from_one_who_is_lost() -> None:
    servers = SeededServers(3, replicas=1)
    effects = servers.dispatch.begin()
    assert servers.site.lose(1, "the end of its link", "reset", 5) is None
    assert notes(effects) == ["server-lost", "rerouting"]
    assert len(sent(effects, m.Place)) == 2
    assert servers.site.lose(1, "the end of its link", "reset", 6) is None, "again"
    assert notes(effects) == ["server-lost", "rerouting"]
    assert servers.placed()
    change, _, _ = servers.site.followed(7)
    assert change.lost == [1] and notes(effects)[-1] == "rerouted"


def test_without_replicas_the_job_cannot_go_on() -> None:
    fatal = SeededServers(2).site.lose(1, "the end of its link", "reset", 5)
    assert fatal is not None and fatal.code == "server-died"


def test_the_end_of_an_older_link_loses_nobody() -> None:
    servers = SeededServers(3, replicas=1)
    effects = servers.dispatch.begin()
    assert servers.site.link_ended(1, 99, "reset", 5) is None
    assert effects == [] and 1 in servers.placing.addresses


def test_the_silent_is_lost_but_not_who_cannot_be_done_without() -> None:
    servers = SeededServers(3, replicas=1)
    effects = servers.dispatch.begin()
    wake_ns = servers.site.suspicion.wake_ns
    assert wake_ns is not None and wake_ns > BEAT_NS
    servers.site.suspect(wake_ns - 1)
    assert effects == []
    servers.site.suspect(wake_ns)
    assert notes(effects) == ["server-lost", "rerouting", "server-silent"], (
        "copies are of the other"
    )
    servers.site.suspect(wake_ns)
    assert notes(effects).count("server-silent") == 1
