"""No acknowledged contribution is lost and none is folded twice, whatever happens to workers.

The tests try 8 seeds for each policy, and with POLYRHYTHM_TORTURE=N they try 30 * N seeds.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.core.lead.rounds.contributions import Complete, Contributions
from polyrhythm.core.server.leases import SliceVersions, Versions
from polyrhythm.core.server.slices import HeldSlices, Verdict
from polyrhythm.errors import InvariantBroken, JobFailed
from polyrhythm.wire.messages import Contribution
from tests.sim.ledger import keep_books

TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
SEARCHED = range(30 * TORTURE)
"""The seeds of tests that switch a rule off. At least one of these seeds must show the fault."""
SEEDS = SEARCHED if "POLYRHYTHM_TORTURE" in os.environ else range(8)
SYNCS = ["bsp", "ssp:2", "asp", "psp", "fsp", "fsp abandon 2ms"]


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_books_balance(sync: str, seed: int) -> None:
    try:
        run = keep_books(sync, seed)
    except (AssertionError, InvariantBroken) as error:
        again = f"tests/sim/{Path(__file__).name}::test_the_books_balance[{seed}-{sync}]"
        command = f"POLYRHYTHM_TORTURE={TORTURE} python -m pytest '{again}'"
        raise AssertionError(f"{error}; see it again with: {command}") from error
    assert not run.end.failed, run.end.reason


def failure(sync: str, *, check: bool = False) -> str:
    """Try seeds until one shows a fault; return its message. Without `check`, only the books can
    show the fault. If a fault keeps a run from ending, there are no books to check, and the next
    seed is tried."""
    for seed in SEARCHED:
        try:
            keep_books(sync, seed, check=check, limit="10s")
        except (AssertionError, InvariantBroken) as error:
            return str(error)
        except JobFailed:
            continue
    return "no seed shows it"


@pytest.mark.parametrize("sync", SYNCS)
def test_without_the_dedupe_rows_something_is_folded_twice(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = HeldSlices.judge

    def judge_without_rows(rules: HeldSlices[Any], message: Contribution) -> Verdict:
        verdict = judge(rules, message)
        return Verdict.NEW if verdict is Verdict.REPEATED else verdict

    monkeypatch.setattr(HeldSlices, "judge", judge_without_rows)
    assert "has more than was sent" in failure(sync)


@pytest.mark.parametrize("sync", SYNCS)
def test_a_fold_into_a_leased_version_is_seen_by_its_reader(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Versions, "leased", lambda *_: False)
    monkeypatch.setattr(SliceVersions, "target", lambda versions, slice_: versions.slot(slice_))
    assert "was reading" in failure(sync, check=True)


@pytest.mark.parametrize("sync", SYNCS)
def test_what_is_counted_when_it_is_sent_may_never_arrive(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Contributions, "on_trailer", lambda _, message, __: Complete(message, message.round)
    )
    monkeypatch.setattr(Contributions, "on_arrived", lambda *_: None)
    assert "lacks what was counted" in failure(sync)
