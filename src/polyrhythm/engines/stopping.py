"""How the processes of a job on this host are ended.

After a request (Ctrl-C, SIGTERM or an operator's) the lead ends the job when every worker has left.
After a failure the lead ends it at once. Processes that are still there after a grace period are
killed.
"""

import signal
import time

from polyrhythm.engines.engine import EngineRun
from polyrhythm.engines.processes import Child, Processes
from polyrhythm.engines.requests import Told

_GRACE_S = 5.0
_HURRY_S = 1.0
"""Workers that are still in a step by then get a second signal, and leave at once."""


class Stopping:
    def __init__(self, processes: Processes, run: EngineRun) -> None:
        self._processes = processes
        self._run = run
        self._since_s: float | None = None
        """Since when all processes should end."""
        self._before_end = False
        """The job is stopped before its end."""
        self.waits_for_workers = False
        """The job is stopped in order: the lead ends it when the last worker has left."""
        self.saving = False
        """The lead has said that it saves the model. It ends the job after that."""
        self._hurried = False

    @property
    def begun(self) -> bool:
        """All processes should end now."""
        return self._since_s is not None

    @property
    def is_ending(self) -> bool:
        """The job has ended or is being stopped, so processes that end now are not replaced."""
        return self._before_end or self.begun or self._run.ended is not None

    @property
    def waits_for_model(self) -> bool:
        """The lead's process writes the model, however long that takes."""
        lead = self._processes.lead
        return self.saving and self._run.ended is None and lead is not None and lead.alive

    def stop(self) -> None:
        """End a job that has failed, if need be by force."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            self._before_end = True
            lead = self._lead()
            if lead is not None:
                self._processes.tell(lead, Told(stop=True))  # the lead stops the others
                return
            for child in self._processes.all:
                self._processes.signal(child, signal.SIGTERM)

    def stop_in_order(self) -> None:
        """End the job on request: the lead ends it when every worker has left."""
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
        """The lead ends the job on the request of an operator."""
        self._before_end = True
        self.waits_for_workers = True

    def _lead(self) -> Child | None:
        """The process of the lead, if it can handle an order to stop."""
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
        """When the lead has ended a stopped job, or takes too long to. Before that, workers that
        leave would look like deserters."""
        if self._run.ended is not None:
            return self._before_end
        return stopping_s > _HURRY_S
