"""Restarts processes that have died. `core/supervision.py` decides whether and when."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from polyrhythm.core.machine import Reason
from polyrhythm.core.supervision import Died, Respawn, Started, Trained
from polyrhythm.engines.engine import EngineRun
from polyrhythm.engines.processes import Child, Processes
from polyrhythm.engines.requests import ChildRequest, ReportLine, Told
from polyrhythm.observe.reasons import in_words


class Respawning:
    def __init__(
        self,
        processes: Processes,
        run: EngineRun,
        say: Callable[[str], None],
        start: Callable[[ChildRequest], object],
    ) -> None:
        """`start` is called for every process that must be started, with its request."""
        self._processes = processes
        self._run = run
        self._say = say
        self._start = start
        self._respawn = Respawn()
        self._due: dict[str, tuple[int, Child]] = {}
        """Per name of a process: when to start it again, and the child that died."""

    def __bool__(self) -> bool:
        """Whether any process is planned to be started again."""
        return bool(self._due)

    def started(self, name: str) -> None:
        self._respawn.on(Started(name), time.monotonic_ns())

    def contributed(self, name: str) -> None:
        self._respawn.on(Trained(name), time.monotonic_ns())

    def plan(self, child: Child) -> Reason | None:
        """Plan to start this process again. If it died too often, the process is given up, and the
        reason is returned."""
        name = child.request.name
        decision = self._respawn.on(Died(name, child.how), time.monotonic_ns())
        assert decision is not None
        reason = decision.reason
        self._record(reason.code, reason.fields)
        if decision.at_ns is None:
            return reason
        self._say(in_words(reason))
        self._due[name] = (decision.at_ns, child)
        return None

    def cancel(self) -> None:
        self._due.clear()

    def start_due(self) -> None:
        """Start the processes whose time has come."""
        now_ns = time.monotonic_ns()
        for name, (at_ns, child) in list(self._due.items()):
            if at_ns <= now_ns:
                del self._due[name]
                self._processes.forget(child)
                self._start(child.request)
                self._run.respawned[name] = self._run.respawned.get(name, 0) + 1
                self._run.worker_failures.pop(name, None)
                self._record("respawned", {"name": name})
                self._say(f"{name} was started again")

    def _record(self, what: str, fields: Mapping[str, Any]) -> None:
        """Add a line to the journal. The engine sends it to the lead's process, which writes the
        journal."""
        lead = self._processes.lead
        if lead is not None:
            self._processes.tell(lead, Told(note=ReportLine(what, dict(fields))))
