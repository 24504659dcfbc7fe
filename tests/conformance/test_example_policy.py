"""The example in `docs/architecture.md` is a complete policy: it works without any other change."""

import re
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.core.sync.policy import PolicyEntry
from polyrhythm.core.sync.registry import POLICIES, choose_policy, sync_help
from tests.conformance.test_policies import SEARCH, hunt, job_of
from tests.papers.simulated import Simulated

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> PolicyEntry:
    """The registry, with the policy from `docs/architecture.md` added."""
    section = PAGE.read_text().partition("## Adding a policy")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"__name__": "example_policy"}
    exec(compile(code[1], str(PAGE), "exec"), names)
    entry = names["PATIENT"]
    monkeypatch.setitem(POLICIES, entry.name, entry)
    return entry


def test_the_example_keeps_the_rules_of_all_policies(example: PolicyEntry) -> None:
    hunt(example, job_of({"sync": "patient:1", "timer": "5s"}), SEARCH)


def test_the_command_line_knows_the_example(example: PolicyEntry) -> None:
    assert "patient:S (bsp that waits S seconds after the first)" in sync_help()
    assert choose_policy(job_of({"sync": "patient:1"})).traits == example.traits


def test_a_simulated_job_with_the_example_waits_for_no_worker_beyond_its_patience(
    example: PolicyEntry,
) -> None:
    run = Simulated(
        """
        [job]
        sync = "patient:1"
        rounds = 20
        [[workers]]
        count = 2
        step = "100ms"
        [[workers]]
        count = 1
        step = "10s"
        """
    )
    assert not run.end.failed
    assert "patience-over" in {line["reason"] for line in run.noted("rounds")}
    assert run.took_ms < 20 * 2_000
