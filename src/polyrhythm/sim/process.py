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
_Handle: TypeAlias = Callable[[Any, int], Sequence[Effect]]


class Process:
    EFFECTS: ClassVar[Mapping[type, Callable[[Any, Any], None]]]

    def __init__(self, clock: Clock, machines: dict[str, Machine], *, check: bool) -> None:
        self.clock = clock
        self.machines = machines
        self.check = check
        self.alive = True
        self.frozen = False
        """The process is stopped, as by SIGSTOP: it does nothing until it continues."""
        self.unsettled = False
        self._queue: deque[tuple[str, Any]] = deque()
        self._running = False
        handler = _checked if check else _unchecked
        self._handles = {name: handler(machine) for name, machine in machines.items()}
        self._wakes = [(name, machine.wake_at) for name, machine in machines.items()]
        self._sleeps_until_ns: dict[str, float] = dict.fromkeys(machines, inf)

    def put(self, machine: str, event: Any) -> None:
        self._queue.append((machine, event))

    def post(self, machine: str, event: Any) -> None:
        self._queue.append((machine, event))
        self.run()

    def run(self) -> None:
        if self._running or self.frozen:
            return
        self._running = True
        queue, handles, perform = self._queue, self._handles, self.EFFECTS
        now_ns = self.clock.now_ns
        while True:
            while queue and self.alive:
                name, event = queue.popleft()
                for effect in handles[name](event, now_ns):
                    perform[type(effect)](self, effect)
            if not self.unsettled:
                break
            self.settle()
        self._running = False
        sleeps_until_ns = self._sleeps_until_ns
        for name, wake_at in self._wakes:
            wake_ns = wake_at()
            if wake_ns is not None and wake_ns < sleeps_until_ns[name]:
                self._wake_at(name, wake_ns)

    def rearm(self) -> None:
        """The process was stopped and continues: schedule again the times at which its machines
        want to be woken."""
        for name, machine in self.machines.items():
            self._sleeps_until_ns[name] = inf
            wake_ns = machine.wake_at()
            if wake_ns is not None:
                self._wake_at(name, wake_ns)

    def settle(self) -> None:
        """Do the work that is not an event of a machine. This is called when all queued events are
        handled."""

    # -- time ----------------------------------------------------------------------------------

    def _wake_at(self, name: str, wake_ns: int) -> None:
        """Wake the machine at this time, which is earlier than all its scheduled times. If the
        machine wants a later time when it is woken, `wake` schedules that time."""
        wake_ns = max(wake_ns, self.clock.now_ns)
        self._sleeps_until_ns[name] = wake_ns
        self.clock.at(wake_ns, self.wake, name)

    def wake(self, name: str) -> None:
        if self.frozen or not self.alive or self._sleeps_until_ns[name] != self.clock.now_ns:
            return  # the process is stopped or dead, or an earlier call has woken the machine
        self._sleeps_until_ns[name] = inf
        machine = self.machines[name]
        wake_ns = machine.wake_at()
        if wake_ns is None:
            return
        if wake_ns > self.clock.now_ns:
            self._wake_at(name, wake_ns)
            return
        self.post(name, _TICK)
        if self.alive and machine.wake_at() == wake_ns:
            raise InvariantBroken(f"{name} asks again for the time at which it was just woken")


def _unchecked(machine: Machine) -> _Handle:
    return machine.handle


def _checked(machine: Machine) -> _Handle:
    def handle(event: Any, now_ns: int) -> Sequence[Effect]:
        effects = machine.handle(event, now_ns)
        machine.check()
        return effects

    return handle
