"""The worker machine: its messages to the lead and the servers, the contributions that it keeps,
and when it lets the user's code go on."""

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.worker.leaving import SETTLE_NS
from polyrhythm.core.worker.lifecycle import Phase
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE, TOLD_TO_LEAVE, Reason, refused
from tests.core.stage import ADDRESS, of, sent, spec

SILENT = Reason("silent-for", {"silent_s": 6.0})

ROUTES = (m.Route(0), m.Route(1), m.Route(0))
SERVERS = (m.ServerSpec(0, ADDRESS, 1), m.ServerSpec(1, ADDRESS, 1))
WHO = {"worker": 3, "incarnation": 4, "term": 1, "view": 5}


class Hand:
    """Worker w3 in a job of two servers."""

    def __init__(self) -> None:
        self.worker = WorkerMachine("anna")

    def tell(self, event: object, now_ns: int = 1) -> list:
        effects = list(self.worker.handle(event, now_ns))
        self.worker.check()
        return effects

    def join(self) -> "Hand":
        job = m.JobSpec(job="j", servers=2)
        self.tell(m.Admitted(**WHO, job=job, servers=SERVERS))
        self.tell(ev.Attaching(spec()))
        self.tell(ev.Linked(0, 1))
        self.tell(ev.Linked(1, 1))
        self.tell(m.Routing(**WHO, routing=1, routes=ROUTES, servers=SERVERS))
        return self

    def begin(self) -> "Hand":
        self.join()
        self.release(0)
        self.land(0)
        assert self.worker.state is Phase.COMPUTING
        return self

    def release(self, round_: int, *, pushed: bool = True, stop: bool = False) -> list:
        return self.tell(m.Release(**WHO, round=round_, pushed=pushed, stop=stop))

    def land(self, round_: int, sequence: int = 0) -> list:
        for slice_ in (0, 2):
            self.tell(ev.Landed(0, slice_, round_, sequence))
        return self.tell(ev.Landed(1, m.EVERY_SLICE, round_, sequence))

    def compute(self) -> list:
        report = m.ContributionReport(
            weight=8.0,
            objective=0.5,
            compute_ns=1,
            wait_ns=2,
            transfer_ns=3,
            progress=(m.ChunkProgress(0, 0, 8),),
        )
        return self.tell(ev.Computed(0, (0.1,), report))

    def why(self) -> str:
        return in_words(self.worker.why().reason)


def test_it_dials_the_servers_and_attaches_when_all_are_linked() -> None:
    hand = Hand()
    assert hand.why() == "waiting for the lead to admit this worker"
    job = m.JobSpec(job="j", servers=2)
    effects = hand.tell(m.Admitted(**WHO, job=job, servers=SERVERS))
    assert of(effects, fx.Dial) == [fx.Dial(SERVERS)]
    assert hand.tell(ev.Attaching(spec())) == []
    assert hand.tell(ev.Linked(0, 1)) == []
    (attach,) = sent(hand.tell(ev.Linked(1, 1)), m.Attach, "lead")
    assert (attach.worker, attach.incarnation) == (3, 4)


def test_the_seeder_sends_every_server_its_slices() -> None:
    hand = Hand().join()
    effects = hand.tell(m.Routing(**WHO, routing=1, routes=ROUTES, seed=True, servers=SERVERS))
    assert of(effects, fx.SeedSlices) == [fx.SeedSlices(0, (0, 2), 1), fx.SeedSlices(1, (1,), 1)]


def test_a_new_seeder_seeds_in_the_new_epoch_after_the_first_seeder_died() -> None:
    hand = Hand().join()
    hand.tell(m.Routing(**WHO, routing=1, routes=ROUTES, servers=SERVERS))
    anew = m.Routing(**WHO, routing=2, routes=ROUTES, seed=True, servers=SERVERS)
    effects = hand.tell(anew)
    assert [(seed.server, seed.routing) for seed in of(effects, fx.SeedSlices)] == [(0, 2), (1, 2)]


def test_it_resumes_with_one_complete_version_and_a_release() -> None:
    hand = Hand().join()
    assert hand.why() == "waiting for the servers to allocate the model's slices"
    assert of(hand.land(0), fx.Resume) == [], "the lead has not released it"
    (resume,) = of(hand.release(0), fx.Resume)
    assert resume == fx.Resume(0, False, rejoined=True)
    assert hand.why() == "the worker is computing on version 0"


