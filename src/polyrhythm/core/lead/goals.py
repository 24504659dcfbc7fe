"""When a job has reached its goal: at the first of its goals that is reached.

*Seconds count from the opening of round 1. Accuracy is the mean of the last report of each present
worker, so that one lucky worker does not end the job of all. The objective is a mean that the lead
hands in; it should span many points, because one batch may be lucky too. Its change is checked once per
full pass of the slowest worker (`passes.py`): within a short interval any change is small (FSP §5.3).*
"""

import math

from polyrhythm.core.machine import Reason
from polyrhythm.wire.messages import JobSpec

STOPPED = Reason("stopped")


class Goals:
    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._rounds = 0
        self._passes = 0
        self._objective: float | None = None
        self._accuracies: dict[int, float] = {}
        self._until_ns: int | None = None
        self._change: float | None = None
        self._stopped = False

    # -- what it is told -----------------------------------------------------------------------

    def opened(self, now_ns: int) -> None:
        """Round 1 opens: the seconds begin."""
        if self._job.max_seconds is not None:
            self._until_ns = now_ns + round(self._job.max_seconds * 1e9)

    def folded(self, rounds: int, passes: int) -> None:
        self._rounds, self._passes = rounds, passes

    def checked(self, change: float | None) -> None:
        """A full pass is over, in which the objective changed by this; None: it is not known."""
        self._change = change

    def measured(self, objective: float | None) -> None:
        if objective is not None:
            self._objective = objective

    def reported(self, worker: int, metrics: dict[str, float]) -> None:
        if "accuracy" in metrics:
            self._accuracies[worker] = metrics["accuracy"]

    def left(self, worker: int) -> None:
        self._accuracies.pop(worker, None)

    def stop(self) -> None:
        """Somebody wants the job to end, whatever its goals."""
        self._stopped = True

    # -- what it says --------------------------------------------------------------------------

    @property
    def accuracy(self) -> float | None:
        reports = self._accuracies
        return math.fsum(reports.values()) / len(reports) if reports else None

    def reached(self, now_ns: int) -> Reason | None:
        """The goal that is reached, the stop that was asked for, or None."""
        goal = self._by_training() or self._by_quality() or self._by_time(now_ns)
        if goal is not None:
            return Reason("goal", {"goal": goal})
        return STOPPED if self._stopped else None

    def _by_training(self) -> str | None:
        job = self._job
        if job.rounds is not None and self._rounds >= job.rounds:
            return f"{self._rounds} rounds"
        if job.epochs is not None and self._passes >= job.epochs:
            return f"{self._passes} passes over the data"
        return None

    def _by_quality(self) -> str | None:
        wanted = self._job.target_accuracy
        if wanted is not None:
            accuracy = self.accuracy
            if accuracy is not None and accuracy >= wanted:
                return f"accuracy {accuracy:.4f}, wanted {wanted:g}"
        target, objective = self._job.target_objective, self._objective
        if target is not None and objective is not None and objective <= target:
            return f"objective {objective:.4f}, wanted {target:g}"
        bound = self._job.target_change
        if bound is not None and self._change is not None and self._change < bound:
            return f"the objective changed by {self._change:.2g} in a pass, less than {bound:g}"
        return None

    def _by_time(self, now_ns: int) -> str | None:
        if self._until_ns is None or now_ns < self._until_ns:
            return None
        return f"{self._job.max_seconds:g} seconds"
