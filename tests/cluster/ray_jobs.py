"""A job on a Ray cluster that a test runs and disturbs, and what it leaves on the cluster."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.api.hosts import Here, child_requests
from polyrhythm.engines.choice import RAY, choose_engine
from polyrhythm.engines.engine import ClusterOptions, EngineRun, EngineWatch, Wanted
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.output import log_file
from polyrhythm.observe.runs import JOURNAL
from polyrhythm.wire.messages import JobSpec
from tests.cluster.processes import TORTURED
from tests.ray_cluster import RayCluster, soon

HEAVY = pytest.mark.skipif(
    not TORTURED, reason="under POLYRHYTHM_TORTURE: it takes long, or a cluster for itself"
)

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
        per_server: tuple[str, ...] = (),
        **settings: Any,
    ) -> EngineRun:
        """Run the job. Each step is a condition, and what to do when it holds. After the last step the
        job is stopped."""
        file = self.folder / "job.py"
        file.write_text(JOB)
        job = JobSpec(job=uuid.uuid4().hex[:8], name=str(file), path=str(file), **settings)
        here = Here.of(job, None, None, most)
        requests = child_requests(job, self.folder, here=here)
        left = list(steps)

        def wanted() -> Wanted:
            assert time.monotonic() < self.until_s, f"{len(left)} steps are left: {self.said}"
            if left and left[0][0]():
                left.pop(0)[1]()
            return Wanted.GO_ON if left else Wanted.STOP

        engine = choose_engine(RAY, ClusterOptions(self.cluster.address, per_worker, per_server))
        return engine.run(requests, EngineWatch(say=self.said.append, wanted=wanted))


def left_on(cluster: RayCluster) -> dict[str, object]:
    """What jobs have left on the cluster, which this process has joined."""
    import ray

    actors = ray._private.state.actors().values()
    groups = ray.util.placement_group_table().values()
    return {
        "actors": [each["Name"] for each in actors if each["State"] != "DEAD"],
        "groups": [each["name"] for each in groups if each["state"] != "REMOVED"],
        "processes": _processes(cluster),
    }


def _processes(cluster: RayCluster) -> list[str]:
    """Servers and workers whose output goes to files of the cluster. Their shared memory ends with
    them, because it has no name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            title = (process / "cmdline").read_bytes()
            output = os.readlink(process / "fd" / "1")
            if title.startswith(b"polyrhythm: ") and output.startswith(str(cluster.folder)):
                found.append(title.decode())
    return found


NOTHING: dict[str, object] = {"actors": [], "groups": [], "processes": []}


def command(cluster: RayCluster, *args: object) -> list[str]:
    """A command of polyrhythm that runs a job on the cluster."""
    options = ["--engine", RAY, "--address", cluster.address, *map(str, args)]
    return [sys.executable, "-m", "polyrhythm", "train", *options]


def environment(**more: str) -> dict[str, str]:
    """The environment of such a command."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


@contextmanager
def started(
    cluster: RayCluster, folder: Path, *args: object
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run such a command in the background, in this folder, until the end of the context. Its output
    goes to the file `output`."""
    with (folder / "output").open("wb") as output:
        program = subprocess.Popen(
            command(cluster, *args), cwd=folder, stdout=output, stderr=output, env=environment()
        )
    try:
        yield program
    finally:
        program.kill()
        program.wait(60)


def trains(folder: Path) -> None:
    """Wait until the job in this folder has folded rounds."""
    journal = folder / JOURNAL
    soon(lambda: journal.exists() and b'"rounds"' in journal.read_bytes(), "the job does not train")


def nothing_is_left(cluster: RayCluster) -> None:
    from polyrhythm.engines.ray_cluster import joined

    with joined(cluster.address, 0):
        soon(lambda: left_on(cluster) == NOTHING, "actors or groups are left")