def test_it_does_not_resume_with_a_mixture_of_versions() -> None:
    hand = Hand().begin()
    hand.compute()
    hand.release(1)
    for slice_ in (0, 2):
        assert of(hand.tell(ev.Landed(0, slice_, 1, 1)), fx.Resume) == []
    assert of(hand.tell(ev.Landed(1, m.EVERY_SLICE, 1, 1)), fx.Resume) == [fx.Resume(1, False)]


def test_nothing_may_land_while_the_user_code_computes() -> None:
    hand = Hand().join()
    hand.release(0)
    assert of(hand.land(0), fx.Expect)[-1] == fx.Expect(None)
    assert of(hand.compute(), fx.Expect) == [fx.Expect(1)], (
        "the present version is not written again"
    )


def test_a_contribution_goes_to_all_servers_and_its_trailer_to_the_lead() -> None:
    effects = Hand().begin().compute()
    pushes = of(effects, fx.PushSlices)
    assert [(push.server, push.slices, push.sequence, push.round) for push in pushes] == [
        (0, (0, 2), 1, 1),
        (1, (1,), 1, 1),
    ]
    (trailer,) = sent(effects, m.Trailer, "lead")
    assert (trailer.sequence, trailer.report.weight, trailer.report.objective) == (1, 8.0, 0.5)
    assert trailer.report.progress == (m.ChunkProgress(0, 0, 8),)


def test_at_most_two_contributions_are_unacknowledged() -> None:
    hand = Hand().begin()
    for sequence in range(1, m.MOST_IN_FLIGHT + 1):
        assert of(hand.compute(), fx.PushSlices)
        hand.release(sequence)
        hand.land(sequence)
    assert of(hand.compute(), fx.PushSlices) == []
    assert hand.why() == "waiting for s0 and s1 to acknowledge the last two contributions"
    assert hand.tell(m.Acknowledged(**WHO, server=0, sequence=1)) == []
    pushes = of(hand.tell(m.Acknowledged(**WHO, server=1, sequence=1)), fx.PushSlices)
    assert [push.sequence for push in pushes] == [3, 3]


def test_it_counts_the_contributions_that_every_server_has_acknowledged() -> None:
    hand = Hand().begin()
    for sequence in (1, 2):
        hand.compute()
        hand.release(sequence)
        hand.land(sequence)
    assert (hand.worker.acknowledged, hand.worker.unacknowledged) == (0, 2)
    hand.tell(m.Acknowledged(**WHO, server=0, sequence=2))
    hand.tell(m.Acknowledged(**WHO, server=1, sequence=1))
    assert (hand.worker.acknowledged, hand.worker.unacknowledged) == (1, 1)
    hand.tell(m.Acknowledged(**WHO, server=1, sequence=2))
    assert (hand.worker.acknowledged, hand.worker.unacknowledged) == (2, 0)
    hand.tell(m.Evicted(**WHO, reason=SILENT))
    hand.compute()
    assert (hand.worker.acknowledged, hand.worker.unacknowledged) == (0, 0), (
        "it has a new incarnation"
    )


def test_parameters_that_arrive_acknowledge_a_contribution() -> None:
    hand = Hand().begin()
    hand.compute()
    hand.release(1)
    hand.land(1, sequence=1)
    assert hand.worker.unacknowledged == 0


def test_a_worker_without_points_abstains_and_ends_its_reads() -> None:
    effects = Hand().begin().tell(ev.Exhausted())
    (abstained,) = sent(effects, m.Abstained, "lead")
    assert abstained.round == 1
    assert [pulled.round for pulled in sent(effects, m.Pulled)] == [0, 0]


def test_a_version_that_is_not_pushed_is_pulled() -> None:
    hand = Hand().begin()
    hand.compute()
    pulls = of(hand.release(1, pushed=False), fx.Send)
    assert [(pull.to, pull.message.round) for pull in pulls] == [("s0", 1), ("s1", 1)]
    assert of(hand.land(1), fx.Resume) == [fx.Resume(1, False)]


