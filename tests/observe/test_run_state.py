"""How journal lines are combined into the state of a run."""

from pathlib import Path

import pytest

from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.state import fold
from polyrhythm.observe.workers import table, worker_rows
from polyrhythm.wire.messages.reasons import Reason, refused
from tests.observe.journals import ended, joined, left, line, opened, rounds, totals, waiting

SILENT = Reason("silent-for", {"silent_s": 6.0})
ENDED = Reason("link-ended", {"detail": "w1 closed the link"})


def test_a_run_that_has_opened() -> None:
    state = fold(opened(0, 1))
    assert [worker.name for worker in state.present] == ["worker-0", "worker-1"]
    assert (state.opened_s, state.at_s, state.round, state.seconds) == (1.0, 1.0, 0, 0.0)
    assert (state.nbytes, state.slices, state.links["w1"]) == (4_000, {0: 2}, "local")


def test_speeds_are_those_of_the_last_seconds() -> None:
    """The worker is slow for 100 s, and then makes 5 contributions per second for 10 s."""
    lines = opened(0)
    lines += [rounds(1.0 + s, s, {"0": totals(s)}) for s in range(1, 101)]
    lines += [rounds(101.0 + s, 100 + 5 * s, {"0": totals(100 + 5 * s)}) for s in range(1, 11)]
    worker = fold(lines).workers[0]
    assert worker.totals.contributions == 150
    assert worker.contributions_per_s == pytest.approx(5.0)
    assert worker.points_per_s == pytest.approx(50.0)


def test_the_objective_is_that_of_the_last_pass_if_a_line_covers_several() -> None:
    passes = [line(1.0 + n / 10, "passed", passes=n, objective=4.0 / n) for n in (1, 2, 4)]
    lines = [*opened(0), *passes, rounds(2.0, 40, {"0": totals(40)}, objective=2.3)]
    assert fold(lines).objective == 1.0
    lines.append(rounds(3.0, 44, {"0": totals(44)}, objective=0.9))
    assert fold(lines).objective == 0.9


def test_the_speed_of_one_who_came_late_counts_from_its_coming() -> None:
    lines = [*opened(0), joined(5.0, 1), rounds(7.0, 9, {"0": totals(6), "1": totals(4)})]
    state = fold(lines)
    assert state.workers[0].contributions_per_s == pytest.approx(1.0)
    assert state.workers[1].contributions_per_s == pytest.approx(2.0)


def test_shares_of_time_and_clocks() -> None:
    state = fold([*opened(0), rounds(3.0, 2, {"0": totals(2, 1.0, 0.6, 0.4, clock=7)})])
    assert state.workers[0].totals.shares == pytest.approx((0.5, 0.3, 0.2))
    assert state.workers[0].clock == 7


def test_totals_of_the_run_add_up_over_lines() -> None:
    first = rounds(2.0, 3, contributions=6, points=60, objective=0.9, passes=0)
    second = rounds(3.0, 5, contributions=4, points=40, objective=None, passes=1)
    state = fold([*opened(0, 1), first, second])
    assert (state.contributions, state.points, state.passes) == (10, 100, 1)
    assert state.objective == 0.9, "the last that was measured"
    assert state.pulls == 12, "one a contribution and one for each who came in"
    assert state.seconds == 2.0


def test_who_left_and_why_and_who_came_back() -> None:
    lines = [*opened(0, 1), left(4.0, 1, "link-ended", detail="w1 closed the link")]
    gone = fold(lines).workers[1]
    assert (gone.present, gone.left_s, gone.left) == (False, 4.0, ENDED)
    assert fold(lines).members == 1
    back = fold([*lines, line(6.0, "rejoined", worker=1, name="worker-1", incarnation=9)])
    assert back.workers[1].present and back.workers[1].incarnation == 9
    assert (back.workers[1].joins, back.members) == (2, 2)


def test_coming_back_told_twice_counts_once() -> None:
    again = line(6.0, "rejoined", worker=1, name="worker-1", incarnation=9)
    state = fold([*opened(0, 1), left(4.0, 1, "gone"), joined(6.0, 1, incarnation=9), again])
    assert state.workers[1].joins == 2


def test_an_eviction_is_a_reason_to_be_gone() -> None:
    fields = {"silent_s": 6.0, "limit_s": 5.0}
    lines = [*opened(0, 1), line(9.0, "evicted", worker=1, name="worker-1", **fields)]
    assert fold([*lines, left(9.0, 1, "evicted")]).workers[1].left == SILENT


def test_what_is_waited_for_in_moments_of_the_journal() -> None:
    state = fold([*opened(0, 1), waiting(10.0, 2.0, [1], until_s=3.0)])
    assert state.waiting is not None
    assert (state.waiting.since_s, state.waiting.until_s) == (8.0, 13.0)
    assert state.waiting.missing == (1,)


@pytest.mark.parametrize(
    ("after", "waits"),
    [
        (rounds(11.0, 4), True),
        (rounds(11.0, 5), False),
        (left(11.0, 1, "gone"), False),
        (left(11.0, 0, "gone"), True),
        (line(12.4, "unheard-of"), True),
        (line(12.6, "unheard-of"), False),
        (ended(11.0), False),
    ],
)
def test_a_wait_is_over(after: dict[str, object], waits: bool) -> None:
    """A wait ends when its round is folded, when the job ends, when the missing worker leaves, or
    when no line has repeated it for 2.5 s."""
    state = fold([*opened(0, 1), rounds(2.0, 4), waiting(10.0, 2.0, [1]), after])
    assert (state.waiting is not None) == waits


