"""Batch scripts for Slurm: what they ask for, what they refuse, and a real cluster of one node that runs
one, takes its time away and runs it again."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from polyrhythm.errors import PolyrhythmError
from polyrhythm.observe.journal import read_journal
from tests.cluster.processes import wait_until
from tests.manifests.slurm_cluster import MISSING, cluster

Call = Callable[..., Result]


def written(call: Call, *args: object) -> str:
    told = call("manifest", "slurm", *args)
    assert told.exit_code == 0, told.exception
    return told.stdout


def asked(script: str) -> dict[str, str]:
    """The flags of sbatch in a script."""
    words = (line.split()[1] for line in script.splitlines() if line.startswith("#SBATCH "))
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


def test_the_script_asks_for_workers_and_survives_nodes(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(worker): ...\n")
    resources = ("--resources-per-worker", "CPU=3,GPU=2,memory=6e9")
    odd = 'a=50% -- $x "\\y" \' --port 7'
    script = written(call, "mine.py", "--workers", 5, "--set", odd, *resources)
    flags = asked(script)
    assert flags["--ntasks"] == "5" and flags["--cpus-per-task"] == "3"
    assert flags["--gpus-per-task"] == "2" and flags["--mem-per-cpu"] == "1908M"
    assert {"--no-kill", "--requeue"} <= flags.keys() and flags["--signal"].startswith("B:TERM@")
    (tmp_path / "script").write_text(script)
    # the shell that runs the script prints the words of the lead's command in place of running it
    shown = script.replace(" &\nlead=$!", "\nexit\nlead=$!").replace(
        "\n"
        + next(line for line in script.splitlines() if " train " in line).partition(" train")[0],
        "\nprintf '%s\\n'",
    )
    done = subprocess.run(
        ["bash", "-c", shown],
        env={**os.environ, "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    words = done.stdout.splitlines()
    assert words[:2] == ["train", str(tmp_path / "mine.py")]
    assert words[words.index("--set") + 1] == odd and words[words.index("--port") + 1] == "20007"


def test_without_checkpoints_the_job_ends_when_its_time_is_over(call: Call) -> None:
    assert "scontrol requeue" not in written(call, "digits")
    assert "scontrol requeue" in written(call, "digits", "--checkpoint-every", "60s")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--resources-per-worker", "1:GPU=1"], "is for all workers under Slurm"),
        (["--resources-per-worker", "CPU=1.5"], "Slurm accepts only whole numbers of CPU"),
        (["--resources-per-worker", "licence=1"], "Slurm knows CPU, GPU and memory"),
        (["--resources-per-worker", "zone=eu"], "choose nodes by flags of sbatch"),
        (["--resources-per-server", "CPU=2"], "servers run on the first node"),
        (["--respawn"], "has no --respawn"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, flags: list[str], says: str) -> None:
    told = call("manifest", "slurm", "digits", *flags)
    assert isinstance(told.exception, PolyrhythmError), told.output
    assert says in str(told.exception) and told.stdout == ""


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.skipif(os.getuid() != 0, reason="the daemons of Slurm run as root")
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_whose_time_is_over_makes_a_checkpoint_and_continues_from_it(
    call: Call, tmp_path: Path
) -> None:
    """SIGTERM to the batch script is the notice of Slurm. The script requeues its job, which Slurm would
    start two minutes later."""
    flags = ("--workers", 2, "--rounds", 100_000, "--min-step", "50ms")
    script = written(call, "digits", *flags, "--checkpoint-every", "10min")
    (tmp_path / "digits.sbatch").write_text(script)
    with cluster(tmp_path / "slurm") as slurm:
        job = slurm("sbatch", "--parsable", "digits.sbatch", cwd=tmp_path)
        log = tmp_path / f"digits-{job}.log"

        def told(text: str) -> bool:
            assert slurm.state(job) in ("RUNNING", "PENDING", "CONFIGURING", "COMPLETING"), (
                told_all()
            )
            return log.exists() and text in log.read_text()

        def told_all() -> str:
            return log.read_text() if log.exists() else "no log"

        wait_until(lambda: told("round 1 opened with 2 workers"), "it trains", 150, 0.5)
        slurm("scancel", "--signal=TERM", "--batch", job)
        wait_until(lambda: slurm.state(job) == "PENDING", "it is in the queue again", 90, 0.5)
        assert list((tmp_path / "runs" / "digits" / "checkpoints").iterdir()), told_all()
        slurm("scontrol", "update", f"job={job}", "StartTime=now")
        wait_until(lambda: told("the job resumes from checkpoint"), "it continues", 90, 0.5)
        journal = tmp_path / "runs" / "digits-2" / "journal.jsonl"

        def contributes() -> bool:
            return any(line.get("contributions") for line in read_journal(journal))

        wait_until(contributes, "it trains again", 90, 0.5)
        slurm("scancel", job)
        wait_until(lambda: slurm.state(job) == "CANCELLED", "it is cancelled", 90, 0.5)
    assert (tmp_path / "runs" / "digits-2" / "model.safetensors").is_file(), told_all()
