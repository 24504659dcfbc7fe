"""Run commands in this process, on folders of runs that the tests write."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from polyrhythm.cli.main import make_app
from polyrhythm.observe import runs
from polyrhythm.wire.messages import JobSpec

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `polyrhythm ARGS` in an empty folder, without a terminal."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object, env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(make_app(), [str(arg) for arg in args], env=env)

    return run


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    def write(run: str, lines: list[dict[str, Any]], **job: Any) -> Path:
        path = tmp_path / "runs" / run
        path.mkdir(parents=True)
        runs.write_job(path, JobSpec(job="x", **job))
        (path / runs.JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write
