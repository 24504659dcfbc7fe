"""The folder of a run is deleted while the job runs. The job reports this, still prints its
summary, and writes its model and its result to a new folder of the same name. It can still be
stopped by the name of its run."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cluster.processes import Command, call, wait_until

GOES_ON = "was deleted or moved: nothing is recorded any more"


@pytest.fixture
def gated(tmp_path: Path, long_job: Path) -> Path:
    """A job that stops at round 20, writes the file `gate`, and goes on when the file `go` appears."""
    text = long_job.read_text().replace("import torch\n", "import os, time\nimport torch\n")
    gate = '        while worker.version == 20 and not os.path.exists("go"):\n'
    gate += '            open("gate", "w").close()\n'
    gate += "            time.sleep(0.01)\n"
    long_job.write_text(text.replace("stopped:\n", f"stopped:\n{gate}"))
    return long_job


@pytest.mark.parametrize("shown", ["--json", "--quiet"])
def test_a_deleted_run_folder_is_reported_within_seconds_and_the_summary_is_printed(
    tmp_path: Path, gated: Path, shown: str
) -> None:
    flags = ("--workers", 2, "--servers", 2, "--rounds", 40, "--timer", "off", shown)
    with Command(gated, *flags, cwd=tmp_path, trace=False) as command:
        wait_until((tmp_path / "gate").exists, "round 20")
        shutil.rmtree(command.run_dir)
        wait_until(lambda: GOES_ON in command.stderr(), "it is reported", 20)
        (tmp_path / "go").touch()
        assert command.wait() == 0
    (line,) = command.stderr().splitlines()
    assert "runs/run" in line and line.endswith("saves its model in that folder")
    assert {path.name for path in command.run_dir.iterdir()} == {"model.safetensors", "result.json"}
    if shown == "--json":
        result = json.loads(command.stdout())
        assert result["rounds"] == 40 and result["contributions"] == 80
        assert result["failed"] is None and result["folds"] == {"s0": 40, "s1": 40}
    else:
        assert "the job reached its goal: 40 rounds" in command.stdout()
        assert "40 rounds, 80 contributions" in command.stdout()


def test_a_job_is_stopped_by_its_name_after_its_folder_was_deleted(
    tmp_path: Path, gated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`why` asks the lead, because the journal was deleted too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    flags = ("--workers", 2, "--servers", 2, "--timer", "off", "--quiet")
    with Command(gated, *flags, cwd=tmp_path, trace=False) as command:
        wait_until((tmp_path / "gate").exists, "round 20")
        shutil.rmtree(command.run_dir)
        # the lead writes of rounds once a second, so what it tells may be some rounds old
        asked = call("why", "run", cwd=elsewhere)
        assert re.search(r"round \d+, 2 workers at work", asked.stdout), asked.stderr
        told = call("story", "run", cwd=elsewhere).stdout
        assert "round 1 opened with 2 workers" in told
        (tmp_path / "go").touch()
        stopped = call("stop", "run", cwd=elsewhere)
        assert stopped.returncode == 0, stopped.stderr
        assert stopped.stdout.startswith("run run: stopped on request of")
        assert command.wait() == 0
    assert (command.run_dir / "model.safetensors").is_file()
    assert list((tmp_path / "state" / "polyrhythm" / "jobs").iterdir()) == []
    ended = call("stop", "run", cwd=elsewhere)
    assert ended.returncode == 1 and "there is no run 'run'" in ended.stderr
