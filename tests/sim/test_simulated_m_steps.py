"""Kind statistics: the lead knows how many points each version lacks, and no M-step is made while points
are missing, whatever happens to workers."""

from typing import Any

import pytest

from polyrhythm.core.lead.rounds.modes import MANY_MISSING, MStepHold, SummedPoints
from polyrhythm.core.machine import Reason
from polyrhythm.sim.checker import Checker
from polyrhythm.sim.server.rows_store import SimRowsSliceStore
from polyrhythm.wire.messages import Release
from tests.sim.staged_run import Run
from tests.sim.test_simulated_statistics import SYNCS, text_of


class Watched:
    """What a run has done with its versions."""

    def __init__(self) -> None:
        self.counted: list[SummedPoints] = []
        """For each version, what the lead knows about its sum."""
        self.present: dict[int, int] = {}
        """For each version, how many points are in its sum."""
        self.whole_only: dict[int, set[bool]] = {}
        """For each version, what the releases of workers say."""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()
    decide, folded, released = MStepHold.decide, Checker.on_folded, Checker.on_released

    def watch_decision(hold: MStepHold, summed: SummedPoints) -> Reason | None:
        found.counted.append(summed)
        return decide(hold, summed)

    def watch_fold(checker: Checker, server: int, round_: int) -> None:
        folded(checker, server, round_)
        store = checker.memories[server]
        assert isinstance(store, SimRowsSliceStore)
        for rows in store.rows.values():
            found.present[round_] = sum(len(row.memory) for row in rows.rows.values())

    def watch_release(checker: Checker, release: Release) -> None:
        released(checker, release)
        found.whole_only.setdefault(release.round, set()).add(release.whole_only)

    monkeypatch.setattr(MStepHold, "decide", watch_decision)
    monkeypatch.setattr(Checker, "on_folded", watch_fold)
    monkeypatch.setattr(Checker, "on_released", watch_release)
    return found


def only_workers_fail(seed: int) -> bool:
    """Whether servers stay, and no points travel, in the scenario of this seed without migration."""
    return seed // len(SYNCS) % 2 == 0 and seed % 3 != 2


@pytest.mark.parametrize("seed", [seed for seed in range(80) if only_workers_fail(seed)])
def test_the_lead_knows_how_many_points_a_version_lacks(seed: int, watched: Watched) -> None:
    Run(text_of(seed).replace("[job]\n", '[job]\nmigrate = "off"\n', 1), seed=seed)
    assert watched.present
    for version, present in watched.present.items():
        summed = watched.counted[version]
        assert summed.points - summed.missing == present, f"version {version}"


DYING = """
    [job]
    sync = "SYNC"
    kind = "statistics"
    epochs = 6
    points = 600
    batch = 10
    interval = "50ms"
    servers = 2
    model = "20kB"
    slice = "5kB"
    [link]
    delay = "1ms"
    [[workers]]
    count = 4
    step = "10ms"
"""
CRASH = '[[events]]\nat = "{}ms"\nwhat = "crash"\nworker = "worker-1"\n'


def lines(run: Run) -> list[tuple[str, dict[str, Any]]]:
    return [(line["reason"], line["fields"]) for line in run.lines("m-steps")]


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("at_ms", [400, 430, 470])
def test_m_steps_are_held_from_a_death_until_the_points_are_back(
    at_ms: int, sync: str, watched: Watched
) -> None:
    run = Run(DYING.replace("SYNC", sync) + CRASH.format(at_ms))
    (began, gone), (ended, back) = lines(run)
    assert began == "m-steps-held" and gone["points"] == 600
    assert gone["absent"] == pytest.approx(150, abs=5), "a quarter, in chunks of 9 or 10 points"
    assert ended == "m-steps-resumed"
    assert back["absent"] == 0
    first = min(version for version, present in watched.present.items() if present == 600)
    held = [at for at, present in watched.present.items() if at > first and present < 600]
    assert held == list(range(held[0], held[0] + back["versions"])), "all versions in between"
    assert all(watched.whole_only[version] == {True} for version in held), "all workers do the same"
    assert all(watched.whole_only[version] == {False} for version in range(1, first))


def test_m_steps_are_held_when_a_worker_joins_and_takes_many_chunks() -> None:
    run = Run(DYING.replace("SYNC", "bsp") + '[[workers]]\nstep = "10ms"\njoin = "430ms"\n')
    assert [code for code, _ in lines(run)] == ["m-steps-held", "m-steps-resumed"]


def test_nothing_is_held_without_a_death(watched: Watched) -> None:
    run = Run(DYING.replace("SYNC", "fsp"))
    assert lines(run) == []
    first = min(version for version, present in watched.present.items() if present == 600)
    assert {at for at, present in watched.present.items() if present < 600} == {*range(1, first)}


def test_a_hold_ends_although_the_heirs_are_too_slow_for_the_missing_points() -> None:
    """Two of three workers are slow, so that the fast one makes two passes in the meantime."""
    slow = '[[workers]]\ncount = 2\nstep = "400ms"\n'
    text = DYING.replace("SYNC", "fsp").replace("epochs = 6", "rounds = 400")
    text = text.replace("batch = 10", 'batch = 10\nmigrate = "off"').replace(
        "count = 4", "count = 2"
    )
    run = Run(text + slow + CRASH.format(12_000))
    assert [code for code, _ in lines(run)][:2] == ["m-steps-held", "m-steps-without"]
    (fields,) = [fields for code, fields in lines(run) if code == "m-steps-without"]
    assert fields["absent"] > MANY_MISSING * 600 and fields["passes"] == 2
