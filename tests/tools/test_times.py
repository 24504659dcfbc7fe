"""The times of the tests (`tests/times.py`): how they are added up."""

import os
import subprocess
import sys
from pathlib import Path

from tests.times import COLLECTION, Times, file_of, folder_of, recorded, table

ROOT = Path(__file__).parents[2]
TIMES = [
    Times("tests/core/lead/test_view.py::test_a[1]", 0.5, 0.75),
    Times("tests/core/test_model.py::test_b", 0.25, 1.0),
    Times("tests/cluster/test_train.py::test_c", 2.0, 8.0),
]


def test_times_are_added_up_by_folder_and_by_file() -> None:
    assert table(TIMES, folder_of)[2:] == [
        "     2.8 s      9.8 s       3  all",
        "     2.0 s      8.0 s       1  tests/cluster",
        "     0.8 s      1.8 s       2  tests/core",
    ]
    assert table(TIMES, file_of)[3].endswith("  tests/cluster/test_train.py")


def test_the_processor_time_of_a_child_counts_and_waiting_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_both.py").write_text(
        "import subprocess, sys, time\n"
        "def test_busy():\n"
        "    code = 'import time\\nwhile time.process_time() < 0.5: pass'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True)\n"
        "def test_waits():\n"
        "    time.sleep(0.5)\n"
    )
    times = tmp_path / "times.jsonl"
    options = [
        "-p",
        "tests.times",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "--confcutdir",  # without this option pytest looks for conftest files in all of /tmp
        tmp_path,
        "-n",
        "0",
        "-c",
        ROOT / "pyproject.toml",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, options), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "POLYRHYTHM_TEST_TIMES": str(times)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    collection, busy, waits = recorded(times)
    assert collection.test == COLLECTION
    assert busy.processor_s >= 0.5 and busy.test.endswith("test_busy")
    assert waits.wall_s >= 0.5 > waits.processor_s
    assert "processor time and wall time of the tests" in done.stdout
