"""A run told in sentences. Golden transcripts consist of such sentences."""

from polyrhythm.observe.story import Teller, tell
from polyrhythm.wire.messages.reasons import refused
from tests.observe.journals import ended, joined, left, line, opened, rounds, totals, waiting


def reported(at_s: float, worker: int, accuracy: float | None) -> dict[str, object]:
    name, metrics = f"worker-{worker}", {"accuracy": accuracy}
    return line(at_s, "reported", worker=worker, name=name, metrics=metrics)


def after_opening(*lines: dict[str, object], worker: int | None = None) -> list[str]:
    """Return the sentences for these lines, which follow the opening of a run with four workers."""
    begun = list(tell(opened(0, 1, 2, 3), worker))
    told = list(tell([*opened(0, 1, 2, 3), *lines], worker))
    assert told[: len(begun)] == begun
    return told[len(begun) :]


def test_the_beginning() -> None:
    assert list(tell(opened(0, 1))) == [
        "   0.1 s  server s0 has joined",
        "   0.2 s  worker-0 joined; 1 worker now",
        "   0.2 s  worker-1 joined; 2 workers now",
        "   0.5 s  the model of 4.0 kB lies in 2 slices: s0 holds 2",
        "   1.0 s  round 1 opened with 2 workers",
    ]


def test_a_death() -> None:
    assert after_opening(left(12.3, 2, "link-ended", detail="w2 closed the link")) == [
        "  12.3 s  worker-2 died: its link ended; 3 go on without it"
    ]


def test_a_new_assignment_of_slices() -> None:
    fields = {"slices": 6, "nbytes": 12_600_000, "moving_s": 0.5, "rounds": 100, "slowest": "s2"}
    times = {"scheme": "aware", "now_s": 2.0, "then_s": 1.25, "gain": 0.375}
    assert after_opening(line(9.0, "reassigned", **fields, **times)) == [
        "   9.0 s  6 slices will move to other servers (12.6 MB, 0.50 s), because a round takes longest"
        " on s2: --placement aware expects 1.250 s for the transfers of a round, and not 2.000 s"
        " (38% less)"
    ]


def test_leaving_in_other_ways() -> None:
    assert after_opening(
        left(2.0, 0, "failed", detail="ValueError: no w3"),
        left(3.0, 1, "done"),
        left(4.0, 2, "link-ended", detail="the link to w2 broke: reset"),
        left(5.0, 3, "told-to-leave"),
    ) == [
        "   2.0 s  worker-0 left: it failed: ValueError: no w3; 3 go on without it",
        "   3.0 s  worker-1 is done",
        "   4.0 s  worker-2 died: its link ended; 1 goes on without it",
        "   5.0 s  worker-3 left: it was told to leave; no worker is left",
    ]


def test_an_eviction_and_a_rejoin_are_told_once_each() -> None:
    fields = {"silent_s": 6.14, "limit_s": 5.0, "heartbeats": 10, "heartbeat_s": 0.5}
    assert after_opening(
        line(9.0, "evicted", worker=2, name="worker-2", **fields),
        left(9.0, 2, "evicted"),
        joined(20.0, 2, incarnation=7),
        line(20.0, "rejoined", worker=2, name="worker-2", incarnation=7),
    ) == [
        "   9.0 s  worker-2 was evicted: silent for 6.1 s, the limit is 5.0 s"
        " (10 x the heartbeat interval of 0.50 s); 3 go on without it",
        "  20.0 s  worker-2 is back, as incarnation 7; 4 workers now",
    ]


def not_made(at_s: float, number: int, code: str = "cut-unwritten") -> dict[str, object]:
    fields = {"detail": f"cannot write s3://b/{number}: the store does not answer", "server": 1}
    return line(at_s, "checkpoint-failed", number=number, reason=code, fields=fields)


def made(at_s: float, number: int) -> dict[str, object]:
    fields = {"round": 7, "nbytes": 2000, "seconds": 0.25}
    return line(at_s, "checkpoint", number=number, **fields)


