"""The interface between the supervision of a job and the place where its processes run.

`engines/supervisor.py` decides which processes are started, started again and ended. A *host*
starts them, carries messages between them and the supervisor, and reports how they end.
`engines/local.py` is the host that starts children of this machine.

*The supervisor needs only this interface.* A process that cannot reach the folder of the run sends
the contents of its files to the engine: lines of the journal and parts of the model in messages
(`engines/requests.py`), its output as `Printed`. `engines/records.py` writes them into the folder.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from polyrhythm.core.machine import Reason
from polyrhythm.engines.requests import ChildRequest, Told


@dataclass(frozen=True, slots=True)
class ProcessReported:
    """A process has reported something to its engine."""

    name: str
    told: Told


@dataclass(frozen=True, slots=True)
class Printed:
    """A process whose output does not go to its log in the folder of the run has printed this."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """A process has ended. Everything that it has sent and printed was reported before."""

    name: str
    status: int | None
    """The exit status; the negative number of the signal that killed the process; None if unknown. A
    process with an unknown status has failed if it has reported a failure."""
    how: str
    """How it ended, in words, such as `killed by SIGKILL`."""


@dataclass(frozen=True, slots=True)
class HostLost:
    """The host cannot start processes any more. Running processes may continue."""

    how: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """The host has noticed something, such as the death of a machine. The journal records it."""

    reason: Reason
    said: bool = True
    """Whether to show it to the user now."""


@dataclass(frozen=True, slots=True)
class MustLeave:
    """These processes must leave the job, because their machine will be removed soon."""

    names: Sequence[str]


HostEvent = ProcessReported | Printed | Exited | HostLost | Noticed | MustLeave


class ProcessHost(Protocol):
    """The processes of one job, by their names. No two processes of the same name run at the same
    time. Only the thread that runs the supervisor calls these methods, and none of them waits for a
    process, except `close`."""

    def open(self) -> None:
        """Prepare to start processes."""

    def start(self, request: ChildRequest) -> None:
        """Start a process. A process with the same name must have ended before. The host fills in
        what only it knows: the device of the worker (`device`), the address on which the process
        listens (`host`), and the folder in which it may write (`folder`). Raises JobFailed if
        processes cannot be started any more."""

    def prepare(self, name: str) -> None:
        """The process with this name has ended, and `start` will follow soon. Begin slow
        preparations that need no request, such as finding a place for the process."""

    def tell(self, name: str, told: Told) -> None:
        """Send a message to a process. A message to a process that has ended is dropped."""

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send SIGTERM or SIGKILL to a process, unless it has ended."""

    def wait(self, timeout_s: float) -> Sequence[HostEvent]:
        """The events since the last call, in order. If there are none, wait for at most
        `timeout_s`. Raises JobFailed if a process could not be started."""

    def close(self) -> None:
        """Kill all processes that still run, and free what `open` has made."""


class Control(Protocol):
    """The process's end of the connection to its engine. Any thread may call `tell`. *When the
    engine is gone, the process ends.*"""

    def tell(self, told: Told) -> None:
        """Send a message to the engine."""

    def hear(self) -> Told:
        """Wait for the next message of the engine. Do not call this after `watch`."""

    def watch(self, handle: Callable[[Told], None] = lambda told: None) -> None:
        """From now on, `handle` gets the messages of the engine, on their own thread."""