def test_if_a_server_has_a_later_version_the_other_servers_are_pulled_again() -> None:
    hand = Hand().begin()
    hand.compute()
    hand.release(1, pushed=False)
    for slice_ in (0, 2):
        hand.tell(ev.Landed(0, slice_, 1, 1))
    (pull,) = of(hand.tell(ev.Landed(1, m.EVERY_SLICE, 2, 1)), fx.Send)
    assert (pull.to, pull.message.round) == ("s0", 2)
    hand.tell(ev.Landed(0, 0, 2, 1))
    assert of(hand.tell(ev.Landed(0, 2, 2, 1)), fx.Resume) == [fx.Resume(2, False)]


def test_a_server_whose_answer_is_in_flight_is_not_pulled_again() -> None:
    """A second answer could have a later version and overwrite the version that the first one
    completed."""
    hand = Hand().begin()
    hand.compute()
    hand.release(1, pushed=False)
    assert sent(hand.tell(ev.Landed(1, m.EVERY_SLICE, 2, 1)), m.Pull) == []
    assert sent(hand.tell(ev.Landed(0, 0, 1, 1)), m.Pull) == []
    assert len(sent(hand.tell(ev.Landed(0, 2, 1, 1)), m.Pull, "s0")) == 1


def test_at_the_end_of_the_job_it_pulls_the_final_version() -> None:
    hand = Hand().begin()
    hand.release(3, pushed=False, stop=True)
    effects = hand.compute()
    assert of(effects, fx.PushSlices) == [] and len(sent(effects, m.Pull)) == 2
    assert of(hand.land(3), fx.Resume) == [fx.Resume(3, True)]


def test_leaving_tells_the_lead_and_ends() -> None:
    effects = Hand().begin().tell(ev.Leaving(DONE))
    assert sent(effects, m.Leave, "lead")[0].reason == DONE
    assert of(effects, fx.End)


def test_a_worker_that_is_asked_to_leave_contributes_and_stops_waiting() -> None:
    hand = Hand().begin()
    assert hand.tell(ev.LeaveAsked()) == [], "its user's code computes"
    effects = hand.compute()
    assert of(effects, fx.PushSlices) and of(effects, fx.StopWaiting)
    assert of(effects, fx.Expect)[-1] == fx.Expect(None), "nothing lands under the user's code"
    assert hand.why() == "this worker was told to leave, and finishes its work"


def test_a_waiting_worker_that_is_asked_to_leave_first_completes_the_version_that_is_landing() -> (
    None
):
    hand = Hand().begin()
    hand.compute()
    hand.tell(ev.Landed(1, m.EVERY_SLICE, 1, 1))
    assert hand.tell(ev.LeaveAsked()) == []
    hand.tell(ev.Landed(0, 0, 1, 1))
    effects = hand.tell(ev.Landed(0, 2, 1, 1))
    assert of(effects, fx.StopWaiting) and of(effects, fx.Resume) == []


def leaving() -> Hand:
    """A worker that was asked to leave while its last contribution is in flight."""
    hand = Hand().begin()
    hand.tell(ev.LeaveAsked())
    hand.compute()
    assert sent(hand.tell(ev.Leaving(TOLD_TO_LEAVE)), m.Leave) == []
    assert hand.why() == "this worker leaves when 1 contribution has been acknowledged"
    return hand


def test_it_leaves_when_every_server_has_acknowledged() -> None:
    hand = leaving()
    assert hand.tell(m.Acknowledged(**WHO, server=0, sequence=1)) == []
    # server 1 has sent the version after the fold, which is an acknowledgement too
    effects = hand.tell(ev.Skipped(1, 1))
    assert sent(effects, m.Leave, "lead")[0].reason == TOLD_TO_LEAVE and of(effects, fx.End)


def test_it_leaves_at_a_deadline_without_acknowledgements() -> None:
    hand = leaving()
    until_ns = 1 + SETTLE_NS
    assert hand.worker.why().until_ns == until_ns
    assert sent(hand.tell(ev.Tick(), until_ns - 1), m.Leave) == []
    assert hand.worker.wake_at() == until_ns, "before its next heartbeat"
    assert sent(hand.tell(ev.Tick(), until_ns), m.Leave, "lead")


