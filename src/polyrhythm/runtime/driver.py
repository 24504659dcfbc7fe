"""Runs the machines of a process, one event at a time, without its own thread.

The thread that posts an event also handles it. If another thread is running the machines already,
that thread handles the event instead. So no event waits for a thread to wake up, no two events are
handled at once, and no thread blocks. Waking a separate thread would take longer than handling the
event.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from polyrhythm.core.events import Tick
from polyrhythm.core.machine import Effect, Machine
from polyrhythm.runtime.trace import Trace

Perform = Callable[[str, Effect], None]


class Driver:
    def __init__(
        self,
        machines: Mapping[str, Machine],
        perform: Perform,
        *,
        settle: Callable[[], None] = lambda: None,
        trace: Trace | None = None,
        check: bool = False,
        before_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """`settle` is called when all queued events are handled; then links flush the sent
        messages. `before_tick` may queue events that a machine should handle before its Tick."""
        self._machines = machines
        self._perform = perform
        self._settle = settle
        self._trace = trace
        self._check = check
        self._before_tick = before_tick
        self._queue: deque[tuple[str, Any]] = deque()
        self._running = threading.Lock()
        self._clock = threading.Condition()
        self._wakes_ns: dict[str, int] = {}
        """Per machine, the time at which it wanted a Tick after the last event. The timekeeper
        thread reads this dict while machines run, so it is replaced as a whole and never
        changed."""
        self._sleeps_until_ns: int | None = None
        self._closed = False
        self._timekeeper = threading.Thread(target=self._keep_time, name="time", daemon=True)
        self._timekeeper.start()

    def hosts(self, machine: str) -> bool:
        """Whether this machine is one of the process's machines."""
        return machine in self._machines

    def put(self, machine: str, event: Any) -> None:
        """Queue an event for the next `run`, so that events that arrive together are handled
        together."""
        self._queue.append((machine, event))

    def post(self, machine: str, event: Any) -> None:
        """Queue an event, and run the machines unless another thread does."""
        self._queue.append((machine, event))
        self.run()

    def run(self) -> None:
        """Handle the queued events, unless another thread does."""
        while self._queue and self._running.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._running.release()

    def catch_up(self) -> None:
        """Handle the queued events, and return when all events that were queued before this call
        are handled. Must not be called while this thread handles an event."""
        with self._running:
            self._drain()

    def _drain(self) -> None:
        while self._queue:
            while self._queue:
                name, event = self._queue.popleft()
                machine = self._machines[name]
                now_ns = time.monotonic_ns()
                effects = machine.handle(event, now_ns)
                if self._trace is not None:
                    self._trace.record(name, now_ns, event, effects)
                if self._check:
                    machine.check()
                for effect in effects:
                    self._perform(name, effect)
            self._settle()
        self._wakes_ns = {
            name: wake_ns
            for name, machine in self._machines.items()
            if (wake_ns := machine.wake_at())
        }
        self._wake_in_time()

    # -- time ----------------------------------------------------------------------------------

    def _wake_in_time(self) -> None:
        """Wake the timekeeper thread if it would sleep beyond the next Tick. If the next Tick is
        later than the thread expects, the thread notices when it wakes."""
        wake_ns = min(self._wakes_ns.values(), default=None)
        if wake_ns is None:
            return
        if self._sleeps_until_ns is None or wake_ns < self._sleeps_until_ns:
            with self._clock:
                self._sleeps_until_ns = wake_ns
                self._clock.notify()

    def _keep_time(self) -> None:
        while True:
            with self._clock:
                if self._closed:
                    return
                until_ns = self._sleeps_until_ns
                if until_ns is None:
                    self._clock.wait()
                    continue
                rest_s = (until_ns - time.monotonic_ns()) / 1e9
                if rest_s > 0:
                    self._clock.wait(rest_s)
                    continue
                self._sleeps_until_ns = None
            self._before_tick()
            for name, wake_ns in self._wakes_ns.items():
                if wake_ns <= time.monotonic_ns():
                    self._queue.append((name, Tick()))
            self.run()
            # if another thread runs the machines, it calls `_wake_in_time` when it is done
            if not self._running.locked():
                self._wake_in_time()

    def close(self) -> None:
        """Handle all events posted before, then stop the timekeeper."""
        with self._running:
            self._drain()
        with self._clock:
            self._closed = True
            self._clock.notify()
