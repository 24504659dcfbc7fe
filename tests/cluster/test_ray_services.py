"""Jobs on Ray clusters of special kinds, each with a cluster for itself: with tokens, with an
autoscaler, without its control service, with Redis, and with nodes that share nothing."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.output import log_file
from polyrhythm.observe.runs import JOURNAL
from tests.cluster.namespaces import network
from tests.cluster.operators import commands_reach
from tests.cluster.ray_jobs import (
    HEAVY,
    JOB,
    command,
    environment,
    started,
    trains,
)
from tests.commands.start import run
from tests.ray_cluster import RayCluster, own_cluster, soon
from tests.ray_nodes import RayNodes, ray_nodes, users_of

pytestmark = [
    *(pytest.mark.cluster, pytest.mark.ray, pytest.mark.slow),
    pytest.mark.timeout(600, func_only=True),
    HEAVY,
]

FEW = ("--workers", 1, "--servers", 1)


def output(folder: Path) -> str:
    return (folder / "output").read_text()


def rounds(folder: Path) -> int:
    journal = folder / JOURNAL
    lines = read_journal(journal) if journal.exists() else ()
    return sum(line["what"] == "rounds" for line in lines)


def write_job(folder: Path) -> None:
    (folder / "job.py").write_text(JOB)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# -- tokens --------------------------------------------------------------------------------------


def test_a_cluster_with_tokens_is_joined_with_the_users_token_and_not_without(
    tmp_path: Path,
) -> None:
    write_job(tmp_path)
    right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "one" * 8}
    wrong = {**right, "RAY_AUTH_TOKEN": "two" * 8}
    with own_cluster(environment=right) as cluster:
        words = command(cluster, "job.py", *FEW, "--rounds", 3)
        for token, status in ((right, 0), (wrong, 1), ({"RAY_AUTH_MODE": "disabled"}, 1)):
            ended = subprocess.run(
                words,
                cwd=tmp_path,
                env=environment(**token),
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert ended.returncode == status, ended.stderr
            said = [line for line in ended.stderr.splitlines() if "cannot join" in line]
            assert len(said) == status, ended.stderr
            assert "Traceback" not in ended.stderr


# -- the control service -------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_job_whose_cluster_loses_its_control_service_continues_from_a_checkpoint(
    tmp_path: Path, s3_url: str, how: signal.Signals
) -> None:
    write_job(tmp_path)
    store = ("--store", s3_url, "--checkpoint-every", "1s")
    with (
        own_cluster() as cluster,
        started(cluster, tmp_path, "job.py", *FEW, *store, "--name", "first") as job,
    ):
        folder = tmp_path / "runs" / "first"
        trains(folder)
        soon(lambda: b'"checkpoint"' in (folder / JOURNAL).read_bytes(), "no checkpoint")
        cluster.signal_control(how)
        assert job.wait(120) == 1
    assert output(tmp_path).count("the Ray cluster does not answer any more (") == 1
    assert "Traceback" not in output(tmp_path)
    goal = ("--rounds", 1_000_000, "--max-seconds", 2)
    resumed = run("resume", "first", "--engine", "inline", *goal, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A Redis server; its address."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Debian's redis-server is not installed")
    port = free_port()
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait(30)


def test_with_redis_training_goes_on_while_the_control_service_starts_again(tmp_path: Path) -> None:
    write_job(tmp_path)
    with (
        redis(tmp_path) as address,
        own_cluster(environment={"RAY_REDIS_ADDRESS": address}) as cluster,
        started(cluster, tmp_path, "job.py", *FEW, "--name", "mine", "--respawn") as job,
    ):
        folder = tmp_path / "runs" / "mine"
        trains(folder)
        cluster.signal_control(signal.SIGKILL)
        before = rounds(folder)
        soon(lambda: rounds(folder) > before + 1, "training does not go on")
        cluster.restart_control()
        before = rounds(folder)
        soon(lambda: rounds(folder) > before + 1, "training does not go on afterwards")
        stopped = run("stop", "mine", cwd=tmp_path)
        assert stopped.returncode == 0, stopped.stderr
        assert job.wait(60) == 0, output(tmp_path)
    assert "does not answer" not in output(tmp_path)
    assert not [line for line in read_journal(folder / JOURNAL) if line["what"] == "actor-died"]


# -- an autoscaler -------------------------------------------------------------------------------


def autoscaling(nodes: RayNodes, port: int) -> dict[str, str]:
    """Start a head that adds nodes with one seat each, up to eight. Returns the environment of
    commands that join it."""
    types = {
        "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        "seats": {
            "resources": {"CPU": 0, "seat": 1, "object_store_memory": 80 << 20},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 8,
        },
    }
    config = {
        "cluster_name": "seats",
        "max_workers": 8,
        "idle_timeout_minutes": 5,
        "upscaling_speed": 10.0,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": f"127.0.0.1:{port}",
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "auth": {},
        "docker": {},
        "available_node_types": types,
        "head_node_type": "ray.head.default",
        **{name: [] for name in ("initialization_commands", "setup_commands")},
        **{name: [] for name in ("head_setup_commands", "worker_setup_commands")},
        **{name: [] for name in ("head_start_ray_commands", "worker_start_ray_commands")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
    }
    file = nodes.folder / "autoscaling.json"
    file.write_text(json.dumps(config))
    nodes.start(
        *("--head", "--node-ip-address", "127.0.0.1", "--port", port, "--num-cpus", 2),
        *("--temp-dir", nodes.folder, "--object-store-memory", 80 << 20),
        *(f"--autoscaling-config={file}", "--include-dashboard=false"),
        environment={"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"},
    )
    nodes.until_listening("127.0.0.1", port)
    return environment(RAY_AUTH_MODE="disabled")


def test_an_autoscaler_adds_nodes_for_workers_that_wait(tmp_path: Path) -> None:
    write_job(tmp_path)
    with ray_nodes() as nodes:
        port = free_port()
        env = autoscaling(nodes, port)
        words = [
            *(sys.executable, "-m", "polyrhythm", "train", "job.py", "--engine", "ray"),
            *("--address", f"127.0.0.1:{port}", "--workers", "2..8", "--servers", "1"),
            *("--resources-per-worker", "CPU=0,seat=1", "--name", "mine"),
        ]
        with (tmp_path / "output").open("wb") as file:
            job = subprocess.Popen(words, cwd=tmp_path, stdout=file, stderr=file, env=env)
        try:
            folder = tmp_path / "runs" / "mine"
            soon(lambda: (folder / JOURNAL).exists(), "the job does not begin")

            def joined() -> set[str]:
                lines = read_journal(folder / JOURNAL)
                return {line["name"] for line in lines if line["what"] == "joined"}

            soon(lambda: len(joined()) == 8, "eight workers do not join", 300.0)
            stopped = run("stop", "mine", cwd=tmp_path)
            assert stopped.returncode == 0, stopped.stderr
            assert job.wait(60) == 0, output(tmp_path)
        finally:
            job.kill()
            job.wait(30)
            shutil.copytree(nodes.folder / "session_latest" / "logs", tmp_path / "logs")
    assert not users_of(nodes.folder), "processes of the cluster are left"


# -- nodes that share nothing --------------------------------------------------------------------


def test_nodes_with_addresses_and_folders_of_their_own_run_a_job(tmp_path: Path) -> None:
    """The second node does not have the folder of the job."""
    write_job(tmp_path)
    with network(2) as hosts, ray_nodes() as nodes:
        enter = [["ip", "netns", "exec", host.namespace] for host in hosts]
        common = ("--num-cpus", 2, "--object-store-memory", 80 << 20)
        nodes.start(
            *("--head", "--node-ip-address", hosts[0].address, "--port", 6379, *common),
            *("--temp-dir", nodes.folder, "--include-dashboard=false"),
            before=enter[0],
        )
        nodes.until_listening(hosts[0].address, 6379, before=enter[0])
        hidden = ["sh", "-c", f'mount -t tmpfs none {tmp_path} && exec "$@"', "sh"]
        nodes.start(
            *("--address", f"{hosts[0].address}:6379"),
            *("--node-ip-address", hosts[1].address, *common),
            before=[*enter[1], *hidden],
        )
        words = [
            *(*enter[0], sys.executable, "-m", "polyrhythm", "train", "job.py", "--engine", "ray"),
            *("--address", f"{hosts[0].address}:6379", "--workers", "2", "--servers", "2"),
            *("--start-timeout", "90", "--rounds", "30", "--name", "mine"),
        ]
        ended = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment(RAY_AUTH_MODE="disabled"),
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert ended.returncode == 0, ended.stderr + (nodes.folder / "log").read_text()
    assert "are not encrypted" in ended.stderr
    folder = tmp_path / "runs" / "mine"
    assert (folder / "model.safetensors").is_file(), "the model came to the node of the command"
    lines = list(read_journal(folder / JOURNAL))
    assert "tcp" in {line["link"] for line in lines if line["what"] == "linked"}, lines


# -- Ray jobs ------------------------------------------------------------------------------------


def test_a_ray_job_with_a_working_dir_brings_the_modules_beside_the_file(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "beside.py").write_text("VALUE = 7\n")
    (project / "job.py").write_text(f"import beside\n{JOB}")
    port = free_port()
    with own_cluster(include_dashboard=True, dashboard_port=port):
        words = [
            *(str(Path(sys.executable).with_name("ray")), "job", "submit"),
            *("--address", f"http://127.0.0.1:{port}", "--working-dir", str(project), "--"),
            *(sys.executable, "-m", "polyrhythm", "train", "job.py", "--engine", "ray"),
            *("--workers", "1", "--servers", "1", "--rounds", "5"),
        ]
        ended: list[subprocess.CompletedProcess[str]] = []

        def was_taken() -> bool:
            """Whether Ray has taken the job. It takes none until an agent of the node has begun."""
            done = subprocess.run(
                words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
            )
            ended.append(done)
            return not done.returncode or "No available agent" not in done.stderr

        soon(was_taken, "the node has no agent")
        assert ended[-1].returncode == 0, ended[-1].stdout + ended[-1].stderr
        assert "5 rounds" in ended[-1].stdout, ended[-1].stdout


# -- Ray Data --------------------------------------------------------------------------------------

READS = """
import ray
import torch


