"""Jobs on a real Ray cluster: workers that get room later, actors, nodes and commands that are killed,
and nodes that are taken away."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import polyrhythm as pr
from polyrhythm.api.hosts import Here, child_requests
from polyrhythm.engines.engine import (
    RAY,
    ClusterOptions,
    EngineRun,
    EngineWatch,
    Wanted,
    choose_engine,
)
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.output import log_file
from polyrhythm.observe.runs import JOURNAL
from polyrhythm.wire.messages import JobSpec
from tests.ray_cluster import RayCluster, soon, start_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.ray, pytest.mark.timeout(300, func_only=True)]

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = """
import os
import time
import torch


def main(worker):
    print(worker.name, "is process", os.getpid(), "with", torch.get_num_threads(), "threads")
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while not worker.stopped:
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step(points=4)
        time.sleep(0.01)
    print(worker.name, "goes on after its loop")
"""


class Run:
    """A job on the cluster that a test runs in this process, and what it has recorded so far."""

    def __init__(self, folder: Path, cluster: RayCluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.said: list[str] = []
        self.until_s = time.monotonic() + 240.0

    def lines(self, what: str, **fields: object) -> list[dict[str, Any]]:
        """The lines of the journal with these fields."""
        journal = self.folder / JOURNAL
        found = read_journal(journal) if journal.exists() else ()
        return [
            line
            for line in found
            if line["what"] == what and all(line.get(key) == fields[key] for key in fields)
        ]

    def has_printed(self, name: str) -> bool:
        log = log_file(self.folder, name)
        return log.exists() and "threads" in log.read_text()

    def pid(self, name: str) -> int:
        """The newest process of a worker."""
        words = log_file(self.folder, name).read_text().split()
        return int([after for word, after in pairwise(words) if word == "process"][-1])

    def run(
        self,
        steps: Sequence[tuple[Callable[[], object], Callable[[], object]]],
        *,
        most: int | None = None,
        per_worker: tuple[str, ...] = (),
        **settings: Any,
    ) -> EngineRun:
        """Run the job. Each step is a condition, and what to do when it holds. After the last step the
        job is stopped."""
        file = self.folder / "job.py"
        file.write_text(JOB)
        job = JobSpec(job="j" * 8, name=str(file), path=str(file), **settings)
        here = Here.of(job, None, None, most)
        requests = child_requests(job, self.folder, link="auto", digest="auto", here=here)
        left = list(steps)

        def wanted() -> Wanted:
            assert time.monotonic() < self.until_s, f"{len(left)} steps are left: {self.said}"
            if left and left[0][0]():
                left.pop(0)[1]()
            return Wanted.GO_ON if left else Wanted.STOP

        engine = choose_engine(RAY, ClusterOptions(self.cluster.address, per_worker))
        return engine.run(requests, EngineWatch(say=self.said.append, wanted=wanted))


def left_on(cluster: RayCluster) -> dict[str, object]:
    """What the jobs of this program have left on the cluster."""
    import ray

    from polyrhythm.engines.ray import joined

    with joined(cluster.address, 0):
        actors = ray._private.state.actors().values()
        groups = ray.util.placement_group_table().values()
        return {
            "actors": [each["Name"] for each in actors if each["State"] != "DEAD"],
            "groups": [each["name"] for each in groups if each["state"] != "REMOVED"],
        }


NOTHING: dict[str, object] = {"actors": [], "groups": []}


def test_workers_join_when_there_is_room_and_a_killed_one_comes_back(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    run = Run(tmp_path, ray_cluster)
    killed: list[tuple[str, int]] = []
    with ExitStack() as nodes:

        def add_a_node() -> None:
            nodes.enter_context(ray_cluster.node(num_cpus=0, resources={"seat": 1}))

        def kill_a_worker() -> None:
            name = run.lines("joined")[0]["name"]
            killed.append((name, run.pid(name)))
            os.kill(killed[0][1], signal.SIGKILL)

        nodes.enter_context(ray_cluster.node(num_cpus=0, resources={"seat": 2}))
        steps = [
            (lambda: len(run.lines("joined")) == 2 and run.lines("rounds"), add_a_node),
            (
                lambda: (
                    len(run.lines("joined")) == 3
                    and run.has_printed(run.lines("joined")[0]["name"])
                ),
                kill_a_worker,
            ),
            (lambda: run.lines("rejoined", name=killed[0][0]), lambda: None),
        ]
        outcome = run.run(
            steps, most=3, per_worker=("CPU=0,seat=1",), workers=2, servers=2, respawn=True
        )
    ((name, pid),) = killed
    assert outcome.failed is None and outcome.ended == "stopped on request", run.said
    assert outcome.respawned == {name: 1} and not outcome.worker_failures, run.said
    assert run.pid(name) != pid
    (listening,) = run.lines("listening")
    assert listening["file"] == str(tmp_path / "job.py"), "others join with the user's own file"
    (died,) = run.lines("actor-died")
    assert died["name"] == name and "it was killed, ran out of memory, or crashed" in died["detail"]
    text = log_file(tmp_path, name).read_text()
    assert text.count("with 1 threads") == 2 and text.count("goes on after its loop") == 1
    soon(lambda: left_on(ray_cluster) == NOTHING, "actors or groups are left")


def test_workers_leave_a_node_that_is_drained_and_a_dead_node_is_one_line(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    """The fourth worker never gets a place, and does not keep the job from ending."""
    run = Run(tmp_path, ray_cluster)
    with (
        ray_cluster.node(num_cpus=0, resources={"spot": 1}) as (_, drained),
        ray_cluster.node(num_cpus=0, resources={"other": 1}) as (raylet, _),
    ):
        steps = [
            (
                lambda: len(run.lines("joined")) == 3 and run.lines("rounds"),
                lambda: _drain(drained),
            ),
            (
                lambda: run.lines("node-drains") and run.lines("left"),
                lambda: os.kill(raylet, signal.SIGKILL),
            ),
            (lambda: run.lines("node-lost"), lambda: None),
        ]
        per_worker = ("1:CPU=0,spot=1", "1:CPU=0,other=1", "1:CPU=1", "1:nothing=1")
        outcome = run.run(steps, per_worker=per_worker, workers=3, most=4)
    assert outcome.failed is None and outcome.ended == "stopped on request", run.said
    (drains,) = run.lines("node-drains")
    assert drains["on_it"] == "worker-0"
    assert "goes on after its loop" in log_file(tmp_path, "worker-0").read_text()
    (lost,) = run.lines("node-lost")
    assert lost["on_it"] == "worker-1"
    said = [line for line in run.said if line.startswith("node ")]
    assert len(said) == 2 and said[1].endswith("; on it: worker-1"), run.said
    assert set(outcome.worker_failures) <= {"worker-1"}
    waits = "asks for CPU=1,nothing=1: no node of the cluster has that"
    assert any(waits in line for line in run.said)
    soon(lambda: left_on(ray_cluster) == NOTHING, "actors or groups are left")


def _drain(node: str) -> None:
    """Announce that a node is taken away, as an autoscaler does. This process has joined the cluster."""
    import ray

    client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    preemption, deadline_ms = 2, int((time.time() + 120) * 1000)
    accepted, why = client.drain_node(node, preemption, "spot machine", deadline_ms)
    assert accepted, why


def test_nothing_is_left_of_a_job_whose_command_was_killed(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "polyrhythm", "train", "job.py", "--engine", RAY]
    options = [
        "--address",
        ray_cluster.address,
        "--workers",
        "1",
        "--servers",
        "1",
        "--name",
        "killed",
    ]
    with (tmp_path / "output").open("wb") as output:
        program = subprocess.Popen(
            [*command, *options],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    journal = tmp_path / "runs" / "killed" / JOURNAL
    try:
        soon(
            lambda: journal.exists() and b'"rounds"' in journal.read_bytes(),
            f"the job does not train: {(tmp_path / 'output').read_text()}",
        )
    finally:
        program.kill()
        program.wait(60)
    pid = int(log_file(journal.parent, "worker-0").read_text().split("process ")[1].split()[0])
    soon(lambda: not Path(f"/proc/{pid}").exists(), "the worker still runs")
    soon(lambda: left_on(ray_cluster) == NOTHING, "actors or groups are left")


def test_a_cluster_without_room_for_the_servers_is_said_and_fails_the_job(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    with pytest.raises(pr.errors.JobFailed) as error:
        pr.train(
            "digits",
            engine=RAY,
            address=ray_cluster.address,
            resources_per_server={"GPU": 3},
            start_timeout=4.0,
            runs_dir=tmp_path / "runs",
            quiet=True,
        )
    assert str(error.value).startswith(
        "the cluster has no room for this job after 4 s: s0 and s1 have"
    )
    assert "no node of the cluster has that (nodes: CPU=4,GPU=0)" in str(error.value)
    assert not (tmp_path / "runs").exists(), "a job that has not begun leaves no folder"
    assert "ray" not in os.environ.get("PYTHONBREAKPOINT", ""), "breakpoint() is Ray's now"
    soon(lambda: left_on(ray_cluster) == NOTHING, "actors or groups are left")


def test_an_address_where_no_cluster_answers_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(pr.errors.PolyrhythmError, match="no Ray cluster answers at 127.0.0.1:1: "):
        pr.train(
            "digits", engine=RAY, address="127.0.0.1:1", runs_dir=tmp_path / "runs", quiet=True
        )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_trials_of_ray_tune_are_jobs_in_their_own_placement_groups(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    tuned = subprocess.run(
        [sys.executable, str(EXAMPLES / "ray" / "tune.py"), "0.1"],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(tmp_path),  # Ray Tune writes into its folder `ray_results`
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RAY_ADDRESS": ray_cluster.address,
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "\nbest: {'rate': 0.1, 'sync': " in tuned.stdout, tuned.stderr
    models = list((tmp_path / "ray_results").rglob("model.safetensors"))
    assert len(models) == 2, "each trial has a checkpoint with its model"
    for model in models:
        assert float(load_file(model)["weight"]) == pytest.approx(3, abs=0.1)
    soon(lambda: left_on(ray_cluster) == NOTHING, "actors or groups are left")


@pytest.mark.slow
def test_the_end_of_the_cluster_ends_the_job_with_one_line(tmp_path: Path) -> None:
    """The cluster is one of its own, because other tests need the shared one."""
    keeper = subprocess.Popen(["sleep", "600"])
    try:
        cluster = start_cluster(keeper.pid)
        run = Run(tmp_path, cluster)
        trains = [
            (lambda: run.lines("rounds"), keeper.kill),
            (lambda: keeper.poll() is None, lambda: None),
        ]
        outcome = run.run(trains, workers=1, servers=2)
    finally:
        keeper.kill()
        keeper.wait(60)
    assert outcome.failed is not None
    assert "the cluster has ended, or has lost the node of this command" in outcome.failed
    assert not [line for line in run.said if "\n" in line]
    soon(lambda: not cluster.folder.exists(), "the cluster does not end")
