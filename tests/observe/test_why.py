"""`why`: what the job waits for, which workers wait, since when, until when, by which rule, and
what helps."""

from typing import Any

import pytest

from polyrhythm.observe.state import fold
from polyrhythm.observe.why import explain, in_sentences
from polyrhythm.wire.messages import JobSpec
from tests.observe.journals import joined, line, opened, rounds, totals, waiting


def test_a_round_that_waits_for_one() -> None:
    state = fold([*opened(0, 1), waiting(10.0, 2.0, [1], until_s=8.0)])
    said = in_sentences(explain(state, 10.5, JobSpec(job="x")))
    assert said[:5] == [
        "round 5 waits for worker-1",
        "missing: worker-1",
        "waiting: worker-0",
        "since: 2.5 s ago, at 8.0 s",
        "until: in 7.5 s at the latest, at 18.0 s",
    ]
    assert said[5].startswith("rule: bsp folds a round when every member")
    policies = [sentence for sentence in said[6:] if "--sync" in sentence]
    assert policies
    assert all("and compare the time to the same objective" in sentence for sentence in policies)
    assert not any("asp" in sentence for sentence in policies), "no policy for its speed alone"


def test_without_a_timer() -> None:
    state = fold([*opened(0, 1), waiting(10.0, 2.0, [1])])
    said = in_sentences(explain(state, job=JobSpec(job="x")))
    assert "until: it arrives; no timer limits this wait" in said
    assert "you can: next time set a timer: --timer 30s" in said


@pytest.mark.parametrize(
    ("fields", "tries"),
    [
        ({}, "try --sync fsp, --sync psp --kind local or --sync ssp:4"),
        ({"kind": "statistics"}, "try --sync fsp"),
        ({"sync": "fsp", "kind": "statistics"}, "try smaller batches"),
        ({"sync": "fsp", "data_private": True}, "try --sync ssp:4"),
        ({"sync": "psp", "kind": "local"}, "try --sync ssp:4"),
        ({"deterministic": True, "timer": "off"}, "try the job without this worker"),
    ],
)
def test_a_round_gets_only_advice_that_its_job_accepts(fields: dict[str, Any], tries: str) -> None:
    state = fold([*opened(0, 1), waiting(10.0, 2.0, [1])])
    remedies = explain(state, job=JobSpec(job="x", **fields)).remedies
    compare = "and compare the time to the same objective"
    assert f"let the others wait less: {tries}, {compare}" in remedies
    assert any("--timer" in remedy for remedy in remedies) == ("timer" not in fields)


@pytest.mark.parametrize("sync", ["ssp:2", "ssp-restart:2"])
def test_under_a_bound_the_advice_names_the_policy_of_the_job(sync: str) -> None:
    name = sync.partition(":")[0]
    code = {"ssp": "stale", "ssp-restart": "restarting"}[name]
    fields = {"held": [0], "missing": [1], "ahead": 3, "bound": 2, "clock": 7}
    note = line(5.0, "waiting", reason=code, fields=fields, since_s=2.0, until_s=None)
    (remedy,) = explain(fold([*opened(0, 1), note]), job=JobSpec(job="x", sync=sync)).remedies
    assert f": try a larger bound in --sync {name}:N or --sync fsp," in remedy


def test_a_full_window_gets_only_advice_that_its_job_accepts() -> None:
    note = line(5.0, "waiting", reason="window", fields={}, since_s=2.0, until_s=None)
    state = fold([*opened(0, 1), note])
    for kind, tries in (("gradient", "--kind local --local-steps 8"), ("local", "--local-steps 2")):
        remedies = explain(state, job=JobSpec(job="x", sync="asp", kind=kind)).remedies
        assert remedies == (f"the servers are too slow: use more --servers or {tries}",)


def test_an_unknown_reason_is_shown_with_its_code_and_fields() -> None:
    note = line(3.0, "waiting", reason="new", fields={"steps": 3}, since_s=2.0, until_s=None)
    explanation = explain(fold([*opened(0), note]))
    assert (explanation.what, explanation.rule) == ("new steps=3", None)


def test_nothing_is_waited_for() -> None:
    state = fold([*opened(0, 1), rounds(3.0, 7)])
    assert explain(state, 3.5).what == "waiting for nothing: round 7, 2 workers at work"
    assert explain(fold([]), 0.0).what == "round 1 has not opened yet; 0 workers joined so far"


def test_a_count_of_rounds_that_is_not_recent_says_how_old_it_is() -> None:
    state = fold([*opened(0, 1), rounds(3.0, 7)])
    assert explain(state, 5.5).what == (
        "waiting for nothing: round 7 (2.5 s ago), 2 workers at work"
    )