def test_a_store_that_fails_is_told_once_and_again_when_it_works() -> None:
    assert after_opening(
        made(2.0, 1),
        *(not_made(3.0 + number, number) for number in (2, 3, 4)),
        made(8.0, 5),
        made(9.0, 6),
        not_made(9.5, 7),
    ) == [
        "   2.0 s  checkpoint 1 of round 7 is made: 2.0 kB in 0.2 s",
        "   5.0 s  checkpoint 2 is not made: cannot write s3://b/2: the store does not answer;"
        " training goes on",
        "   8.0 s  checkpoint 5 of round 7 is made: 2.0 kB in 0.2 s; the store works again,"
        " after 3 checkpoints that were not made",
        "   9.0 s  checkpoint 6 of round 7 is made: 2.0 kB in 0.2 s",
        "   9.5 s  checkpoint 7 is not made: cannot write s3://b/7: the store does not answer;"
        " training goes on",
    ]


def test_another_fault_is_told_although_the_store_fails() -> None:
    told = after_opening(not_made(2.0, 1), not_made(3.0, 2, "cut-server-lost"), not_made(4.0, 3))
    assert [sentence[:23] for sentence in told] == [
        "   2.0 s  checkpoint 1 ",
        "   3.0 s  checkpoint 2 ",
    ]


def test_a_pause_of_the_lead_concerns_every_worker() -> None:
    assert after_opening(line(9.0, "lead-paused", seconds=3.96)) == [
        "   9.0 s  the lead was paused for 4.0 s: no process is suspected for that time"
    ]


def test_routine_is_told_before_what_is_not() -> None:
    assert after_opening(
        rounds(2.0, 10, objective=0.9),
        reported(2.5, 1, 0.5),
        rounds(3.0, 20, objective=0.8, passes=1),
        reported(3.5, 1, 0.6),
        left(4.0, 0, "done"),
        rounds(5.0, 21),
    ) == [
        "   3.0 s  rounds 1 to 20 are folded, pass 1, objective 0.8000",
        "   3.5 s  worker-1 reports accuracy 0.6",
        "   4.0 s  worker-0 is done",
        "   5.0 s  round 21 is folded, objective 0.8000",
    ]


def test_routine_is_told_every_ten_seconds() -> None:
    told = after_opening(*(rounds(1.0 + s, 10 * s) for s in range(1, 26)))
    assert told == [
        "  11.0 s  rounds 1 to 100 are folded",
        "  21.0 s  rounds 101 to 200 are folded",
        "  26.0 s  rounds 201 to 250 are folded",
    ]


def test_a_teller_without_routine_tells_only_unusual_events() -> None:
    teller = Teller(routine=False)
    lines = [*opened(0, 1), rounds(12.0, 4, {0: totals(4)}), rounds(24.0, 8, {0: totals(8)})]
    said = [sentence for each in lines for sentence in teller.take(each)]
    assert said and not any(sentence.routine for sentence in said)
    (death,) = teller.take(left(25.0, 1, "link-ended"))
    assert death.text.startswith("worker-1 died")
    assert teller.state.round == 8 and teller.state.workers[0].totals.contributions == 8


def test_a_long_wait_is_told_once_and_the_timer_names_the_missing() -> None:
    assert after_opening(
        rounds(5.0, 4),
        *(waiting(6.0 + s, 1.0 + s, [2], until_s=9.0 - s) for s in range(10)),
        rounds(15.0, 5, reason="timer"),
        *(waiting(17.0 + s, 2.0 + s, [2]) for s in range(4)),
    ) == [
        "   5.0 s  rounds 1 to 4 are folded",
        "   8.0 s  round 5 waits for worker-2, for 3.0 s so far, until 15.0 s at the latest",
        "  15.0 s  round 5 is folded",
        "  15.0 s  the timer fired: round 5 closed without worker-2",
    ]


def test_a_timer_line_may_name_the_missing_itself() -> None:
    assert after_opening({**rounds(5.0, 4, reason="timer"), "missing": [1, 3]}) == [
        "   5.0 s  rounds 1 to 4 are folded",
        "   5.0 s  the timer fired: round 4 closed without worker-1 and worker-3",
    ]


