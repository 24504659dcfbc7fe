"""Loading a job's file: which `main` is accepted, and under which name the module is known."""

import subprocess
import sys
from pathlib import Path

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.learn.load import check_job

SCRIPT = """
import sys
from polyrhythm.learn.load import load_main
before = dict(sys.modules)
main = load_main(sys.argv[1])
replaced = [name for name, module in before.items() if sys.modules.get(name) is not module]
main(None)
print(replaced, sys.modules[main.__module__].__file__ == sys.argv[1])
"""


@pytest.mark.parametrize("name", ["random", "json", "torch", "html", "msgspec", "__main__", "mine"])
def test_a_job_replaces_no_module_of_python_or_of_a_package(tmp_path: Path, name: str) -> None:
    """`html` is not imported before the job is loaded. The job imports `neighbour.py` from its own
    folder, and an installed module: the one with the name of the job's file, or `html`."""
    other = "html" if name in ("mine", "__main__") else name
    (tmp_path / "neighbour.py").write_text("VALUE = 3\n")
    (tmp_path / f"{name}.py").write_text(
        f"import neighbour, {other}\n"
        "def main(worker):\n"
        f"    assert {other}.__file__ != __file__ and neighbour.VALUE == 3\n"
    )
    path = str(tmp_path / f"{name}.py")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, path], capture_output=True, text=True, timeout=120, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] True\n"


@pytest.mark.parametrize(
    "text",
    [
        "def main(worker): ...",
        "def main(worker, rate=0.1): ...",
        "def main(*args): ...",
        "def main(worker, /, *, rate=1): ...",
        "@decorated\ndef main(): ...",
        "from other import main",
        "def main(): ...\ndef main(worker): ...",
    ],
)
def test_a_main_that_takes_a_worker_is_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.py").write_text(text)
    check_job(str(tmp_path / "job.py"))


@pytest.mark.parametrize(
    "text",
    [
        "def main(): ...",
        "def main(a, b): ...",
        "def main(worker, *, rate): ...",
        "def main(*, worker): ...",
    ],
)
def test_a_main_that_does_not_take_a_worker_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.py").write_text(text)
    with pytest.raises(UsageError, match=r"main in .*job.py cannot be called with one argument"):
        check_job(str(tmp_path / "job.py"))
