"""A simulated process: it runs its machines and wakes them at the times that they ask for.

As in the runtime, an event is handled at once, or right after the event that is being handled.
Effects are performed in order. The table `EFFECTS` gives the method for each type of effect.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, TypeAlias

from polyrhythm.core.events import Tick
from polyrhythm.core.machine import Effect, Machine
from polyrhythm.errors import InvariantBroken
from polyrhythm.sim.clock import Clock

_TICK = Tick()
Handle: TypeAlias = Callable[[Any, int], Sequence[Effect]]


class _Sleep:
    """When a machine is to be woken."""

    __slots__ = ("name", "until_ns", "wake_at")

    def __init__(self, name: str, machine: Machine) -> None:
        self.name = name
        self.wake_at = machine.wake_at
        self.until_ns: float = inf
        """The earliest time for which a call of `wake` is scheduled."""


class Process:
    __slots__ = (  # Python stores more than 30 attributes in a slower way
        "_queue",
        "_running",
        "_sleeps",
        "alive",
        "check",
        "clock",
        "frozen",
        "handles",
        "machines",
        "unsettled",
    )
    EFFECTS: ClassVar[Mapping[type, Callable[[Any, Any], None]]]

    def __init__(self, clock: Clock, machines: dict[str, Machine], *, check: bool) -> None:
        self.clock = clock
        self.machines = machines
        self.check = check
        self.alive = True
        self.frozen = False
        """The process is stopped, as by SIGSTOP: it does nothing until it continues."""
        self.unsettled = False
        self._queue: deque[tuple[Handle, Any]] = deque()
        """The events, each with the `handle` of the machine that it is for."""
        self._running = False
        handler = _checked if check else _unchecked
        self.handles = {name: handler(machine) for name, machine in machines.items()}
        self._sleeps = [_Sleep(name, machine) for name, machine in machines.items()]

    def put(self, machine: str, event: Any) -> None:
        self._queue.append((self.handles[machine], event))

    def post(self, machine: str, event: Any) -> None:
        self._queue.append((self.handles[machine], event))
        self.run()

    def run(self) -> None:
        if self._running or self.frozen:
            return
        self._running = True
        queue, perform = self._queue, self.EFFECTS
        now_ns = self.clock.now_ns
        while True:
            while queue and self.alive:
                handle, event = queue.popleft()
                for effect in handle(event, now_ns):
                    perform[type(effect)](self, effect)
            if not self.unsettled:
                break
            self.settle()
        self._running = False
        for sleep in self._sleeps:
            wake_at = sleep.wake_at
            wake_ns = wake_at()
            if wake_ns is not None and wake_ns < sleep.until_ns:
                self._wake_at(sleep, wake_ns)

    def rearm(self) -> None:
        """The process was stopped and continues: schedule again the times at which its machines
        want to be woken."""
        for sleep in self._sleeps:
            sleep.until_ns = inf
            wake_ns = sleep.wake_at()
            if wake_ns is not None:
                self._wake_at(sleep, wake_ns)

    def settle(self) -> None:
        """Do the work that is not an event of a machine. This is called when all queued events are
        handled."""

    # -- time ----------------------------------------------------------------------------------

    def _wake_at(self, sleep: _Sleep, wake_ns: int) -> None:
        """Wake the machine at this time, which is earlier than all its scheduled times. If the
        machine wants a later time when it is woken, `wake` schedules that time."""
        wake_ns = max(wake_ns, self.clock.now_ns)
        sleep.until_ns = wake_ns
        self.clock.at(wake_ns, self.wake, sleep.name)

    def wake(self, name: str) -> None:
        (sleep,) = (sleep for sleep in self._sleeps if sleep.name == name)
        if self.frozen or not self.alive or sleep.until_ns != self.clock.now_ns:
            return  # the process is stopped or dead, or an earlier call has woken the machine
        sleep.until_ns = inf
        machine = self.machines[name]
        wake_ns = machine.wake_at()
        if wake_ns is None:
            return
        if wake_ns > self.clock.now_ns:
            self._wake_at(sleep, wake_ns)
            return
        self.post(name, _TICK)
        if self.alive and machine.wake_at() == wake_ns:
            raise InvariantBroken(f"{name} asks again for the time at which it was just woken")


def _unchecked(machine: Machine) -> Handle:
    return machine.handle


def _checked(machine: Machine) -> Handle:
    def handle(event: Any, now_ns: int) -> Sequence[Effect]:
        effects = machine.handle(event, now_ns)
        machine.check()
        return effects

    return handle
