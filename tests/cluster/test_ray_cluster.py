"""Jobs on a real Ray cluster: workers that get room later, actors, nodes and commands that are killed,
and nodes that are taken away."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file

import polyrhythm as pr
from polyrhythm.core.machine import Reason
from polyrhythm.engines.choice import RAY
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.output import log_file
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import JOURNAL
from polyrhythm.observe.state import fold
from polyrhythm.observe.why import explain
from tests.cluster.ray_jobs import (
    HEAVY,
    JOB,
    Run,
    environment,
    nothing_is_left,
    started,
    trains,
)
from tests.ray_cluster import RayCluster, own_cluster, soon

pytestmark = [pytest.mark.cluster, pytest.mark.ray, pytest.mark.timeout(300, func_only=True)]

JOBS = Path(__file__).with_name("jobs")
EXAMPLES = Path(__file__).parents[2] / "examples"


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

        nodes.enter_context(ray_cluster.node(num_cpus=0, resources={"seat": 1}))
        steps = [
            (lambda: len(run.lines("joined")) == 1 and run.lines("rounds"), add_a_node),
            (
                lambda: (
                    len(run.lines("joined")) == 2
                    and run.has_printed(run.lines("joined")[0]["name"])
                ),
                kill_a_worker,
            ),
            (lambda: run.lines("rejoined", name=killed[0][0]), lambda: None),
        ]
        outcome = run.run(
            steps, most=2, per_worker=("CPU=0,seat=1",), workers=1, servers=1, respawn=True
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
    nothing_is_left(ray_cluster)


def test_processes_leave_a_node_that_is_drained_and_a_dead_node_is_one_line(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    """A server moves its slices first. The servers that stay have copies of those that are lost with the
    dead node. The fourth worker never gets a place, and does not keep the job from ending."""
    run = Run(tmp_path, ray_cluster)
    died: list[int] = []

    def has_copies() -> bool:
        """Whether every slice has a copy on another server."""
        told = [*run.lines("copied"), *run.lines("rerouted")]
        return bool(told) and not max(told, key=lambda line: line["at_s"])["learning"]

    with (
        ray_cluster.node(num_cpus=0, resources={"spot": 2}) as (_, drained),
        ray_cluster.node(num_cpus=0, resources={"other": 2}) as (raylet, _),
    ):
        steps = [
            (
                lambda: len(run.lines("joined")) == 3 and run.lines("rounds"),
                lambda: _drain(drained),
            ),
            (
                lambda: run.lines("left") and run.lines("drained") and has_copies(),
                lambda: os.kill(raylet, signal.SIGKILL),
            ),
            (lambda: run.lines("server-lost"), lambda: died.append(len(run.lines("rounds")))),
            (lambda: len(run.lines("rounds")) > died[0] + 1, lambda: None),
        ]
        per_worker = ("1:CPU=0,spot=1", "1:CPU=0,other=1", "1:CPU=1", "1:nothing=1")
        per_server = ("1:CPU=1", "1:CPU=0,spot=1", "1:CPU=0,other=1")
        outcome = run.run(
            steps,
            per_worker=per_worker,
            per_server=per_server,
            workers=3,
            servers=3,
            replicas=1,
            most=4,
        )
    assert outcome.failed is None and outcome.ended == "stopped on request", run.said
    (drains,) = run.lines("node-drains")
    assert drains["on_it"] == "s1, worker-0"
    assert [line["server"] for line in run.lines("drained")] == [1]
    assert "goes on after its loop" in log_file(tmp_path, "worker-0").read_text()
    (lost,) = run.lines("node-lost")
    assert lost["on_it"] == "s2, worker-1"
    said = [line for line in run.said if line.startswith("node ")]
    assert len(said) == 2 and said[1].endswith("; on it: s2, worker-1"), run.said
    assert set(outcome.worker_failures) <= {"worker-1"}
    assert [line["server"] for line in run.lines("server-lost")] == [2]
    told = explain(fold(read_journal(tmp_path / JOURNAL))).cluster
    assert told == tuple(in_words(Reason(line["what"], line)) for line in (drains, lost))
    waits = "asks for CPU=1,nothing=1: no node of the cluster has that"
    assert any(waits in line for line in run.said)
    nothing_is_left(ray_cluster)


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
    few = ("--workers", 1, "--servers", 1)
    with started(ray_cluster, tmp_path, "job.py", *few, "--name", "killed"):
        trains(folder := tmp_path / "runs" / "killed")
        log = log_file(folder, "worker-0")
        soon(lambda: log.exists() and "process " in log.read_text(), "the log has not come")
    pid = int(log.read_text().split("process ")[1].split()[0])
    soon(lambda: not Path(f"/proc/{pid}").exists(), "the worker still runs")
    nothing_is_left(ray_cluster)


def test_a_cluster_without_room_for_the_servers_is_said_and_fails_the_job(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    import ray

    shows = ray._private.worker.print_to_stdstream
    with pytest.raises(pr.errors.JobFailed) as error:
        pr.train(
            "digits",
            engine=RAY,
            address=ray_cluster.address,
            workers=1,
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
    assert ray._private.worker.print_to_stdstream is shows, "Ray does not show messages any more"
    nothing_is_left(ray_cluster)


@pytest.mark.parametrize(
    ("greeting", "fault"),
    [
        (None, " (RAY_ADDRESS): Connection refused; give the address that 'ray start --head' has"),
        (b"SSH-2.0-OpenSSH\r\n", ": something other than Ray listens there; give"),
        (b"", ": something other than Ray listens there; give"),
        (b"silence", ": timed out; give"),
    ],
)
def test_an_address_where_no_cluster_answers_is_refused_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greeting: bytes | None, fault: str
) -> None:
    """Ray would wait for a minute, and print a warning every second."""
    from polyrhythm.engines import ray_cluster

    monkeypatch.setattr(ray_cluster, "_GREETING_S", 0.2)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    held: list[socket.socket] = []

    def greet() -> None:
        connection, _ = listener.accept()
        held.append(connection)
        if greeting != b"silence":
            connection.sendall(greeting or b"")
            connection.close()

    given: str | None = address
    if greeting is None:
        listener.close()
        monkeypatch.setenv("RAY_ADDRESS", address)
        given = None
    else:
        threading.Thread(target=greet, daemon=True).start()
    try:
        with pytest.raises(pr.errors.PolyrhythmError) as error:
            pr.train("digits", engine=RAY, address=given, runs_dir=tmp_path / "runs", quiet=True)
    finally:
        listener.close()
        for connection in held:
            connection.close()
    assert str(error.value).startswith(f"no Ray cluster answers at {address}{fault}")
    assert not (tmp_path / "runs").exists()


def test_a_local_ray_that_does_not_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def init(address: str, **how: object) -> None:
        raise Exception("The current node timed out during startup.\nSee the logs.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(pr.errors.PolyrhythmError) as error:
        pr.train("digits", engine=RAY, address="local", runs_dir=tmp_path / "runs", quiet=True)
    assert str(error.value) == (
        "cannot start a local Ray: The current node timed out during startup."
    )
    assert not (tmp_path / "runs").exists()


def test_a_cluster_that_was_killed_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray keeps a note of its address, and would try to reach it for minutes."""
    import ray

    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # other clusters run on this machine
    monkeypatch.setattr(ray._private.services, "find_gcs_addresses", set)
    with pytest.raises(pr.errors.PolyrhythmError, match="no Ray cluster runs on this machine"):
        pr.train("digits", engine=RAY, address="auto", runs_dir=tmp_path / "runs", quiet=True)


