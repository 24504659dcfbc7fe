"""`polyrhythm new`: the project that it writes works at once, with its own test and on the command
line."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.processes import call


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


def test_the_projects_own_test_passes(project: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=project, env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_projects_own_test_fails_without_learning(project: Path, tmp_path: Path) -> None:
    for path in ("job.py", "test_job.py"):
        text = (project / path).read_text()
        (tmp_path / path).write_text(text.replace("lr=0.1, momentum=0.9", "lr=0.0"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 1, done.stdout


def test_the_project_trains(project: Path) -> None:
    done = call("train", "job.py", "--workers", 2, "--servers", 1, "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.95


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = call("new", "mine", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == ("polyrhythm: mine is there already: choose another name, or remove it\n")
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_path_creates_its_folders(tmp_path: Path) -> None:
    assert call("new", "deep/down/", cwd=tmp_path).returncode == 0
    assert (tmp_path / "deep" / "down" / "README.md").read_text().startswith("# down\n")


@pytest.mark.parametrize("name", ["", "..", "-x", "a b"])
def test_a_name_that_is_not_valid_is_refused(tmp_path: Path, name: str) -> None:
    done = call("new", "--", name, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "does not end in a name" in done.stderr
    assert list(tmp_path.iterdir()) == []
