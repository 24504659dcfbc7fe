"""Runs `python SCRIPT ARGUMENTS` in a process that the warm server forks, for a program that starts
Python itself, such as torchrun or Jupyter.

    python tests/commands/forked_python.py SCRIPT ARGUMENTS

This process has not imported torch. It waits for the forked process, and ends with the exit status
of that process. If it is killed, the warm server kills the forked process.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = "POLYRHYTHM_TEST_RUN"
"""The environment variable that names the warm server of a test run."""


def command() -> list[str]:
    """The first words of a command line that runs a script in a forked process."""
    return [sys.executable, str(Path(__file__))]


def main() -> int:
    given = dict(os.environ)
    # torchrun sets these variables. With them, this process would not find the warm server of the
    # test run, and would start another one.
    for name in ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        os.environ.pop(name, None)
    sys.path[0] = str(ROOT)
    from tests.commands.start import start_script

    script, *arguments = sys.argv[1:]
    process = start_script(Path(script), *arguments, cwd=Path.cwd(), env=given)
    status = process.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
