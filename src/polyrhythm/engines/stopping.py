"""How the processes of a job on this host are ended.

After a request (Ctrl-C, SIGTERM or `polyrhythm stop`), the lead ends the job when every worker has
left. After a failure, the lead ends the job at once. Processes that still run after a grace period
are killed.
"""

import signal
import time

from polyrhythm.engines.engine import EngineRun
from polyrhythm.engines.notices import first_line
from polyrhythm.engines.processes import Child, Processes
from polyrhythm.engines.requests import Told

_GRACE_S = 5.0
_HURRY_S = 1.0
"""Workers that have not ended after this time get another signal, and leave at once."""


class ProcessStop:
    def __init__(self, processes: Processes, run: EngineRun) -> None:
        self._processes = processes
        self._run = run
        self._since_s: float | None = None
        """When the engine began to end the processes; None if they should not end yet."""
        self._before_end = False
        """Whether the job is stopped before it reached a goal."""
        self.waits_for_workers = False
        """Whether the job is stopped in an orderly way: the lead ends it when the last worker has
        left."""
        self.saving = False
        """Whether the lead has reported that it is saving the model. The lead ends the job when the
        model is saved."""
        self._hurried = False

    @property
    def begun(self) -> bool:
        """Whether all processes should end now."""
        return self._since_s is not None

    @property
    def is_ending(self) -> bool:
        """Whether the job has ended or is being stopped. Processes that exit then are not started
        again."""
        return self._before_end or self.begun or self._run.ended is not None

    @property
    def waits_for_model(self) -> bool:
        """Whether the lead's process is still writing the model. There is no time limit for
        that."""
        lead = self._processes.lead
        return self.saving and self._run.ended is None and lead is not None and lead.alive

    def stop(self, failed: str = "") -> None:
        """End the job at once. `failed`: why it has failed; empty if it has not. Processes that do
        not end by themselves are killed later."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            self._before_end = True
            lead = self._lead()
            if lead is not None:
                # tell only the lead, which ends the other processes
                self._processes.tell(lead, Told(stop=True, failed=first_line(failed) or None))
                return
            for child in self._processes.all:
                # the other servers ignore SIGTERM, because the lead would end them
                ignores = child.request.role == "server" and not child.request.leads
                self._processes.signal(child, signal.SIGKILL if ignores else signal.SIGTERM)

    def stop_in_order(self) -> None:
        """End the job on request: the lead is told to end it when every worker has left."""
        if self.begun or self._run.ended is not None:
            return
        self._before_end = True
        lead = self._lead()
        if lead is None:
            self.stop()
            return
        self.waits_for_workers = True
        self._processes.tell(lead, Told(stop=True, in_order=True))

    def lead_stops(self) -> None:
        """Note that the lead stops the job because an operator requested a stop."""
        self._before_end = True
        self.waits_for_workers = True

    def _lead(self) -> Child | None:
        """The process of the lead, if it is ready for an order to stop."""
        lead = self._processes.lead
        return lead if lead is not None and lead.reported else None

    def pursue(self) -> None:
        """End processes that do not end by themselves. Call this a few times a second."""
        if self._run.ended is not None and self._since_s is None:
            self._since_s = time.monotonic()
        if self._since_s is None:
            return
        stopping_s = time.monotonic() - self._since_s
        if stopping_s > _GRACE_S and not self.waits_for_model:
            for child in self._processes.all:
                self._processes.signal(child, signal.SIGKILL)
        elif not self._hurried and self._workers_must_leave(stopping_s):
            self._hurried = True
            for child in self._processes.workers:
                self._processes.signal(child, signal.SIGTERM)

    def _workers_must_leave(self, stopping_s: float) -> bool:
        """Whether to send a signal to the workers: the lead has ended a stopped job, or takes too
        long to end it. If workers got the signal before that and left, the lead would count them as
        lost."""
        if self._run.ended is not None:
            return self._before_end
        return stopping_s > _HURRY_S
