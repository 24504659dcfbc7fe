"""The lead decides which process must go if two processes cannot talk to each other."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core.lead.servers.broken_links import judge
from polyrhythm.core.liveness import judged_link_s, silent_link_s
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, of, sent

JUDGED_S = judged_link_s(0.5)


@pytest.mark.parametrize(
    ("pair", "broken", "workers", "losable", "leaves"),
    [
        ("w0 s1", "", 3, "s1", "w0"),
        ("w0 s1", "w1-s1", 3, "s1", "s1"),
        ("w0 s1", "w1-s1", 4, "s1", "w0"),  # half of the workers are not most of them
        ("w0 s1", "w1-s1 w2-s1", 3, "", "w0"),  # the server has the only copy of a slice
        ("w0 s1", "w0-s2", 2, "s1 s2", "w0"),
        ("w0 s1", "w1-s2", 2, "s1 s2", "w0"),
        ("w0 s1", "", 1, "s1", "s1"),  # the only worker: the job goes on only without the server
        ("w0 s1", "", 1, "", "w0"),
        ("s1 s2", "", 3, "s1 s2", "s2"),
        ("s1 s2", "w0-s1", 3, "s1 s2", "s1"),
        ("s1 s2", "s1-s3", 3, "s1 s2 s3", "s1"),
        ("s1 s2", "w0-s1", 3, "s2", "s2"),
        ("s1 s2", "", 3, "", None),
    ],
)
def test_which_process_must_go(
    pair: str, broken: str, workers: int, losable: str, leaves: str | None
) -> None:
    one, other = pair.split()
    pairs = {(one, other)} | {(near, far) for near, far in (p.split("-") for p in broken.split())}
    verdict = judge((one, other), pairs, workers, lambda server: f"s{server}" in losable.split())
    assert verdict.leaves == leaves


class Scene(Stage):
    """Round 1 is open. All workers and servers send heartbeats, except those in `stopped`."""

    def __init__(self, **job: object) -> None:
        super().__init__(**{"workers": 3, "servers": 3, "heartbeat_s": 0.5, **job})
        self.stopped: set[str] = set()
        self.begin()
        self.pass_time(3.0)

    def pass_time(self, seconds: float, *silent: tuple[int, str]) -> list[fx.Effect]:
        """Let time pass, while these servers report these peers."""
        effects: list[fx.Effect] = []
        for step in range(1, round(2 * seconds) + 1):
            effects += self.tick(0.5)
            for worker in range(self.job.workers):
                if f"w{worker}" not in self.stopped:
                    effects += self.tell(m.Alive(**self.who(worker)))
            for server in range(1, self.job.servers):
                effects += self.tell(m.Alive(server=server))
            for server, peer in silent:
                if step / 2 >= silent_link_s(0.5):
                    effects += self.report(server, peer, step / 2)
        return effects

    def report(self, server: int, peer: str, silent_s: float) -> list[fx.Effect]:
        number = int(peer[1:])
        worker = peer[0] == "w"
        incarnation = self.incarnations[number] if worker else 1
        return self.tell(
            m.Unreachable(server=server, peer=peer, peer_incarnation=incarnation, silent_s=silent_s)
        )


def noted(effects: list[fx.Effect], what: str) -> list[dict[str, object]]:
    return [note.fields for note in of(effects, fx.Note) if note.what == what]


def test_a_worker_is_excluded_when_its_link_is_silent_and_told_to_rejoin() -> None:
    scene = Scene()
    before_s = JUDGED_S - 0.5
    assert not noted(scene.pass_time(before_s, (1, "w0")), "left")
    assert scene.why == (
        "w0 and s1 cannot reach each other: nothing comes over their link, although both can"
        " reach the lead"
    )
    effects = scene.report(1, "w0", JUDGED_S)
    (cut_off,) = noted(effects, "cut-off")
    assert (cut_off["worker"], cut_off["server"]) == (0, 1)
    (evicted,) = sent(effects, m.Evicted, "w0")
    assert evicted.reason.code == "cut-off"
    assert not of(scene.closed("w0"), fx.End)


def test_a_stopped_worker_is_not_cut_off() -> None:
    """No server hears anything of it, but neither does the lead."""
    scene = Scene()
    scene.stopped.add("w0")
    effects = scene.pass_time(6.0, (1, "w0"), (2, "w0"))
    assert [fields["name"] for fields in noted(effects, "evicted")] == ["worker-0"]
    assert not noted(effects, "cut-off")


def test_a_worker_that_hangs_soon_after_its_link_fell_silent_is_not_cut_off() -> None:
    """The lead has heard from it during the silence, but not in the second half of it."""
    scene = Scene()
    scene.hello("worker-3")
    scene.attach(3)
    scene.pass_time(JUDGED_S - 0.5)
    effects = scene.report(1, "w3", JUDGED_S)
    assert not noted(effects, "cut-off")


def test_a_worker_that_hangs_while_it_begins_is_not_cut_off() -> None:
    """The limit for the silence of a new worker is longer than that for a link."""
    scene = Scene()
    scene.hello("worker-3")
    scene.attach(3)
    effects = scene.pass_time(JUDGED_S + 2, (1, "w3"), (2, "w3"))
    assert not noted(effects, "cut-off") and not noted(effects, "evicted")


def test_a_report_about_an_earlier_incarnation_is_ignored() -> None:
    scene = Scene()
    earlier = m.Unreachable(
        server=1, peer="w0", peer_incarnation=scene.incarnations[0] - 1, silent_s=60.0
    )
    assert scene.tell(earlier) == []


def test_silence_that_is_over_does_not_count_against_the_server() -> None:
    """The links of two of three workers were silent, but not at the same time."""
    scene = Scene(replicas=1)
    scene.pass_time(JUDGED_S - 0.5, (1, "w0"))
    effects = scene.pass_time(JUDGED_S, (1, "w1"))
    assert [fields["name"] for fields in noted(effects, "cut-off")] == ["worker-1"]
    assert not noted(effects, "server-lost")


def test_an_excluded_worker_counts_against_the_server_until_its_link_works() -> None:
    scene = Scene(replicas=1)
    scene.pass_time(JUDGED_S, (1, "w0"))
    scene.closed("w0")
    scene.hello("worker-0")
    effects = scene.pass_time(70.0)
    told = m.Unreachable(**scene.who(0), peer="s1", peer_incarnation=1, detail="timed out")
    assert [fields["detail"] for fields in noted(scene.tell(told), "unopened")] == ["timed out"]
    effects = scene.pass_time(JUDGED_S, (1, "w1"))
    (lost,) = noted(effects, "server-lost")
    assert (lost["server"], lost["reason"]) == (1, "server-cut-off")
    # it cannot connect to a server that is lost, so it must learn which servers the job has now
    (evicted,) = sent(scene.tell(told), m.Evicted, "w0")
    assert evicted.reason.code == "servers-changed"


def test_a_worker_whose_links_work_again_is_forgotten() -> None:
    scene = Scene(replicas=1)
    scene.pass_time(JUDGED_S, (1, "w0"))
    scene.closed("w0")
    scene.hello("worker-0")
    (works,) = noted(scene.attach(0), "link-works")
    assert (works["name"], works["server"]) == ("worker-0", 1)
    effects = scene.pass_time(JUDGED_S, (1, "w1"))
    assert [fields["name"] for fields in noted(effects, "cut-off")] == ["worker-1"]


def test_a_worker_that_is_cut_off_from_its_final_version_is_excluded_too() -> None:
    scene = Scene(rounds=1)
    for worker in range(3):
        scene.contribute(worker, 1)
    scene.folded(1)
    assert scene.lead.why().reason.code == "ending"
    effects = scene.pass_time(JUDGED_S, (1, "w0"))
    assert [fields["name"] for fields in noted(effects, "cut-off")] == ["worker-0"]


def test_a_pause_of_the_lead_is_not_the_end_of_a_silence() -> None:
    """No report could come while the lead was paused."""
    scene = Scene()
    scene.report(1, "w0", silent_link_s(0.5))
    assert "s1" in scene.why
    waits = scene.why
    scene.sleep(30.0)
    scene.tell(m.Alive(server=1))
    assert scene.why == waits
