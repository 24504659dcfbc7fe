"""The command can be started as `python -m polyrhythm`."""

import subprocess
import sys

import pytest


def test_the_package_can_be_run_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "polyrhythm", "train", "--threads", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "polyrhythm: --threads is 0: it must be at least 1\n"


@pytest.mark.parametrize("command", ["train", "worker", "server"])
def test_a_command_checks_its_flags_before_it_imports_the_slow_modules(command: str) -> None:
    """Only then can its first line, which says that torch is imported, appear at once."""
    code = (
        "import sys; from polyrhythm.cli.main import make_app;"
        f" make_app(['{command}']); slow = {{'torch', 'numpy', 'polyrhythm.engines.local',"
        " 'polyrhythm.sim', 'polyrhythm.observe.runs', 'polyrhythm.store.checkpoints', 'cloudpickle',"
        " 'http.client', 'rich.progress', 'rich.live'};"
        " print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
