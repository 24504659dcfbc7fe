"""Faults of the servers of a running job, except the server that runs the lead.

A fault is a generator, as in `job_workers.py`. It ends when the job has recovered: the server is
back, and every slice has all of its copies again. Only one fault runs at a time, so at most one
server is missing.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.cutting import cut
from tests.cluster.job_workers import Fault, JobWorkers

LEADS = 0


class JobServers:
    """The servers of a job, except the one that runs the lead. `again`: whether the engine restarts
    a server that dies."""

    def __init__(self, job_workers: JobWorkers, rng: random.Random, *, again: bool = True) -> None:
        self.job_workers = job_workers
        self._rng = rng
        self._again = again
        self.pids = dict(enumerate(job_workers.command.servers()))
        self.kinds: dict[str, Callable[[int], Fault]] = {
            "kill-server": self.kill,
            "stop-server": self.stop,
            "pause-server": self.pause,
            "cut-servers": self.cut_from_another,
            "cut-lead": self.cut_from_lead,
        }

    def begin_fault(self, kind: str) -> None:
        """Wait until no other server is missing, then begin a fault of this kind."""
        job_workers = self.job_workers
        job_workers.until(lambda: not self._under_way(), "all servers are there")
        others = [n for n in self.pids if n != LEADS]
        self._rng.shuffle(
            others
        )  # a server that dies too often within seconds is not started again
        number = min(others, key=lambda n: self.told("server-lost", n))
        job_workers.begin(f"s{number}", self.kinds[kind](number))

    def _under_way(self) -> list[str]:
        return [name for name in self.job_workers.under_way if name.startswith("s")]

    def told(self, what: str, number: int) -> int:
        lines = self.job_workers.lines
        return sum(line["what"] == what and line.get("server") == number for line in lines)

    def last(self, what: str, number: int) -> int:
        """Return the index of the last journal line of this kind."""
        lines = self.job_workers.lines
        return max(
            at
            for at, line in enumerate(lines)
            if line["what"] == what and line.get("server") == number
        )

    # -- faults --------------------------------------------------------------------------------

    def kill(self, number: int) -> Fault:
        lost = self.told("server-lost", number)
        os.kill(self.pids[number], signal.SIGKILL)
        yield from self.is_missed(number, lost)

    def stop(self, number: int) -> Fault:
        """Stop the server until the lead removes it. When the server continues, its peers must
        refuse it."""
        lost, pid = self.told("server-lost", number), self.pids[number]
        os.kill(pid, signal.SIGSTOP)
        while self.told("server-lost", number) == lost:
            yield
        os.kill(pid, signal.SIGCONT)
        yield from self.is_missed(number, lost)

    def pause(self, number: int) -> Fault:
        """Stop the server with SIGSTOP, most likely for less than the suspicion time."""
        lost, pid = self.told("server-lost", number), self.pids[number]
        until_s = time.monotonic() + self._rng.uniform(0.02, 0.5)
        os.kill(pid, signal.SIGSTOP)
        while time.monotonic() < until_s:
            yield
        os.kill(pid, signal.SIGCONT)
        before = self.job_workers.acknowledged()
        while self.job_workers.acknowledged() < before + 10:
            yield
        if self.told("server-lost", number) > lost:
            yield from self.is_missed(number, lost)

    def cut_from_another(self, number: int) -> Fault:
        """Cut the link between two servers: the lead must remove one of them."""
        (other,) = (n for n in self.pids if n not in (number, LEADS))
        both = {n: self.told("server-lost", n) for n in (number, other)}
        assert cut(self.pids[number], self.pids[other]), "they are linked"
        while all(self.told("server-lost", n) == lost for n, lost in both.items()):
            yield
        (gone,) = (n for n, lost in both.items() if self.told("server-lost", n) > lost)
        yield from self.is_missed(gone, both[gone])

    def cut_from_lead(self, number: int) -> Fault:
        lost = self.told("server-lost", number)
        assert cut(self.pids[number], self.pids[LEADS]), "it is linked to the lead"
        yield from self.is_missed(number, lost)

    def crash(self, number: int, point: str, file: Path) -> Fault:
        """Let the server die when it reaches a named crash point."""
        lost = self.told("server-lost", number)
        aside = file.with_suffix(".new")
        aside.write_text(f"s{number} {point}")
        aside.rename(file)
        while file.exists():
            yield
        yield from self.is_missed(number, lost)

    def kill_and_crash(self, number: int, point: str, file: Path) -> Fault:
        """Kill the server, and let the process that replaces it die at a named crash point."""
        lost = self.told("server-lost", number)
        os.kill(self.pids[number], signal.SIGKILL)
        while self.told("server-lost", number) == lost:
            yield
        yield from self.crash(number, point, file)

    # -- recovering ----------------------------------------------------------------------------

    def is_missed(self, number: int, lost: int) -> Fault:
        """Wait until the lead has noticed the loss and the restarted server has caught up."""
        while self.told("server-lost", number) == lost:
            yield
        if not self._again:
            del self.pids[number]
            yield from self._copied(number, "server-lost")
            return
        while self.last("server-joined", number) < self.last("server-lost", number):
            yield
        known = set(self.pids.values())
        while len(new := [p for p in self.job_workers.command.servers() if p not in known]) != 1:
            yield
        self.pids[number] = new[0]
        yield from self._copied(number, "server-joined")

    def _copied(self, number: int, what: str) -> Fault:
        """Wait until every slice has all of its copies again, after the last journal line of this
        kind."""
        since = self.last(what, number)
        while not any(
            line["what"] == "copied" and line["learning"] == 0
            for line in self.job_workers.lines[since:]
        ):
            yield
