"""A worker that is killed is started again by a host that has no files in common with the engine. The
journal, the output and the model of the job arrive in the folder of the run."""

import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from polyrhythm.api.hosts import child_requests
from polyrhythm.engines.engine import EngineWatch, Wanted
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.output import log_file
from polyrhythm.observe.runs import JOURNAL, load_run
from polyrhythm.wire.messages import JobSpec
from tests.engines.far_host import FarEngine

JOB = """
import torch
from pathlib import Path


def main(worker):
    print(worker.name, "begins in", Path.cwd().name)
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step(points=4)
"""


def test_a_killed_worker_is_started_again_without_common_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run_dir, code = (tmp_path / name for name in ("far", "run", "code"))
    for each in (folder, run_dir, code):
        each.mkdir()
    file = code / "job.py"
    file.write_text(JOB)
    job = JobSpec(
        job="j", name=str(file), path=str(file), servers=2, workers=2, respawn=True, save_model=True
    )
    engine = FarEngine(folder)
    killed = False

    def wanted() -> Wanted:
        """Kill the worker when it trains, and stop the job when it trains again."""
        nonlocal killed
        joined = 0
        for line in read_journal(run_dir / JOURNAL) if (run_dir / JOURNAL).exists() else ():
            joined += line["what"] in ("joined", "rejoined") and line["name"] == "worker-1"
            trains = line["what"] == "rounds"
            if trains and joined == 1 and not killed:
                killed = True
                engine.hosts[0].signal("worker-1", signal.SIGKILL)
            if trains and joined == 2:
                return Wanted.STOP
        return Wanted.GO_ON

    said: list[str] = []
    requests = child_requests(job, run_dir)
    outcome = engine.run(requests, EngineWatch(say=said.append, wanted=wanted))
    assert killed
    assert outcome.failed is None and outcome.ended == "stopped on request", said
    assert outcome.respawned == {"worker-1": 1} and not outcome.worker_failures
    assert "worker-1 was started again" in said
    journal = [line["what"] for line in read_journal(run_dir / JOURNAL)]
    assert journal[0] == "listening" and journal.count("ended") == 1
    assert journal.index("respawn") < journal.index("respawned")
    lines = log_file(run_dir, "worker-1").read_text().splitlines()
    assert len([line for line in lines if line.startswith("worker-1 begins in worker-1-")]) == 2
    assert set(load_file(run_dir / "model.safetensors")) == {"weight", "bias"}
    saved = [line for line in read_journal(run_dir / JOURNAL) if line["what"] == "saved"]
    assert [line["path"] for line in saved] == [str(run_dir / "model.safetensors")]
    assert not list(folder.rglob("model.safetensors")), "the process of the lead keeps no copy"


def test_the_journal_says_that_a_job_was_stopped_whose_program_ends(tmp_path: Path) -> None:
    """Ray Tune ends the program of a trial so."""
    folder, run_dir = tmp_path / "far", tmp_path / "run"
    for each in (folder, run_dir):
        each.mkdir()
    file = tmp_path / "job.py"
    file.write_text(JOB)
    job = JobSpec(job="j", name=str(file), path=str(file), servers=1, workers=1)
    requests = child_requests(job, run_dir)
    engine = FarEngine(folder)

    def tick() -> None:
        journal = run_dir / JOURNAL
        if journal.exists() and any(line["what"] == "rounds" for line in read_journal(journal)):
            raise SystemExit(0)

    with pytest.raises(SystemExit):
        engine.run(requests, EngineWatch(say=lambda line: None, tick=tick))
    assert load_run(run_dir).word == "stopped"
    programs = [each.program for each in engine.hosts[0].processes.values()]
    assert len(programs) == 2 and all(program.poll() is not None for program in programs)


def test_the_processes_of_the_far_host_reach_no_file_of_the_run(tmp_path: Path) -> None:
    """This shows that the other tests of this host would fail if a process used such a file."""
    folder, run_dir, code = (tmp_path / name for name in ("far", "run", "code"))
    for each in (folder, run_dir, code):
        each.mkdir()
    (run_dir / "secret.txt").write_text("of the run")
    file = code / "job.py"
    file.write_text(f"def main(worker):\n    open({str(run_dir / 'secret.txt')!r})\n")
    job = JobSpec(job="j", name=str(file), path=str(file), workers=1)
    requests = child_requests(job, run_dir)
    outcome = FarEngine(folder).run(requests, EngineWatch(say=lambda line: None))
    assert "is on another machine" in outcome.worker_failures["worker-0"]
