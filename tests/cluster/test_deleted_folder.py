"""The folder of a run is deleted while the job runs. The job reports this, still prints its
summary, and writes its model and its result to a new folder of the same name."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.processes import Command, wait_until

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
        assert command.wait(60) == 0
    (line,) = command.stderr().splitlines()
    assert "runs/run" in line and line.endswith("the job goes on, and saves its model there")
    assert {path.name for path in command.run_dir.iterdir()} == {"model.safetensors", "result.json"}
    if shown == "--json":
        result = json.loads(command.stdout())
        assert result["rounds"] == 40 and result["contributions"] == 80
        assert result["failed"] is None and result["folds"] == {"s0": 40, "s1": 40}
    else:
        assert "the job reached its goal: 40 rounds" in command.stdout()
        assert "40 rounds, 80 contributions" in command.stdout()
