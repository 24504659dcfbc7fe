"""The ledger on a Ray cluster: 20 faults after which processes are started again as new actors. No
acknowledged contribution is lost and none is counted twice.

Workers are killed by the system, by `ray.kill` and with their node, servers by the system and by
`ray.kill`. POLYRHYTHM_TORTURE is the number of schedules.
"""

import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from polyrhythm.engines.choice import RAY
from tests.cluster.job_workers import Fault, JobWorkers
from tests.cluster.ledger_job import MANY, SEEDS, finish, flags, say_how_again
from tests.cluster.processes import Command
from tests.cluster.ray_jobs import HEAVY, nothing_is_left
from tests.cluster.test_moving_ledger import MovingServers
from tests.cluster.test_moving_servers import until_copied
from tests.ray_cluster import RayCluster

pytestmark = [
    *(pytest.mark.cluster, pytest.mark.ray, pytest.mark.slow),
    pytest.mark.timeout(900, func_only=True),
    HEAVY,
]

JOB = Path(__file__).parent / "jobs" / "ray_ledger.py"
SEAT = {"num_cpus": 0, "resources": {"seat": 1}}
"""A node on which only worker-0 runs."""
FAULTS = [
    *["kill-worker"] * 5,
    *["ray-kill-worker"] * 5,
    *["kill-server"] * 3,
    *["ray-kill-server"] * 3,
    *["kill-node"] * 4,
]


class Restarts:
    def __init__(
        self, job_workers: JobWorkers, cluster: RayCluster, nodes: ExitStack, rng: random.Random
    ) -> None:
        self._job_workers = job_workers
        self._servers = MovingServers(job_workers, rng)
        self._cluster = cluster
        self._nodes = nodes
        self._rng = rng
        self._raylet, _ = nodes.enter_context(cluster.node(**SEAT))

    def begin(self, kind: str) -> None:
        if kind.endswith("server"):
            self._kill_server(through_ray=kind.startswith("ray"))
            return
        workers = self._job_workers
        if kind == "kill-node":
            workers.until_calm()
            workers.begin("worker-0", self._kill_node())
            return
        if len(workers.present()) < 2:
            workers.until_calm()
        name = self._rng.choice(workers.present())
        if kind == "kill-worker":
            workers.begin(name, workers._kill(name))
        else:
            workers.begin(name, self._ray_kill(name))

    def _kill_server(self, *, through_ray: bool) -> None:
        """The servers have copies of each other's slices from the beginning. After the first, each is
        killed when these are complete again."""
        if any(line["what"] == "server-lost" for line in self._job_workers.lines):
            until_copied(self._job_workers)
        pids = self._servers.pids
        server = self._rng.choice(sorted(pids.keys() - {0}))
        if through_ray:
            ray_kill(f"s{server}")
        else:
            os.kill(pids[server], signal.SIGKILL)
        self._job_workers.until(
            lambda: self._servers.pids.get(server, pids[server]) != pids[server],
            f"s{server} is started again",
        )

    def _ray_kill(self, name: str) -> Fault:
        pid = self._job_workers.pid_of(name)
        ray_kill(name)
        yield from self._back(name, pid)

    def _kill_node(self) -> Fault:
        pid = self._job_workers.pid_of("worker-0")
        os.kill(self._raylet, signal.SIGKILL)
        self._raylet, _ = self._nodes.enter_context(self._cluster.node(**SEAT))
        yield from self._back("worker-0", pid)

    def _back(self, name: str, pid: int) -> Fault:
        while self._job_workers.pid_of(name) in (pid, 0):
            yield
        yield from self._job_workers._contributes(name)


def ray_kill(name: str) -> None:
    """Kill the newest actor of a process, as an operator of the cluster does."""
    import ray

    found = [
        actor
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["name"] == f"run: {name}" or actor["name"].startswith(f"run: {name} (")
    ]
    (actor,) = found
    ray.kill(ray.get_actor(actor["name"], actor["namespace"]))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_contribution_is_lost_or_doubled_by_20_restarts(
    ray_cluster: RayCluster, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    from polyrhythm.engines.ray_cluster import joined

    say_how_again(request, seed)
    rng = random.Random(f"ray {seed}")
    where = ("--engine", RAY, "--address", ray_cluster.address, "--set", f"folder={tmp_path}")
    places = ("--resources-per-worker", "1:CPU=0,seat=1", "--resources-per-worker", "CPU=0.1")
    many = ("--workers", 3, "--servers", 3, "--replicas", 1)
    free = ("--resources-per-server", "CPU=0.1")
    with ExitStack() as nodes, joined(ray_cluster.address, 0):
        command = nodes.enter_context(
            Command(
                *(JOB, *flags("asp", MANY), *where, *places, *many, *free),
                cwd=tmp_path,
                trace=False,
                fresh=True,
            )
        )
        job_workers = JobWorkers(command, rng)
        restarts = Restarts(job_workers, ray_cluster, nodes, rng)
        job_workers.until(lambda: len(job_workers.books) == 3, "all 3 train")
        job_workers.until_progress(10)
        for fault in rng.sample(FAULTS, len(FAULTS)):
            print(fault)
            restarts.begin(fault)
            if rng.random() < 0.5:
                job_workers.until_calm()
            job_workers.until_progress(rng.randrange(1, 6))
        finish(job_workers)
    nothing_is_left(ray_cluster)