def test_a_leaving_worker_ends_when_an_acknowledgement_can_no_longer_arrive() -> None:
    for event in (
        ev.Leaving(TOLD_TO_LEAVE, at_once=True),
        m.Evicted(**WHO, reason=SILENT),
        ev.LinkClosed("s1", "it died"),
        ev.LinkClosed("s0", "it died"),
    ):
        assert of(leaving().tell(event), fx.End), event


def test_a_worker_that_was_asked_to_leave_does_not_rejoin_after_an_eviction() -> None:
    hand = Hand().begin()
    hand.tell(ev.LeaveAsked())
    hand.tell(m.Evicted(**WHO, reason=SILENT))
    effects = hand.compute()
    assert of(effects, fx.StopWaiting) and of(effects, fx.Rejoin) == []
    assert of(hand.tell(ev.Leaving(TOLD_TO_LEAVE)), fx.End)


def test_refusals_and_stops_reach_the_user_code() -> None:
    for event, text, stopped in (
        (m.Refusal(reason=refused("name taken")), "name taken", False),
        (m.Stop(**WHO, reason=refused("the job is over")), "the job is over", True),
    ):
        hand = Hand().begin()
        (fail,) = hand.tell(event)
        assert (in_words(fail.reason), fail.stopped) == (text, stopped)
        assert hand.tell(event) == []
        assert hand.why() == "waiting for nothing"


def test_an_evicted_worker_ends_its_loop_in_order_when_the_job_has_ended() -> None:
    hand = Hand().begin()
    hand.tell(m.Evicted(**WHO, reason=Reason("silent-for", {"silent_s": 6.0})))
    assert of(hand.compute(), fx.Rejoin)
    effects = hand.tell(m.Refusal(reason=refused("the job is ending"), ending=True))
    assert of(effects, fx.StopWaiting) == [fx.StopWaiting(stop=True)]
    (note,) = of(effects, fx.Note)
    assert note.what == fx.WITHOUT_PARAMETERS
    assert hand.tell(ev.LinkClosed("s0", "it has ended")) == [], "the user's code runs on"
    assert of(hand.tell(ev.Leaving(DONE)), fx.End)


def test_a_worker_that_has_not_started_fails_when_the_job_has_ended() -> None:
    hand = Hand()
    assert of(hand.tell(m.Refusal(reason=refused("the job is ending"), ending=True)), fx.Fail)


def test_leases_enrolments_and_reports_are_passed_on() -> None:
    hand = Hand().begin()
    lease = m.Leased(**WHO, points=3, seed=0, chunks=())
    assert hand.tell(lease) == [fx.TakeChunks(lease)]
    assert sent(hand.tell(ev.Enrolling(9)), m.Enrol, "lead")[0].points == 9
    assert sent(hand.tell(ev.Reporting({"a": 1.0})), m.Report, "lead")[0].metrics == {"a": 1.0}


def test_why_names_the_fold_that_the_worker_waits_for() -> None:
    hand = Hand().begin()
    hand.compute()
    assert hand.why() == "waiting for the fold of round 1"


def test_a_worker_that_is_evicted_while_it_waits_for_its_lease_rejoins() -> None:
    """The lead had evicted the worker before its request arrived, so the lead will never send the
    lease."""
    hand = Hand().begin()
    hand.tell(ev.Enrolling(9))
    assert of(hand.tell(m.Evicted(**WHO, reason=SILENT)), fx.Rejoin)


def test_a_worker_that_has_its_lease_computes_before_it_rejoins() -> None:
    hand = Hand().begin()
    hand.tell(ev.Enrolling(9))
    hand.tell(m.Leased(**WHO, points=9, seed=0, chunks=()))
    assert of(hand.tell(m.Evicted(**WHO, reason=SILENT)), fx.Rejoin) == []
    assert of(hand.compute(), fx.Rejoin)


def test_slices_for_an_earlier_incarnation_are_ignored() -> None:
    """The worker does not pull the missing slices either: servers may not know its new incarnation
    yet."""
    hand = Hand().join()
    before = WHO["incarnation"] - 1
    for server, slices in ((0, (0, 2)), (1, (m.EVERY_SLICE,))):
        for slice_ in slices:
            hand.tell(ev.Landed(server, slice_, 18, 17, 1, incarnation=before))
    hand.tell(ev.Skipped(0, 17, 1, incarnation=before))
    effects = hand.tell(m.Routing(**WHO, routing=2, routes=ROUTES, servers=SERVERS))
    assert sent(effects, m.Pull) == []
    (resume,) = of([*hand.release(0), *hand.land(0)], fx.Resume)
    assert resume.round == 0
    hand.compute()
    assert hand.worker.unacknowledged == 1