def test_what_a_policy_changes_about_itself() -> None:
    fields = {"horizon_ms": 80.0, "workers": [0, 1, 2], "steps": [4, 4, 1], "usage": 0.98}
    assert after_opening(line(5.0, "policy", reason="plan", fields=fields)) == [
        "   5.0 s  there is a barrier every 80 ms; steps of each worker between two barriers: 4 of"
        " worker-0 and worker-1; 1 of worker-2 (98% of the time computing)"
    ]


def test_the_end_says_who_gave_how_much() -> None:
    both = {"0": totals(4, 1.0, 1.0, 2.0), "1": totals(2, 3.0, 0.0, 1.0)}
    assert after_opening(rounds(5.0, 4, both), ended(7.0))[-1] == (
        "   7.0 s  contributions of each worker, and the share of its time spent computing: 4 of"
        " worker-0 (25%) and 2 of worker-1 (75%)"
    )


def test_a_short_wait_is_not_told() -> None:
    assert after_opening(waiting(6.0, 2.9, [2])) == []


def test_chunks_silence_refusals_and_the_end() -> None:
    assert after_opening(
        line(1.5, "listening", host="10.0.0.7", port=4040),
        line(
            2.0,
            "chunks",
            moved=1,
            points=50,
            reason="balance-finish",
            fields={"workers": [0], "targets": [3], "seconds": 9.0, "times": 4.0},
        ),
        line(3.0, "silent", server=1, silent_s=2.0),
        line(3.0, "refused", reason="refused", fields={"detail": "eve was refused: another job"}),
        line(3.5, "from-the-future", x=1),
        ended(4.0),
    ) == [
        "   1.5 s  others may join: polyrhythm worker --connect 10.0.0.7:4040",
        "   2.0 s  50 points (1 chunk) move from worker-0 to worker-3: worker-0 would finish 9.0 s after"
        " worker-3; a point takes it 4.0 times as long",
        "   3.0 s  server s1 has been silent for 2.0 s",
        "   3.0 s  eve was refused: another job",
        "   4.0 s  the job reached its goal: 9 rounds",
    ]


def test_a_job_that_is_not_in_the_index_is_joined_with_its_secret_file() -> None:
    at = {"host": "127.0.0.1", "port": 4040, "secret_file": "/runs/a/secret"}
    assert after_opening(line(1.5, "listening", **at)) == [
        "   1.5 s  others may join: polyrhythm worker --connect 127.0.0.1:4040 --secret-file"
        " /runs/a/secret",
    ]


def test_what_is_not_a_number() -> None:
    assert after_opening(reported(2.0, 1, None)) == ["   2.0 s  worker-1 reports accuracy nan"]


def test_a_failure() -> None:
    assert after_opening(ended(4.0, refused("server s1 died"), failed=True)) == [
        "   4.0 s  the job failed: server s1 died"
    ]


def test_the_story_of_one_worker() -> None:
    both = {"0": totals(4, 1.0, 1.0, 2.0), "1": totals(2, 3.0, 0.0, 1.0)}
    lines = [*opened(0, 1), rounds(5.0, 4, both), left(6.0, 1, "done"), ended(7.0)]
    assert list(tell(lines, worker=0)) == [
        "   0.2 s  worker-0 joined; 1 worker now",
        "   1.0 s  round 1 opened with 2 workers",
        "   5.0 s  worker-0 made 4 contributions of 40 points: computing 25%, waiting 25%,"
        " transferring 50%",
        "   7.0 s  the job reached its goal: 9 rounds",
    ]


def test_the_display_leaves_out_routine_news_of_many_workers() -> None:
    lines = [
        *opened(*range(30)),
        *(
            line(5.0, "left", worker=n, name=f"worker-{n}", reason="done", fields={})
            for n in range(30)
        ),
    ]
    display = Teller(routine=False)
    shown = [each for told in lines for each in display.take(told) if not each.routine]
    assert 8 < len([each for each in shown if "joined" in each.text]) <= 12
    assert not any("is done" in each.text for each in shown)
    assert sum("is done" in sentence for sentence in tell(lines)) == 30
