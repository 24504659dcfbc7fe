"""Commands find a run of this user by its name from any folder."""

import os
from pathlib import Path

import pytest

from polyrhythm.errors import RunError
from polyrhythm.io.index import RunIndex
from polyrhythm.observe import runs
from polyrhythm.observe.runs import find_run, write_job, write_process
from polyrhythm.wire.messages import JobSpec

RUNS = Path("runs")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This test is in an empty folder, and its user has no runs yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def make_run(path: Path, *, alive: bool = False) -> Path:
    path.mkdir(parents=True)
    write_process(path)
    write_job(path, JobSpec(job="j"))
    if not alive:
        (path / "process.json").unlink()
    return path


def test_a_run_is_found_by_its_name_from_any_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a" / "runs" / "mine")
    assert find_run(RUNS, "mine") == run
    newer = make_run(tmp_path / "b" / "runs" / "newer")
    assert find_run(RUNS, None) == newer


def test_runs_of_this_folder_come_first(tmp_path: Path, elsewhere: Path) -> None:
    make_run(tmp_path / "a" / "runs" / "mine")
    make_run(elsewhere / "runs" / "mine")
    assert find_run(RUNS, "mine") == RUNS / "mine"


def test_a_folder_that_the_user_names_is_the_only_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "runs" / "mine")
    with pytest.raises(RunError, match="there is no run 'mine' in other"):
        find_run(Path("other"), "mine")


def test_of_runs_with_the_same_name_all_folders_are_named(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / name / "runs" / "mine") for name in "ab")
    with pytest.raises(RunError) as refusal:
        find_run(RUNS, "mine")
    assert str(refusal.value) == (
        f"there are 2 runs named 'mine': give the folder of one: {two} and {one}"
    )
    alive = make_run(tmp_path / "c" / "runs" / "mine", alive=True)
    assert find_run(RUNS, "mine") == alive


def test_runs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    gone = make_run(tmp_path / "a" / "runs" / "mine")
    (gone / "job.json").unlink()
    gone.rmdir()
    with pytest.raises(RunError, match="there is no run 'mine' in runs"):
        find_run(RUNS, "mine")
    make_run(tmp_path / "b" / "runs" / "other")
    links = list((tmp_path / "state" / "polyrhythm" / "runs").iterdir())
    assert [link.resolve().name for link in links] == ["other"]


def test_the_index_keeps_the_newest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrhythm.io.index._MOST", 3)
    made = [make_run(tmp_path / f"{n}" / "runs" / f"run-{n}") for n in range(5)]
    assert RunIndex(os.environ).runs() == made[:1:-1]


@pytest.mark.parametrize("other", ["node-7", "node-1-a", "node"])
def test_a_host_does_not_remove_the_links_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Hosts may share home folders, but not the folders of all runs."""
    monkeypatch.setattr("polyrhythm.io.index._MOST", 3)
    monkeypatch.setattr("socket.gethostname", lambda: other)
    for number in range(2):
        RunIndex(os.environ).add(tmp_path / "not mounted here" / f"{number}")
        (tmp_path / f"{number}").mkdir()
        RunIndex(os.environ).add(tmp_path / f"{number}")
    links = {path.name for path in (tmp_path / "state" / "polyrhythm" / "runs").iterdir()}
    monkeypatch.setattr("socket.gethostname", lambda: "node-1")
    made = [make_run(tmp_path / "made" / f"{number}") for number in range(5)]
    after = {path.name for path in (tmp_path / "state" / "polyrhythm" / "runs").iterdir()}
    assert links <= after and len(after) == len(links) + 3
    assert RunIndex(os.environ).runs()[:3] == made[:1:-1]


def test_an_index_that_cannot_be_written_does_not_stop_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file and no folder")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "state"))
    run = make_run(tmp_path / "a" / "runs" / "mine")
    assert runs.load_run(run).word == "ended without a word"
    with pytest.raises(RunError):
        find_run(RUNS, "mine")
