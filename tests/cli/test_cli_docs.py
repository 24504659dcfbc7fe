"""`docs/cli.md` contains the current help texts of all commands."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_commands_is_up_to_date() -> None:
    """The help texts depend on the versions in constraints.txt. Run `make docs` after you change a
    flag."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli_docs", "--check"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "40", "POLYRHYTHM_WORKERS": "9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
