"""`docs/cli.md` and `docs/reference/options.md` contain the current texts of commands and options."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyrhythm.api.options import flag_of, options_of
from polyrhythm.api.training import train
from polyrhythm.cli.resume import resume

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("tool", ["cli_docs", "option_docs"])
def test_a_page_that_is_made_from_the_program_is_up_to_date(tool: str) -> None:
    """The help texts depend on the versions in constraints.txt. Run `make docs` after you change a
    flag."""
    done = subprocess.run(
        [sys.executable, "-m", f"tools.{tool}", "--check"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "40", "POLYRHYTHM_WORKERS": "9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


OF_ONE_RUN = {"name", "runs_dir", "store", "trace", "check", "quiet", "debug"}
"""Options that concern one run of the command."""


def test_the_help_of_resume_names_the_settings_that_no_checkpoint_has() -> None:
    """Every option of `resume` that `train` has too, and that is no setting of the job."""
    shared = (
        inspect.signature(resume).parameters.keys() & inspect.signature(train).parameters.keys()
    )
    settings = {name for name, option in options_of(train).items() if option.field}
    others = {name for name in shared - settings - OF_ONE_RUN if not name.startswith("local_")}
    assert {"digest", "host", "devices"} <= others
    text = inspect.getdoc(resume) or ""
    assert {name for name in others if flag_of(name) not in text} == set()