def test_every_evaluation_is_reported_to_ray_tune_which_may_stop_the_trial(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    words = [sys.executable, str(JOBS / "stopped_trial.py"), ray_cluster.address, str(tmp_path)]
    tuned = subprocess.run(
        words, env=environment(HOME=str(tmp_path)), capture_output=True, text=True, timeout=200
    )
    said = [line.split() for line in tuned.stdout.splitlines() if line.startswith("reported")]
    assert said == [["reported", "1.0", str(round_), str(4 * round_)] for round_ in (5, 10, 15)]
    assert "ended with None" in tuned.stdout, tuned.stdout + tuned.stderr
    nothing_is_left(ray_cluster)


@HEAVY
def test_the_trials_of_ray_tune_are_jobs_in_their_own_placement_groups(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    tuned = subprocess.run(
        [sys.executable, str(EXAMPLES / "ray" / "tune.py"), "0.1", "0.0001"],
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
    weights = [float(load_file(model)["weight"]) for model in models]
    assert any(weight == pytest.approx(3, abs=0.1) for weight in weights), weights
    results = (tmp_path / "ray_results").rglob("result.json")
    reports = [len(each.read_text().splitlines()) for each in results]
    assert len(reports) == 4 and max(reports) > 10, reports
    assert min(reports) < 10, "no trial was stopped early"
    nothing_is_left(ray_cluster)


@HEAVY
def test_the_end_of_the_cluster_ends_the_job_with_one_line(tmp_path: Path) -> None:
    """The cluster is one of its own, because other tests need the shared one."""
    with own_cluster() as cluster:
        run = Run(tmp_path, cluster)
        never = (lambda: False, lambda: None)  # the job ends by itself
        steps = [(lambda: run.lines("rounds"), cluster.end), never]
        outcome = run.run(steps, workers=1, servers=2)
        assert outcome.failed is not None
        assert "the cluster has ended, or has lost the node of this command" in outcome.failed
        assert not [line for line in run.said if "\n" in line]
        soon(lambda: not cluster.folder.exists(), "the cluster does not end")