def test_if_the_job_ends_while_a_worker_leaves_it_pulls_the_version_that_it_skipped() -> None:
    hand = Hand().begin()
    hand.compute()
    assert of(hand.tell(ev.LeaveAsked()), fx.StopWaiting) == [fx.StopWaiting()]
    for server in (0, 1):
        hand.tell(ev.Skipped(server, 1, 1))
    hand.release(1, stop=True)
    effects = hand.compute()
    assert [pull.round for pull in sent(effects, m.Pull)] == [1, 1]


def not_reached(hand: Hand, incarnation: int) -> list:
    """Admit the worker and let its dial to server 1 fail, though the lead still names that server.
    Returns the effects that follow."""
    job = m.JobSpec(job="j", servers=2, replicas=1)
    specs = (SERVERS[0], m.ServerSpec(1, ADDRESS, incarnation))
    hand.tell(m.Admitted(**WHO, job=job, servers=specs))
    hand.tell(ev.Linked(0, 1))
    hand.tell(ev.LinkClosed("s1", "no answer", incarnation))
    while (until_ns := hand.worker.wake_at()) is not None:
        effects = hand.tell(ev.Tick(), until_ns)
        if others := [effect for effect in effects if not isinstance(effect, fx.Beat)]:
            return others
    raise AssertionError("it waits for ever")


def test_a_worker_that_cannot_reach_a_server_rejoins_to_learn_the_current_servers() -> None:
    hand = Hand()
    (rejoin,) = of(not_reached(hand, incarnation=1), fx.Rejoin)
    assert "s1" in in_words(rejoin.reason)
    assert of(not_reached(hand, incarnation=2), fx.Rejoin), "another has come in its place"


def test_a_worker_that_cannot_reach_the_same_server_twice_fails() -> None:
    hand = Hand()
    not_reached(hand, incarnation=1)
    (fail,) = not_reached(hand, incarnation=1)
    assert isinstance(fail, fx.Fail) and "no answer" in in_words(fail.reason)


def test_a_worker_that_comes_back_connects_again_until_the_server_answers() -> None:
    """It does not fail, however often it was unable to reach the server, and tells the lead why it does
    not take part."""
    hand = Hand()
    not_reached(hand, incarnation=1)
    hand.begin()
    hand.tell(m.Evicted(**WHO, reason=SILENT))
    hand.compute()
    hand.tell(m.Admitted(**WHO, job=m.JobSpec(job="j", servers=2), servers=SERVERS), 10**9)
    hand.tell(ev.Linked(0, 1), 10**9)
    at_ns = 10**9
    for _ in range(3):
        (told,) = sent(hand.tell(ev.LinkClosed("s1", "no answer", 1), at_ns), m.Unreachable, "lead")
        assert (told.worker, told.peer, told.peer_incarnation) == (3, "s1", 1)
        assert told.detail == "no answer"
        dialled: list[fx.Dial] = []
        began_ns = at_ns
        while not dialled:
            at_ns = hand.worker.wake_at() or 0
            dialled = of(hand.tell(ev.Tick(), at_ns), fx.Dial)
        assert at_ns == began_ns + 2 * 10**9
        assert dialled == [fx.Dial(SERVERS[1:])], "the link to the other server is up"
    assert sent(hand.tell(ev.Linked(1, 1), at_ns), m.Attach, "lead")


# -- the state of the user's code ------------------------------------------------------------------


def test_a_worker_announces_its_state_when_it_has_one() -> None:
    hand = Hand().begin()
    (announced,) = sent(hand.tell(ev.StateKept(restore=True)), m.Keeping, "lead")
    assert announced.incarnation == 4 and announced.restore


def test_an_announcement_before_admission_waits_for_it() -> None:
    hand = Hand()
    assert not sent(hand.tell(ev.StateKept()), m.Keeping)
    job = m.JobSpec(job="j", servers=2)
    assert sent(hand.tell(m.Admitted(**WHO, job=job, servers=SERVERS)), m.Keeping, "lead")


