"""A job that ends by its passes ends with all contributions that have visited the points of its passes.

A contribution may become complete after a fold was ordered, but before that fold is over. Then it
is in the next fold, and the job may not end before that next fold is over.
"""

import pytest

from polyrhythm.sim.checker import Checker
from polyrhythm.sim.server.rows_store import SimRowsSliceStore
from tests.sim.staged_run import Run

POINTS = 120
JOB = f"""
    [job]
    sync = "fsp"
    kind = "KIND"
    epochs = 1
    points = {POINTS}
    batch = 5
    timer = "30ms"
    servers = 2
    model = "20kB"
    slice = "5kB"
    [link]
    delay = "5ms"
    [[workers]]
    count = 2
    step = "10ms"
    [[workers]]
    step = "STEPms"
"""
"""The last of the workers is so slow that most rounds are folded without it. A fold takes about 10
ms."""


def job(kind: str, step_ms: int) -> str:
    return JOB.replace("KIND", kind).replace("STEP", str(step_ms))


@pytest.mark.parametrize("step_ms", range(48, 60))
def test_the_last_contribution_is_in_the_model(step_ms: int) -> None:
    run = Run(job("gradient", step_ms))
    assert run.end.reason.fields["goal"] == "passes"
    assert run.weight() == POINTS


@pytest.mark.parametrize("step_ms", range(18, 26))
def test_the_last_parameters_are_computed_from_all_points(
    step_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: dict[int, set[int]] = {}
    folded = Checker.on_folded

    def watch(checker: Checker, server: int, round_: int) -> None:
        folded(checker, server, round_)
        store = checker.memories[server]
        assert isinstance(store, SimRowsSliceStore)
        for rows in store.rows.values():
            versions[round_] = {point for row in rows.rows.values() for point in row.memory}

    monkeypatch.setattr(Checker, "on_folded", watch)
    run = Run(job("statistics", step_ms))
    assert run.end.reason.fields["goal"] == "passes"
    *_, based_on, _ = sorted(versions)
    assert versions[based_on] == set(range(POINTS))