def test_a_worker_that_has_joined_is_at_work_when_it_has_contributed() -> None:
    """Its contributions before a rejoin do not count."""
    both = {"0": totals(5), "1": totals(5)}
    lines = [*opened(0, 1), rounds(2.0, 5, both), joined(2.1, 2)]
    assert explain(fold(lines), 2.2).what == (
        "waiting for nothing: round 5, 2 workers at work; worker-2 has joined, and has not"
        " contributed yet"
    )
    lines.append(rounds(3.0, 6, {"0": totals(6), "1": totals(6), "2": totals(1)}))
    assert explain(fold(lines), 3.1).what.endswith("round 6, 3 workers at work")
    again = line(3.2, "rejoined", worker=1, name="worker-1", incarnation=9)
    assert explain(fold([*lines, again]), 3.3).what.endswith(
        "round 6, 2 workers at work; worker-1 has joined, and has not contributed yet"
    )


def test_a_journal_that_fell_silent_is_not_called_well() -> None:
    state = fold([*opened(0, 1), rounds(3.0, 7)])
    assert (
        explain(state, 9.0).what
        == "no contribution has arrived for 6.0 s after round 7; 2 workers in the job"
    )


def test_a_stale_worker_is_held_and_the_slowest_is_missing() -> None:
    fields = {"held": [0, 2], "missing": [1], "ahead": 3, "bound": 2, "clock": 7}
    note = line(5.0, "waiting", reason="stale", fields=fields, since_s=2.0, until_s=None)
    explanation = explain(fold([*opened(0, 1, 2, 3), note]))
    ahead = "worker-0 and worker-2 are up to 3 steps ahead of worker-1 (limit 2)"
    assert explanation.what == ahead
    assert explanation.missing == ("worker-1",)
    assert explanation.held == ("worker-0", "worker-2")
    assert explanation.rule is not None and explanation.rule.startswith("ssp lets a worker begin")


# -- the last rounds -----------------------------------------------------------------------------


def rounds_with_a_straggler(at_s: float, steps: int) -> dict[str, Any]:
    """Two workers. The first one waits for 46% of its time, and the second one for 2%."""
    spent = {"0": (0.5, 0.46, 0.04), "1": (0.94, 0.02, 0.04)}
    each = {w: totals(steps, *(share * at_s for share in shares)) for w, shares in spent.items()}
    return rounds(at_s, steps, each)


@pytest.mark.parametrize("moment_s", [0.0, 0.9, 30.0])
def test_a_straggler_of_the_last_rounds_is_named_at_any_moment(moment_s: float) -> None:
    lines = [*opened(0, 1), *(rounds_with_a_straggler(2.0 + n, 10 * n) for n in range(20))]
    said = in_sentences(explain(fold(lines), 21.0 + moment_s, JobSpec(job="x", sync="bsp")))
    assert "lately: in the last 10.0 s the others waited 44% of the time for worker-1" in said
    assert any("you can: try --sync fsp" in sentence for sentence in said), said


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_slow_worker_is_named_under_every_policy(sync: str) -> None:
    """Each point takes worker-1 nearly twice as long."""
    lines = [*opened(0, 1), *(rounds_with_a_straggler(2.0 + n, 10 * n) for n in range(20))]
    said = in_sentences(explain(fold(lines), 21.0, JobSpec(job="x", sync=sync)))
    assert "slow: worker-1 is 1.9x slower than the others" in said


def test_no_straggler_is_named_under_a_policy_without_waiting() -> None:
    lines = [*opened(0, 1), *(rounds_with_a_straggler(2.0 + n, 10 * n) for n in range(20))]
    what = explain(fold(lines), 21.0, JobSpec(job="x", sync="bsp")).what
    assert what == "worker-1 slows the others down: round 190, 2 workers at work"
    said = in_sentences(explain(fold(lines), 21.0, JobSpec(job="x", sync="asp")))
    assert not any(sentence.startswith("lately: ") for sentence in said)


def test_a_straggler_that_has_become_fast_is_not_named_any_more() -> None:
    slow = [rounds_with_a_straggler(2.0 + n, 10 * n) for n in range(20)]
    times = slow[-1]["workers"]
    fast = [
        rounds(
            22.0 + n,
            200 + 10 * n,
            {
                worker: totals(
                    200 + 10 * n,
                    times[worker]["compute_ns"] / 1e9 + 0.9 * n,
                    times[worker]["wait_ns"] / 1e9 + 0.05 * n,
                    times[worker]["transfer_ns"] / 1e9 + 0.05 * n,
                )
                for worker in ("0", "1")
            },
        )
        for n in range(1, 15)
    ]
    state = fold([*opened(0, 1), *slow, *fast])
    assert explain(state, 36.0, JobSpec(job="x", sync="bsp")).lately is None