def test_waiting_is_booked_on_the_missing_once() -> None:
    notes = [waiting(5.0 + s, 1.0 + s, [1]) for s in range(3)]
    state = fold([*opened(0, 1), *notes, rounds(7.5, 5)])
    assert state.workers[1].waited_for_s == pytest.approx(2.5), "from the first word, 5.0, to 7.5"
    assert state.workers[0].waited_for_s == 0.0


def test_accuracy_is_the_mean_of_the_last_reports() -> None:
    def reported(at_s: float, worker: int, accuracy: float) -> dict[str, object]:
        metrics = {"accuracy": accuracy}
        return line(at_s, "reported", worker=worker, name=f"worker-{worker}", metrics=metrics)

    state = fold(
        [*opened(0, 1), reported(2.0, 0, 0.4), reported(3.0, 1, 0.8), reported(4.0, 0, 0.6)]
    )
    assert state.accuracy == pytest.approx(0.7)


def test_what_is_not_a_number_is_no_accuracy() -> None:
    """A journal has null in place of NaN."""
    lines = opened(0)
    for accuracy in (None, float("nan")):
        metrics = {"accuracy": accuracy}
        lines.append(line(2.0, "reported", worker=0, name="worker-0", metrics=metrics))
    assert fold(lines).accuracy is None


def test_chunks_silence_refusals_and_the_end() -> None:
    state = fold(
        [
            *opened(0, 1),
            line(2.0, "chunks", moved=3, points=60),
            line(2.0, "chunks", moved=2, points=40),
            line(3.0, "silent", server=0),
            line(3.0, "refused", reason="refused", fields={"detail": "x was refused"}),
            ended(4.0, failed=True),
        ]
    )
    assert (state.moved_chunks, state.moved_points) == (5, 100)
    assert state.silent == {0: 3.0}
    assert state.refused == [refused("x was refused")]
    assert state.ended is not None and state.ended.failed
    assert (state.round, state.folds) == (9, {0: 9})


def test_unknown_lines_change_nothing_but_the_time() -> None:
    before = fold(opened(0))
    after = fold([*opened(0), line(2.0, "from-the-future", worker={"a": 1}), {"at_s": 3.0}])
    assert after.at_s == 3.0
    after.at_s = before.at_s
    assert after == before


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"at_s":1.0,"what":"joined","worker":0,"name":"a"}\n{"at_s":2.0,"wh')
    assert fold(read_journal(path)).at_s == 1.0


def test_no_worker_is_waited_for_if_all_are_missing() -> None:
    """All workers are in the middle of a long step, so no worker waits for another."""
    lines = [waiting(5.0, 4.0, [0, 1]), waiting(6.0, 5.0, [0, 1]), waiting(7.0, 6.0, [1])]
    state = fold([*opened(0, 1), *lines, waiting(8.0, 7.0, [1])])
    assert state.workers[0].waited_for_s == 0.0
    assert state.workers[1].waited_for_s == pytest.approx(1.0), "since worker-0 was there"


def test_the_processes_of_a_run_are_known_with_their_hosts() -> None:
    lines = [
        line(0.1, "server-joined", server=0, pid=11, host="north"),
        line(0.2, "joined", worker=0, name="worker-0", epoch=1, pid=12, host="north"),
        line(0.3, "joined", worker=1, name="guest", epoch=2, pid=13, host="south"),
        line(9.0, "rejoined", worker=1, name="guest", epoch=3, pid=14, host="south"),
    ]
    found = fold(lines).processes
    assert found == {"s0": (11, "north"), "worker-0": (12, "north"), "guest": (14, "south")}


def test_the_remark_about_targets_names_what_is_still_missing() -> None:
    remark = line(
        2.0,
        "unreported",
        reason="target-unreported",
        fields={"target": "f1, val_loss", "names": "accuracy"},
    )
    lines = [*opened(0, 1), remark]

    def missing() -> object:
        found = fold(lines).metrics.unreported
        return None if found is None else found.fields["target"]

    assert missing() == "f1, val_loss"
    lines.append(line(3.0, "reported", worker=0, name="worker-0", metrics={"f1": 0.5}))
    assert missing() == "val_loss"
    lines.append(line(4.0, "reported", worker=1, name="worker-1", metrics={"val_loss": 0.5}))
    assert missing() is None


def test_a_worker_has_the_device_of_its_last_join() -> None:
    lines = opened(0, 1)
    for line_ in lines:
        if line_["what"] == "joined":
            line_["device"] = f"cuda:{line_['worker']}"
    state = fold(lines)
    assert [worker.device for worker in state.workers.values()] == ["cuda:0", "cuda:1"]
    back = {"at_s": 3.0, "what": "rejoined", "worker": 1, "name": "worker-1", "epoch": 9}
    state.take({**back, "device": "cpu"})
    assert state.workers[1].device == "cpu"
    state.take({**back, "epoch": 10})
    assert state.workers[1].device == "cpu", "an older journal has no devices"


@pytest.mark.parametrize(
    ("devices", "shown"), [(("cuda:0", "cpu"), True), (("cpu", "cpu"), False), (("", ""), False)]
)
def test_the_table_has_a_column_of_devices_if_some_worker_has_a_gpu(
    devices: tuple[str, str], shown: bool
) -> None:
    state = fold([*opened(0, 1), rounds(9.0, 9, {"0": totals(5, 1.0), "1": totals(5, 1.0)})])
    for worker, device in zip(state.workers.values(), devices, strict=True):
        worker.device = device
    titles, first, _ = (text for text, _ in table(worker_rows(state), 100))
    assert ("device" in titles) is shown and (devices[0] in first.split()) is shown


def test_a_server_is_silent_until_it_is_heard_again() -> None:
    lines = [*opened(0), line(3.0, "server-silent", server=1, silent_s=2.0)]
    assert fold(lines).silent == {1: 3.0}
    assert not fold([*lines, line(4.0, "server-heard", server=1)]).silent
