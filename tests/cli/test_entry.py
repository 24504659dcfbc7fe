"""The command can be started as `python -m polyrhythm`."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call

DEATH = Path(__file__).parents[2] / "scenarios" / "a-death.toml"


def test_the_package_can_be_run_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "polyrhythm", "train", "--threads", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "polyrhythm: --threads is 0: it must be at least 1\n"


@pytest.mark.parametrize("command", ["train", "worker", "server"])
def test_a_command_checks_its_flags_before_it_imports_the_slow_modules(command: str) -> None:
    """The first line of the command says that torch is being imported. It can appear at once only
    if this import has not begun."""
    code = (
        "import sys; from polyrhythm.cli.main import make_app;"
        f" make_app(['{command}']); slow = {{'torch', 'numpy', 'polyrhythm.engines.local',"
        " 'polyrhythm.sim', 'polyrhythm.observe.runs', 'polyrhythm.store.checkpoints', 'cloudpickle',"
        " 'http.client', 'rich.progress', 'rich.live'};"
        " print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_entry_point_imports_nothing_before_it_notices_ctrl_c() -> None:
    code = (
        "import sys; before = set(sys.modules); import polyrhythm.cli.entry;"
        " print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = ["polyrhythm", "polyrhythm.cli", "polyrhythm.cli.entry", "polyrhythm.release"]
    assert done.stdout == f"{ours}\n"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["simulate", str(DEATH), "--json"], 0),
        (["data", "list"], 0),
        (["train", "--threads", "0"], 2),
    ],
)
def test_a_reader_that_closes_its_pipe_changes_no_status(
    tmp_path: Path, arguments: list[str], status: int
) -> None:
    """As `polyrhythm ... 2>&1 | head -1` does, at worst before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "polyrhythm", *arguments], cwd=tmp_path, stdout=writer, stderr=writer
    )
    os.close(writer)
    assert process.wait(60) == status


def test_a_full_disk_fails_a_command_that_prints_its_result(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "polyrhythm", "data", "list"], stdout=full, cwd=tmp_path
        )
    assert done.returncode != 0


def test_the_command_simulate_does_not_search_for_cycles(tmp_path: Path) -> None:
    code = (
        "import atexit, gc, sys; from polyrhythm.cli.main import run;"
        " atexit.register(lambda: print(gc.get_freeze_count() > 0, gc.isenabled()));"
        f" sys.argv = ['polyrhythm', 'simulate', {str(DEATH)!r}, '--json']; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "True False", "handlers run in reverse order"


def test_a_simulation_in_a_process_that_goes_on_changes_no_search_for_cycles(call: Call) -> None:
    before = gc.isenabled(), gc.get_freeze_count()
    assert call("simulate", DEATH, "--json").exit_code == 0
    after = gc.isenabled(), gc.get_freeze_count()
    assert after[0] == before[0]
    assert after[1] <= before[1], "frozen objects are never searched again"
