"""The stories of simulated runs, compared with stored stories.

Each scenario in `tests/golden` has its story beside it. POLYRHYTHM_UPDATE_GOLDEN=1 writes all
stories anew. Review what changed before you keep it.
"""

import os
from pathlib import Path

import pytest

from polyrhythm.observe.story import tell
from tests.sim.staged_run import Run

GOLDEN = Path(__file__).parents[1] / "golden"
SCENARIOS = sorted(GOLDEN.glob("*.toml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_story_is_told_as_before(path: Path) -> None:
    told = "\n".join([*tell(Run(path.read_text()).journal.lines), ""])
    story = path.with_suffix(".txt")
    if os.environ.get("POLYRHYTHM_UPDATE_GOLDEN"):
        story.write_text(told)
    assert told == story.read_text()


def test_there_are_stories() -> None:
    assert len(SCENARIOS) >= 12
    assert {path.stem for path in SCENARIOS} == {path.stem for path in GOLDEN.glob("*.txt")}
