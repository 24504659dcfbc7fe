"""One job in the laboratory, of polyrhythm or of gloo, whose rounds are watched from outside."""

import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from benchmarks import readme
from benchmarks.network.hosts import Host, IdleTime
from polyrhythm.observe.journal import read_journal
from tests.commands.start import Process, start

HERE = Path(__file__).parent
PORT = 7000
START_S = 100.0
_LISTENS = re.compile(r"\bs(\d+) listens on")
BOUND_BY_LINKS = 0.3
"""A run counts as bound by links if at least this share of the processors' time was idle."""


class RunFailed(Exception):
    """A process of the run has ended, or does not do what it should in time."""


@dataclass(frozen=True)
class Setting:
    """Where the processes of a job are, and its flags. The lead's server is on host 0."""

    model: str
    servers: Sequence[int]
    """The host of each server."""
    workers: Sequence[int]
    flags: Sequence[str] = ()
    without: Sequence[str] = ()
    """The parts of polyrhythm that are taken out: see `without/sitecustomize.py`."""


@dataclass(frozen=True)
class Window:
    """Some rounds of a run, and what was measured in them."""

    rounds_s: list[float]
    idle: float

    @property
    def rounds_per_s(self) -> float:
        return 1 / statistics.median(self.rounds_s)

    def told(self) -> dict[str, Any]:
        return {
            "rounds": len(self.rounds_s),
            "rounds_per_s": round(self.rounds_per_s, 4),
            "rounds_s": [round(seconds, 4) for seconds in self.rounds_s],
            "idle": round(self.idle, 3),
            "bound_by_links": self.idle >= BOUND_BY_LINKS,
        }


class Run:
    """Processes on hosts, and the times at which their rounds ended."""

    def __init__(self, folder: Path, idle: IdleTime, members: int) -> None:
        self.folder = folder
        self.processes: dict[str, Process] = {}
        self._idle = idle
        self._members = members

    def start(self, host: Host, name: str, *words: str) -> None:
        """Start a `polyrhythm` command, by a fork of a process that has imported torch."""
        with self._outputs(name) as (out, err):
            self.processes[name] = start(
                *words, cwd=self.folder, stdout=out, stderr=err, network=host.namespace
            )

    def start_python(self, host: Host, name: str, *words: str) -> None:
        with self._outputs(name) as (out, err):
            self.processes[name] = subprocess.Popen(
                [*host.inside, sys.executable, *words],
                cwd=self.folder,
                stdout=out,
                stderr=err,
                text=True,
            )

    @contextlib.contextmanager
    def _outputs(self, name: str) -> Iterator[tuple[IO[str], IO[str]]]:
        with (
            (self.folder / f"{name}.out").open("w") as out,
            (self.folder / f"{name}.err").open("w") as err,
        ):
            yield out, err

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text(errors="replace")

    def until(self, done: Callable[[], Any], what: str, within_s: float = START_S) -> Any:
        until_s = time.monotonic() + within_s
        while not (found := done()):
            for name, process in self.processes.items():
                if process.poll():
                    raise RunFailed(f"{name} ended, {what} was awaited: {self.said(name)[-600:]}")
            if time.monotonic() > until_s:
                said = "; ".join(self.said(name)[-300:] for name in self.processes)
                raise RunFailed(f"not within {within_s:.0f} s: {what}. {said}")
            time.sleep(0.05)
        return found

    def ends(self) -> list[float]:
        """When each round ended that all members have finished: when the last of them did."""
        told = []
        for path in sorted(self.folder.glob("*.steps")):
            text = path.read_text()
            told.append([float(line) for line in text[: text.rfind("\n") + 1].split()])
        if len(told) < self._members:
            return []
        return [max(times) for times in zip(*told, strict=False)]

    def measure(self, rounds: int, within_s: float, *, skip: int = 1) -> Window:
        """Wait for this many more rounds. `skip`: so many rounds before them are not counted."""
        first = len(self.ends()) + skip
        self.until(
            lambda: len(self.ends()) > first + rounds,
            f"{rounds} rounds after round {first}",
            within_s,
        )
        ends = self.ends()[first : first + rounds + 1]
        between = [late - early for early, late in pairwise(ends)]
        return Window(between, self._idle.between(ends[0], ends[-1]))

    def rounds_between(self, began_s: float, ended_s: float) -> list[float]:
        """How long the rounds took that ended between these times."""
        return [late - early for early, late in pairwise(self.ends()) if began_s < late <= ended_s]

    def noted(self, *what: str) -> list[dict[str, Any]]:
        """The lines of the journal with one of these names."""
        path = self.folder / "runs" / "run" / "journal.jsonl"
        lines = list(read_journal(path)) if path.exists() else []
        return [line for line in lines if line["what"] in what]

    def serve(self, host: Host, lead: Host) -> None:
        """Start one more server. The lead chooses its number."""
        name = f"server-on-{host.number}"
        self.start(
            host,
            name,
            *("server", "--connect", f"{lead.address}:{PORT}", "--host", host.address),
            "--insecure",
        )

    def hosts_of_servers(self) -> dict[int, int]:
        """The host of each server, by its number."""
        found = {}
        for name in self.processes:
            listens = _LISTENS.search(self.said(name))
            if listens is not None and name.startswith("server-on-"):
                found[int(listens[1])] = int(name.removeprefix("server-on-"))
        return found


