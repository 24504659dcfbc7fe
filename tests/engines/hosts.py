"""A host of processes that starts none: tests give it the events, and read what it was told."""

import signal
from dataclasses import dataclass, field
from pathlib import Path

from polyrhythm.engines.engine import EngineWatch
from polyrhythm.engines.host import HostEvent
from polyrhythm.engines.requests import ChildRequest, Told
from polyrhythm.engines.supervisor import Supervisor
from polyrhythm.wire.messages import JobSpec


@dataclass
class NoHost:
    started: list[ChildRequest] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    told: list[tuple[str, Told]] = field(default_factory=list)
    sent: list[tuple[str, signal.Signals]] = field(default_factory=list)
    events: list[HostEvent] = field(default_factory=list)

    def open(self) -> None:
        pass

    def start(self, request: ChildRequest) -> None:
        self.started.append(request)

    def prepare(self, name: str) -> None:
        self.prepared.append(name)

    def tell(self, name: str, told: Told) -> None:
        self.told.append((name, told))

    def signal(self, name: str, number: signal.Signals) -> None:
        self.sent.append((name, number))

    def wait(self, timeout_s: float) -> list[HostEvent]:
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        pass


def supervisor_of(
    job: JobSpec, run_dir: Path, said: list[str], *, workers: int = 1, servers: int = 1
) -> tuple[Supervisor, NoHost]:
    """A supervisor of a job, and its host. No process is started yet."""
    host, folder = NoHost(), str(run_dir)
    requests = [
        ChildRequest(role="server", number=number, name=f"s{number}", job=job, run_dir=folder)
        for number in range(servers)
    ]
    requests += [
        ChildRequest(role="worker", number=number, name=f"worker-{number}", job=job, run_dir=folder)
        for number in range(workers)
    ]
    return Supervisor(requests, host, EngineWatch(say=said.append)), host
