"""How long properties search, and where data sets are.

POLYRHYTHM_TORTURE multiplies the number of examples. They are other ones each time then, chosen by a
seed; what fails is listed at the end with the command that shows it again.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))

settings.register_profile(
    "polyrhythm",
    max_examples=60 * TORTURE,
    deadline=None,
    database=None,
    print_blob=True,
    derandomize=TORTURE == 1,
)
settings.load_profile("polyrhythm")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    seed = config.getoption("--hypothesis-seed")
    failed = terminalreporter.stats.get("failed", [])
    if TORTURE == 1 or seed is None or not failed:
        return
    terminalreporter.section("to see it again")
    for report in failed:
        terminalreporter.write_line(
            f"POLYRHYTHM_TORTURE={TORTURE} python -m pytest '{report.nodeid}'"
            f" -n 0 --hypothesis-seed {seed}"
        )


@pytest.fixture(scope="session", autouse=True)
def own_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs of tests are not in the index of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("POLYRHYTHM_SECRET", raising=False)
        yield


REAL_DATA = Path(os.environ.get("POLYRHYTHM_DATA") or Path(__file__).parents[2] / "shared" / "data")


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the places where data sets are looked for is this machine's own."""
    monkeypatch.delenv("POLYRHYTHM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("polyrhythm.learn.data.places.DEBIAN", tmp_path / "debian")


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real data sets, for this process and those it starts; without them the test is skipped."""
    if not (REAL_DATA / "mnist").is_dir():
        pytest.skip(f"no data sets in {REAL_DATA}")
    monkeypatch.setenv("POLYRHYTHM_DATA", str(REAL_DATA))
    return REAL_DATA
