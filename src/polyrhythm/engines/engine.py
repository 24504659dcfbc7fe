"""The interface between commands and engines: an engine runs the processes of one job until the job
ends.

A command builds one `ChildRequest` for every server and worker that it wants to start, chooses an
engine by its name, and reads the journal for everything else. So another engine, such as one that
starts processes on a cluster, changes no command. An engine that starts processes is a host of
processes (`engines/host.py`) for the supervisor (`engines/supervisor.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from polyrhythm.engines.requests import ChildRequest
from polyrhythm.observe.journal import JournalPart
from polyrhythm.wire.messages import Address


@dataclass(slots=True)
class EngineRun:
    """How the processes of a job ended."""

    ended: str | None = None
    """The lead's report of how the job ended; None if there was no report."""
    failed: str | None = None
    """Why the job failed; None if it did not."""
    worker_failures: dict[str, str] = field(default_factory=dict)
    """Per worker that failed and was not started again: why it failed."""
    respawned: dict[str, int] = field(default_factory=dict)
    """How often each process was started again."""
    lost: int = 0
    """How many servers died and were not started again."""
    lead_lost: bool = False
    """Whether the lead died or became silent, so it could not report how the job ended."""
    interrupted: int = 0
    """The number of the signal that stopped the job; 0 if none did."""
    at_once: bool = False
    """Whether a second signal ended the job at once."""
    unrecorded: str | None = None
    """Why lines are missing in the journal's file; None if it is complete."""


class Wanted(Enum):
    """What a command wants its running job to do."""

    GO_ON = "go on"
    STOP = "stop in order"
    STOP_NOW = "stop at once"


@dataclass(frozen=True, slots=True)
class EngineWatch:
    """What a command does while its job runs. `say` shows one line to the user. `tick` is called a
    few times a second. `listening` is called with the address of the lead. `record` adds text to
    the log of a process without showing it, because the user sees it elsewhere. `wanted` is called
    a few times a second, and says whether to stop the job. `hand` is called with lines of the
    journal that may be missing from its file."""

    say: Callable[[str], None]
    tick: Callable[[], None] = lambda: None
    listening: Callable[[Address], None] = lambda address: None
    record: Callable[[str, str], None] = lambda name, text: None
    wanted: Callable[[], Wanted] = lambda: Wanted.GO_ON
    hand: Callable[[JournalPart], None] = lambda part: None


class Engine(Protocol):
    def run(self, requests: Sequence[ChildRequest], watch: EngineWatch) -> EngineRun:
        """Run these servers and workers of one job until the job ends. The first request is for the
        server in which the lead runs. Raises PolyrhythmError if the job cannot start."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a job uses a cluster (`--engine ray`). `address`: that of the cluster; None: the cluster of
    this machine. `per_worker`, `per_server`: what each process asks for (`core/cluster.py`).
    `threads`: how many threads torch uses in each worker; None: as many as it has CPUs. `detach`:
    whether the job goes on when its command has ended."""

    address: str | None = None
    per_worker: tuple[str, ...] = ()
    per_server: tuple[str, ...] = ()
    threads: int | None = None
    detach: bool = False