def test_a_worker_that_rejoins_announces_its_state_again() -> None:
    hand = Hand().begin()
    hand.tell(ev.StateKept(restore=True))
    hand.tell(ev.StateRestored())
    hand.compute()
    hand.tell(m.Evicted(**WHO, reason=SILENT))
    assert hand.worker.state is Phase.JOINING
    again = {**WHO, "incarnation": 9}
    job = m.JobSpec(job="j", servers=2)
    effects = hand.tell(m.Admitted(**again, job=job, servers=SERVERS))
    (announced,) = sent(effects, m.Keeping)
    assert announced.incarnation == 9
    assert not announced.restore, "it has the state of the checkpoint already"


def test_a_state_is_copied_after_the_iteration_of_the_last_contribution() -> None:
    hand = Hand().begin()
    hand.tell(ev.StateKept())
    hand.compute()
    assert of(hand.tell(m.Keep(**WHO, number=2)), fx.CaptureState) == [
        fx.CaptureState(2, 3, 4, at_once=False)
    ]


def test_a_state_is_copied_at_once_while_the_next_contribution_is_kept_back() -> None:
    hand = Hand().begin()
    hand.tell(ev.StateKept())
    hand.tell(m.Withhold(**WHO, number=2))
    assert not of(hand.compute(), fx.PushSlices), "it is withheld"
    (capture,) = of(hand.tell(m.Keep(**WHO, number=2)), fx.CaptureState)
    assert capture.at_once


def test_a_request_to_an_earlier_incarnation_is_ignored() -> None:
    hand = Hand().begin()
    hand.tell(ev.StateKept())
    assert not hand.tell(m.Keep(**{**WHO, "incarnation": 1}, number=2))


def beat(hand: Hand, now_s: float) -> m.Alive:
    (effect,) = of(hand.tell(ev.Tick(), round(now_s * 10**9)), fx.Beat)
    return effect.message


def test_a_heartbeat_says_whether_the_users_loop_is_over() -> None:
    """The order to stop is not enough: the user's code may hang and never read it."""
    hand = Hand().begin()
    assert not beat(hand, 1).loop_over
    hand.release(1, pushed=False, stop=True)
    assert not beat(hand, 2).loop_over, "the user's code still computes on version 0"
    hand.compute()
    assert not beat(hand, 3).loop_over, "the final version has not arrived"
    hand.land(1)
    assert beat(hand, 4).loop_over
    hand.compute()
    assert beat(hand, 5).loop_over, "the user's code makes a step after the end"


def test_the_loop_of_a_worker_that_was_told_to_leave_is_over() -> None:
    hand = Hand().begin()
    hand.tell(ev.LeaveAsked())
    assert not beat(hand, 1).loop_over
    hand.compute()
    assert beat(hand, 2).loop_over


def test_it_asks_how_the_model_is_cut_in_every_incarnation_until_it_knows() -> None:
    hand, job = Hand(), m.JobSpec(job="j", servers=2, slice_nbytes=0)
    assert sent(hand.tell(ev.Sizing(500)), m.ModelSize) == []
    (asked,) = sent(hand.tell(m.Admitted(**WHO, job=job, servers=SERVERS)), m.ModelSize, "lead")
    assert (asked.nbytes, asked.incarnation) == (500, 4) and hand.worker.division is None
    hand.tell(m.Evicted(**WHO, reason=SILENT))
    again = {**WHO, "incarnation": 9}
    (asked,) = sent(hand.tell(m.Admitted(**again, job=job, servers=SERVERS)), m.ModelSize, "lead")
    assert asked.incarnation == 9
    hand.tell(m.Divided(**again, division=m.Division(2, 64)))
    assert hand.worker.division == m.Division(2, 64)
    assert sent(hand.tell(ev.Sizing(500)), m.ModelSize) == []


def test_it_does_not_ask_if_the_size_of_slices_is_given() -> None:
    hand, job = Hand(), m.JobSpec(job="j", servers=2, slice_nbytes=64)
    hand.tell(ev.Sizing(500))
    assert sent(hand.tell(m.Admitted(**WHO, job=job, servers=SERVERS)), m.ModelSize) == []
    assert hand.worker.division == m.Division(2, 64)