@contextlib.contextmanager
def _run(members: int) -> Iterator[Run]:
    folder = Path(tempfile.mkdtemp(prefix="polylab-"))
    with IdleTime() as idle:
        run = Run(folder, idle, members)
        try:
            yield run
        finally:
            _end(run.processes)
            shutil.rmtree(folder, ignore_errors=True)


def _end(processes: dict[str, Process]) -> None:
    """End all processes: those of a job leave by themselves when its lead is told to end."""
    for name, process in processes.items():
        if name in ("train", "gloo-0"):
            process.send_signal(signal.SIGTERM)
    until_s = time.monotonic() + 10
    for process in processes.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, until_s - time.monotonic()))
    for process in processes.values():
        process.kill()
        process.wait()


def _environment(without: Sequence[str] = ()) -> None:
    """Let the processes of a run find the benchmarks and this package, and use one thread each."""
    taken_out = (str(HERE / "without"),) if without else ()
    here = (str(readme.ROOT), str(readme.ROOT / "src"))
    os.environ["PYTHONPATH"] = os.pathsep.join((*here, *taken_out))
    os.environ["POLYRHYTHM_WITHOUT"] = " ".join(without)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


@contextlib.contextmanager
def polyrhythm(hosts: Sequence[Host], setting: Setting) -> Iterator[Run]:
    """Start a job, and yield when all workers have made a step."""
    _environment(setting.without)
    lead = hosts[setting.servers[0]]
    with _run(len(setting.workers)) as run:
        os.environ["POLYRHYTHM_LABORATORY"] = str(run.folder)
        servers = str(len(setting.servers))
        counts = ("--servers", servers, "--local-servers", "1", "--local-workers", "0")
        run.start(
            lead,
            "train",
            *("train", str(HERE / "job.py"), *counts, "--workers", str(len(setting.workers))),
            *("--host", lead.address, "--port", str(PORT), "--insecure", "--name", "run"),
            *("--set", f"model={setting.model}", "--max-seconds", "3000", "--threads", "1"),
            *setting.flags,
        )
        run.until(lambda: run.noted("server-joined"), "the lead is there")
        for host in setting.servers[1:]:
            run.serve(hosts[host], lead)
        for number, host in enumerate(setting.workers):
            run.start(
                hosts[host],
                f"worker-{number}",
                *("worker", str(HERE / "job.py"), "--connect", f"{lead.address}:{PORT}"),
                *("--name", f"worker-{number}", "--threads", "1"),
            )
        run.until(run.ends, "the first round", START_S)
        yield run


@contextlib.contextmanager
def gloo(hosts: Sequence[Host], model: str) -> Iterator[Run]:
    """Start an all-reduce of the same size on each host."""
    _environment()
    with _run(len(hosts)) as run:
        os.environ["POLYRHYTHM_LABORATORY"] = str(run.folder)
        for rank, host in enumerate(hosts):
            run.start_python(
                host,
                f"gloo-{rank}",
                *("-m", "benchmarks.network.gloo_peer", model),
                *(str(rank), str(len(hosts)), f"{hosts[0].address}:{PORT}"),
            )
        run.until(run.ends, "the first round", START_S)
        yield run
