"""The command can be started as `python -m polyrhythm`."""

import subprocess
import sys


def test_the_package_can_be_run_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "polyrhythm", "train", "--threads", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "polyrhythm: --threads is 0: it must be at least 1\n"
