"""The same tests for every engine: the same requests give the same outcome. The tests use nothing
but the `Engine` protocol. The engine `far` is only for tests: it shows that the supervisor of
processes needs nothing but its host."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from polyrhythm.api.hosts import child_requests
from polyrhythm.engines.choice import INLINE, LOCAL, RAY, choose_engine
from polyrhythm.engines.engine import ClusterOptions, Engine, EngineRun, EngineWatch
from polyrhythm.errors import UsageError
from polyrhythm.observe.journal import read_journal
from polyrhythm.wire.messages import JobSpec
from tests.engines.far_host import FarEngine

JOB = """
import torch
from torch import nn


def main(worker):
    if worker.name == "worker-1" and worker.options.get("fail"):
        raise ValueError("worker-1 was asked to fail")
    torch.manual_seed(worker.seed)
    model = nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
"""


RAY_MARKS = [pytest.mark.ray, pytest.mark.timeout(300, func_only=True)]


@pytest.fixture(params=[LOCAL, INLINE, pytest.param(RAY, marks=RAY_MARKS), "far"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    if request.param == "far":
        return FarEngine(tmp_path_factory.mktemp("far"))
    if request.param == RAY:
        return choose_engine(RAY, ClusterOptions(request.getfixturevalue("ray_cluster").address))
    return choose_engine(request.param)


def run(engine: Engine, folder: Path, ticks: list[int], **fields: object) -> EngineRun:
    file = folder / "job.py"
    file.write_text(JOB)
    job = JobSpec(job="j", name=str(file), path=str(file), workers=2, rounds=3, **fields)
    requests = child_requests(job, folder)
    watch = EngineWatch(say=lambda line: None, tick=lambda: ticks.append(1))
    return engine.run(requests, watch)


def test_an_engine_runs_a_job_to_its_goal_and_saves_the_model(
    engine: Engine, tmp_path: Path
) -> None:
    ticks: list[int] = []
    outcome = run(engine, tmp_path, ticks, save_model=True)
    assert outcome.failed is None
    assert outcome.ended is not None and "3 rounds" in outcome.ended
    assert outcome.worker_failures == {} and outcome.interrupted == 0
    journal = [line["what"] for line in read_journal(tmp_path / "journal.jsonl")]
    assert journal.count("joined") == 2 and journal.count("ended") == 1
    state = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "weight": (1, 2),
        "bias": (1,),
    }


def test_an_engine_reports_a_worker_whose_code_raises(engine: Engine, tmp_path: Path) -> None:
    outcome = run(engine, tmp_path, [], options={"fail": "yes"})
    assert list(outcome.worker_failures) == ["worker-1"]
    assert "ValueError: worker-1 was asked to fail" in outcome.worker_failures["worker-1"]


def test_the_error_for_an_unknown_engine_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="choose one of local, inline, ray"):
        choose_engine("cluster")
