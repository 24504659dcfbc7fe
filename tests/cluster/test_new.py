"""`polyrhythm new`: the project that it writes works at once, with its own test and on the command
line."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.processes import call
from tests.commands.start import start_script


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects")
    done = call("new", "clouds", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "clouds is ready: cd clouds && polyrhythm train job.py\n"
    return folder / "clouds"


def test_the_project_is_small_and_has_the_given_name(project: Path) -> None:
    assert sorted(path.name for path in project.iterdir()) == [
        *(".gitignore", "README.md", "job.py", "test_job.py")
    ]
    assert (project / "README.md").read_text().startswith("# clouds\n")


def test_the_project_imports_nothing_internal(project: Path) -> None:
    for path in project.glob("*.py"):
        names = [
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        ours = {name for name in names if name and name.startswith("polyrhythm")}
        assert ours == {"polyrhythm"}, path.name


def run_pytest(folder: Path, tmp_path: Path) -> tuple[int, str]:
    """Run the tests of a project in a process that is forked from the warm server. Return its exit
    status and its output."""
    script = tmp_path / "run_pytest.py"
    script.write_text("import sys\nimport pytest\nsys.exit(pytest.main(sys.argv[1:]))\n")
    process = start_script(
        *(script, "-p", "no:cacheprovider"),
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    shown = "".join(text or "" for text in process.communicate(timeout=90))
    assert process.returncode is not None
    return process.returncode, shown


def test_the_projects_own_test_passes(project: Path, tmp_path: Path) -> None:
    status, shown = run_pytest(project, tmp_path)
    assert status == 0, shown
    assert "1 passed" in shown


def test_the_projects_own_test_fails_without_learning(project: Path, tmp_path: Path) -> None:
    for path in ("job.py", "test_job.py"):
        text = (project / path).read_text()
        (tmp_path / path).write_text(text.replace("lr=0.1, momentum=0.9", "lr=0.0"))
    status, shown = run_pytest(tmp_path, tmp_path)
    assert status == 1, shown


def test_the_project_trains(project: Path) -> None:
    done = call("train", "job.py", "--workers", 2, "--servers", 1, "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.95


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = call("new", "mine", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == ("polyrhythm: mine exists already: choose another name, or remove it\n")
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_path_creates_its_folders(tmp_path: Path) -> None:
    assert call("new", "deep/down/", cwd=tmp_path).returncode == 0
    assert (tmp_path / "deep" / "down" / "README.md").read_text().startswith("# down\n")


@pytest.mark.parametrize("name", ["", "..", "-x", "a b"])
def test_a_name_that_is_not_valid_is_refused(tmp_path: Path, name: str) -> None:
    done = call("new", "--", name, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert "does not end in a name" in done.stderr
    assert list(tmp_path.iterdir()) == []
