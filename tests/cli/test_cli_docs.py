"""`docs/cli.md` says what the program says."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_commands_is_up_to_date() -> None:
    """Made with the versions of constraints.txt; run `make docs` after changing a flag."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli_docs", "--check"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "40", "POLYRHYTHM_WORKERS": "9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
