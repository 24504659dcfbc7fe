"""Tests of the lead also pass if the lead restores itself from its snapshot after every event.

`tests/sim/test_lead_snapshot.py` checks the same in simulated jobs. These have no metrics, no served
jobs, no failed writes and few resumes, so the tests of those parts are run once more here. With
POLYRHYTHM_TORTURE=N and N > 1 all tests of the lead are run.
"""

import os
import subprocess
import sys
from pathlib import Path

LEAD = Path(__file__).parent
TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
MORE = (
    "test_keep_best.py",
    "test_operators.py",
    "test_saving.py",
    "test_cuts.py",
    "test_keeping.py",
    "test_served.py",
    "data/test_private.py",
)


def test_a_restored_lead_passes_the_tests_of_the_lead() -> None:
    chosen = [LEAD / name for name in MORE]
    if TORTURE > 1:
        chosen = [path for path in LEAD.rglob("test_*.py") if path != Path(__file__)]
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.restored_lead"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, chosen)]
    found = subprocess.run(
        command, cwd=LEAD.parents[2], capture_output=True, text=True, timeout=900, check=False
    )
    assert found.returncode == 0, found.stdout[-5_000:]
