"""A random schedule of servers that join, leave and die while slices move under load: every
acknowledged contribution is in every slice once.

With replicas any server but the lead's is killed, also in the middle of a move, at either of its ends.
Without replicas a server is killed only while it still copies its first slices. The tests try a
schedule of 10 faults with and without replicas; with POLYRHYTHM_TORTURE=N they try N of each.
"""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.job_workers import JobWorkers
from tests.cluster.ledger_job import FEW, JOB, SEEDS, finish, flags, gather, say_how_again
from tests.cluster.processes import Command
from tests.cluster.test_moving_servers import until_copied
from tests.commands.start import Process, start

FAULTS = 10
FEWEST, MOST = 3, 5
"""The numbers of servers between two faults. The model has six slices, so every server gets some."""


ALWAYS = ("join", "drain", "replace", "kill-worker", "kill-joiner")
WITH_REPLICAS = ("kill", "kill-source", "kill-target")


class MovingServers:
    def __init__(self, job_workers: JobWorkers, rng: random.Random) -> None:
        self.job_workers = job_workers
        self._rng = rng
        self._started: dict[int, Process] = {}
        """The servers that were started by command, by their process numbers."""
        self.kinds = {
            "join": self.join,
            "drain": lambda: self._until_left(self._leave(self._one())),
            "replace": self._replace,
            "kill-worker": self._kill_worker,
            "kill-joiner": self._kill_joiner,
            "kill": lambda: self._kill(self._one()),
            "kill-source": lambda: self._kill_in_move(source=True),
            "kill-target": lambda: self._kill_in_move(source=False),
        }

    @property
    def pids(self) -> dict[int, int]:
        """The process of every server that is in the job."""
        found: dict[int, int] = {}
        for line in self.job_workers.lines:
            if line["what"] == "server-joined":
                found[line["server"]] = line["pid"]
            elif line["what"] in ("server-lost", "drained"):
                found.pop(line["server"], None)
        return found

    def begin_fault(self, kind: str) -> None:
        """Begin a fault, and wait until the servers have come, left or died."""
        if len(self.pids) <= FEWEST and kind != "kill-joiner":
            self.join()
        elif len(self.pids) >= MOST and "join" in kind:
            self.kinds["drain"]()
        if kind in WITH_REPLICAS:
            until_copied(self.job_workers)
        self.kinds[kind]()

    # -- servers that come and go --------------------------------------------------------------

    def join(self, **environ: str) -> Process:
        process = self.job_workers.command.serve(**environ)
        self._started[process.pid] = process
        # the server may have died again before the journal is read
        lines = self.job_workers.lines
        self._until(lambda: any(line.get("pid") == process.pid for line in lines), "a server joins")
        return process

    def _one(self, *others: int) -> int:
        return self._rng.choice(sorted(self.pids.keys() - {0, *others}))

    def _leave(self, server: int) -> Process:
        """Drain a server: by a signal if it was started by command, or by an operator. Returns the
        process that ends when the server has left."""
        process = self._started.get(self.pids[server])
        if process is not None and self._rng.random() < 0.5:
            os.kill(process.pid, signal.SIGTERM)
            return process
        return start("drain", "run", f"s{server}", cwd=self.job_workers.command.cwd)

    def _until_left(self, process: Process) -> None:
        self._until(lambda: process.poll() is not None, "the server has left")
        assert process.poll() == 0

    def _replace(self) -> None:
        leaves = self._leave(self._one())
        self.join()
        self._until_left(leaves)

    def _kill_worker(self) -> None:
        """Kill a worker while a server moves its slices."""
        leaves = self._leave(self._one())
        self.job_workers.begin_fault("kill")
        self._until_left(leaves)
        self.job_workers.until_calm()

    # -- servers that die ----------------------------------------------------------------------

    def _kill_joiner(self) -> None:
        """A server joins, and dies when it has copied its first slice."""
        file = self.job_workers.command.cwd / "crash-at"
        number = max(line.get("server", 0) for line in self.job_workers.lines) + 1
        file.write_text(f"s{number} took State")
        process = self.join(POLYRHYTHM_CRASH_AT=str(file))
        self._until_lost(number, process.pid)

    def _kill(self, server: int) -> None:
        pid = self.pids[server]
        os.kill(pid, signal.SIGKILL)
        self._until_lost(server, pid)

    def _until_lost(self, server: int, pid: int) -> None:
        self._until(lambda: self.pids.get(server) != pid, f"s{server} is lost")
        if pid not in self._started:
            self._until(lambda: server in self.pids, f"s{server} is started again")

    def _kill_in_move(self, *, source: bool) -> None:
        """Drain a server, and kill it or another one before it has moved all of its slices."""
        drained = self._one()
        victim = drained if source else self._one(drained)
        begun = len(self.job_workers.lines)
        leaves = start("drain", "run", f"s{drained}", cwd=self.job_workers.command.cwd)
        self._until(lambda: "draining" in self._told(begun), f"s{drained} is drained")
        if victim in self.pids:  # on a quick machine it may have left already
            self._kill(victim)
        self._until_left(leaves)

    def _told(self, begun: int) -> set[str]:
        return {line["what"] for line in self.job_workers.lines[begun:]}

    def _until(self, done: Callable[[], bool], what: str) -> None:
        self.job_workers.until(done, what)


@pytest.mark.guarantee("servers-replaced", k=(0, 1))
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("sync", "replicas"), [("bsp", 0), ("asp", 1)], ids=["bsp-0", "asp-1"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_contribution_is_lost_while_servers_join_leave_and_die(
    tmp_path: Path, sync: str, replicas: int, seed: int, request: pytest.FixtureRequest
) -> None:
    say_how_again(request, seed)
    rng = random.Random(f"moving {sync} {replicas} {seed}")
    kinds = [*ALWAYS, *WITH_REPLICAS] if replicas else ALWAYS
    faults = [kind for _ in range(2) for kind in rng.sample(kinds, len(kinds))][:FAULTS]
    print(f"faults: {' '.join(faults)}")
    more = ["--workers", 3, "--servers", 3, "--replicas", replicas]
    with Command(JOB, *flags(sync, FEW), *more, cwd=tmp_path) as command:
        job_workers = gather(command, rng, workers=3)
        servers = MovingServers(job_workers, rng)
        servers.join()
        for fault in faults:
            servers.begin_fault(fault)
            job_workers.until_progress(rng.randrange(1, 6))
        finish(job_workers)
