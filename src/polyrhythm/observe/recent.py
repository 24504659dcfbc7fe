"""The work of all workers in the last ten seconds of the journal, from which their speeds are
computed."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.observe.worker import Fields, ObservedWorker

_RECENT_S = 10.0


@dataclass(slots=True)
class RecentWork:
    _samples: deque[tuple[float, dict[Any, Fields]]] = field(default_factory=deque)
    """The `rounds` lines of the last ten seconds: the time of each, and its fields per worker."""

    def take(
        self, measured: dict[Any, Fields], at_s: float, workers: Mapping[int, ObservedWorker]
    ) -> None:
        """Take the fields per worker of a `rounds` line that was written at `at_s`, and update
        `workers`. The fields are not converted, because there may be thousands of workers in
        thousands of lines."""
        self._samples.append((at_s, measured))
        while len(self._samples) > 2 and self._samples[1][0] <= at_s - _RECENT_S:
            self._samples.popleft()
        before_s, before = self._samples[0]
        for number, fields in measured.items():
            state = workers.get(int(number))
            if state is None:
                continue
            state.measured, state.before = fields, before.get(number, {})
            if state.no_points and fields.get("contributions"):
                state.no_points = False
            state.recent_s = at_s - max(before_s, state.joined_s)
            state.clock = fields.get("clock", state.clock)