def main(worker):
    model = torch.nn.Linear(1, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    points = ray.data.range(64, override_num_blocks=1)
    for batch in worker.batches(points, batch_size=8):
        print("points", *batch["id"].tolist())
        model(batch["id"].float().unsqueeze(1) / 64).mean().backward()
        optimizer.step()
"""


def test_the_workers_divide_a_data_set_of_ray(tmp_path: Path) -> None:
    """The cluster is one of its own, because an actor of Ray Data stays on it."""
    (tmp_path / "job.py").write_text(READS)
    free = ("--resources-per-worker", "CPU=0.5", "--resources-per-server", "CPU=0.5")
    few = ("--workers", 2, "--servers", 1, "--rounds", 3, "--name", "mine")
    with own_cluster() as cluster:
        ended = subprocess.run(
            command(cluster, "job.py", *few, *free),
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ended.returncode == 0, ended.stderr
    assert "the points of a ray.data.Dataset have no numbers" in ended.stderr
    logs = [log_file(tmp_path / "runs" / "mine", f"worker-{number}") for number in (0, 1)]
    read = [
        [int(word) for word in line.split()[1:]]
        for log in logs
        for line in log.read_text().splitlines()
        if line.startswith("points ")
    ]
    assert len(read) >= 6 and all(batch == list(range(batch[0], batch[0] + 8)) for batch in read)
    firsts = [batch[0] for batch in read]
    assert len(set(firsts)) == len(firsts), "two workers got the same points"


# -- operators and workers from elsewhere ----------------------------------------------------------

CONNECTED = """
import sys
import ray
import torch


@ray.remote(num_cpus=0)
def train(address, secret):
    import polyrhythm as pr

    with pr.connect(address, secret_file=secret, name="task", quiet=True) as worker:
        model = torch.nn.Linear(2, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(5):
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step(points=4)
    return "trained"


ray.init(sys.argv[1], log_to_driver=False, logging_level="critical")
print(ray.get(train.remote(sys.argv[2], sys.argv[3])))
"""


def reached_at(folder: Path) -> str:
    lines = read_journal(folder / JOURNAL)
    (listening,) = [line for line in lines if line["what"] == "listening"]
    return f"{listening['host']}:{listening['port']}"


def test_commands_reach_a_job_on_the_cluster_whose_folder_is_elsewhere(
    tmp_path: Path, s3_url: str
) -> None:
    """The cluster has the credentials of the store, unlike the shared one."""
    write_job(tmp_path)
    words = ("job.py", *FEW, "--name", "mine", "--store", s3_url)
    with own_cluster() as cluster, started(cluster, tmp_path, *words) as job:
        folder = tmp_path / "runs" / "mine"
        trains(folder)
        commands_reach(reached_at(folder), folder / "secret", tmp_path / "operator")
        assert job.wait(60) == 0, output(tmp_path)


def test_workers_outside_ray_and_tasks_of_ray_join_a_job(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    write_job(tmp_path)
    (tmp_path / "connected.py").write_text(CONNECTED)
    with started(ray_cluster, tmp_path, "job.py", *FEW, "--name", "mine") as job:
        folder = tmp_path / "runs" / "mine"
        trains(folder)
        address, secret = reached_at(folder), folder / "secret"
        task = subprocess.run(
            [sys.executable, "connected.py", ray_cluster.address, address, str(secret)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert task.stdout == "trained\n", task.stderr
        words = ["worker", "job.py", "--connect", address, "--secret-file", str(secret)]
        outside = subprocess.Popen(
            [sys.executable, "-m", "polyrhythm", *words, "--name", "outside"],
            cwd=tmp_path,
            env={**os.environ, **environment()},
            stderr=subprocess.DEVNULL,
        )
        try:

            def trained() -> set[str]:
                """The numbers of the workers that have contributed."""
                lines = read_journal(folder / JOURNAL)
                return {name for line in lines for name in line.get("workers", ())}

            soon(lambda: trained() == {"0", "1", "2"}, "others do not train")
            stopped = run("stop", "mine", cwd=tmp_path)
            assert stopped.returncode == 0, stopped.stderr
            assert job.wait(60) == 0, output(tmp_path)
            assert outside.wait(60) == 0
        finally:
            outside.kill()
            outside.wait(30)