def test_a_worker_that_was_evicted_is_named_while_the_others_go_on() -> None:
    gone = line(5.0, "evicted", worker=1, name="worker-1", silent_s=3.0, limit_s=2.0)
    said = in_sentences(explain(fold([*opened(0, 1), rounds(2.0, 1), gone]), now_s=9.0))
    assert (
        "evicted: worker-1, 4.0 s ago, at 5.0 s, because it was silent for 3.0 s; the others visit its"
        " data, and it rejoins by itself when it wakes up"
    ) in said
    back = line(8.0, "rejoined", worker=1, name="worker-1", incarnation=7)
    again = explain(fold([*opened(0, 1), rounds(2.0, 1), gone, back]), now_s=9.0)
    assert again.evicted == ()


def test_a_worker_that_died_is_named_while_the_others_go_on() -> None:
    way = line(0.0, "listening", host="127.0.0.1", port=7000)
    died = line(5.0, "left", worker=1, name="worker-1", reason="link-ended", fields={"detail": "x"})
    done = line(6.0, "left", worker=2, name="worker-2", reason="done", fields={})
    lines = [way, *opened(0, 1, 2), rounds(2.0, 1), died, done, rounds(6.5, 2)]
    said = in_sentences(explain(fold(lines), now_s=7.0))
    assert said == [
        "waiting for nothing: round 2, 1 worker at work",
        "gone: worker-1 (died at 5.0 s): its link ended",
        "you can: start another worker in its place: polyrhythm worker --connect 127.0.0.1:7000",
    ]


def test_no_worker_is_to_be_started_when_all_have_joined() -> None:
    lines = [joined(0.2, 0), joined(0.3, 1)]
    note = line(2.0, "waiting", reason="gathering", fields={"absent": 2}, since_s=1.5, until_s=58.0)
    for workers, remedy in ((2, "wait: the workers import their code"), (3, "start the missing")):
        found = explain(fold([*lines, note]), 2.0, JobSpec(job="x", workers=workers))
        assert found.remedies[0].startswith(remedy)


def test_when_every_worker_is_evicted_the_silent_ones_are_named() -> None:
    evicted = [
        line(at_s, "evicted", worker=worker, name=f"worker-{worker}", silent_s=silent_s, limit_s=2)
        for worker, at_s, silent_s in ((0, 10.0, 4.0), (1, 12.0, 3.0))
    ]
    said = in_sentences(explain(fold([*opened(0, 1), *evicted]), 20.0))
    assert said[0] == (
        "every worker is silent and was evicted: worker-0 (for 14.0 s) and worker-1 (for 11.0 s)"
    )
    assert said[1:4] == [
        "missing: worker-0 and worker-1",
        "since: 14.0 s ago, at 6.0 s",
        "until: they arrive; no timer limits this wait",
    ]
    assert "rejoins by itself" in said[4]
    assert any("polyrhythm stop" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("local", "remedy"),
    [
        (3, "wait: the command of the job is starting them"),
        (2, "start the missing servers: polyrhythm server --connect 127.0.0.1:7000"),
        (None, "start the missing servers: polyrhythm server --connect 127.0.0.1:7000"),
    ],
)
def test_only_servers_that_no_command_starts_are_to_be_started(
    local: int | None, remedy: str
) -> None:
    """A journal of an earlier release does not say how many servers the command starts."""
    fields = {} if local is None else {"local_servers": local}
    lines = [
        line(0.1, "listening", host="127.0.0.1", port=7000, **fields),
        line(0.2, "server-joined", server=0),
        line(0.2, "server-joined", server=1),
    ]
    found = explain(fold(lines), 1.0, JobSpec(job="x", servers=3, served=True))
    assert found.what == "waiting for s2: 2 of 3 servers have joined"
    assert found.remedies == (remedy,)


def test_what_has_happened_to_the_cluster_is_shown_until_the_processes_are_back() -> None:
    died = line(4.0, "actor-died", name="worker-0", detail="it was killed (node 10.0.0.2)")
    lost = line(5.0, "node-lost", node="10.0.0.3", on_it="worker-1, s1", detail="")
    lines = [*opened(0, 1), died, lost]
    assert explain(fold(lines)).cluster == (
        "worker-0 died: it was killed (node 10.0.0.2)",
        "node 10.0.0.3 died; on it: worker-1, s1",
    )
    lines += [joined(6.0, 0, 7), joined(6.0, 1, 8)]
    said = in_sentences(explain(fold(lines)))
    assert "cluster: node 10.0.0.3 died; on it: worker-1, s1" in said, "s1 is not back"
    lines.append(line(7.0, "server-joined", server=1))
    assert explain(fold(lines)).cluster == ()


def test_a_node_that_is_taken_away_is_shown() -> None:
    drains = line(5.0, "node-drains", node="10.0.0.3", on_it="worker-1")
    (shown,) = explain(fold([*opened(0, 1), drains])).cluster
    assert shown == "node 10.0.0.3 will be removed soon; leaving: worker-1"
