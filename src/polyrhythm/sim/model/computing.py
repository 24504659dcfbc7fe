"""The times at which a simulated worker's steps end: as planned, earlier if a message interrupts
them, later if the process was stopped."""

from collections.abc import Callable

import msgspec

from polyrhythm.sim.process import Process


class Stretch(msgspec.Struct, gc=False):
    """Several consecutive steps that are assumed to be equally long: when each one ends, and which
    one is being computed."""

    begins_ns: int
    steps: int
    took_ns: int
    """The time of all steps together."""

    def end_ns(self, step: int) -> int:
        """Return when a step ends. The first step has the number 1."""
        return self.begins_ns + self.took_ns * step // self.steps

    def current(self, now_ns: int) -> int:
        """Return the number of the first step that ends now or later."""
        passed_ns = now_ns - self.begins_ns
        step = max(1, -(-passed_ns * self.steps // self.took_ns))
        while step > 1 and self.end_ns(step - 1) >= now_ns:
            step -= 1
        return min(step, self.steps)


class Computing:
    """The steps that a simulated worker computes. Without interruptions, a whole stretch needs one
    event, however many steps it has."""

    __slots__ = (
        "_call",
        "_clock",
        "_end_call",
        "_ended",
        "_frozen_ns",
        "_process",
        "_returns_after",
        "_stretch",
        "on",
    )

    def __init__(self, process: Process, ended: Callable[[int, int], None]) -> None:
        """`ended` is called with the number of steps taken and the time of one step."""
        self.on = False
        self._process = process
        self._clock = process.clock
        self._ended = ended
        self._stretch = Stretch(0, 1, 1)
        self._returns_after = 0
        """The number of the step after which the user's code decides what to do next."""
        self._call = 0
        self._end_call = self._end
        self._frozen_ns = 0

    def begin(self, stretch: Stretch, returns_after: int) -> None:
        self.on = True
        self._stretch = stretch
        self._returns_after = returns_after
        self._call = call = self._call + 1
        self._clock.at(stretch.end_ns(returns_after), self._end_call, call)

    def _return_after(self, step: int) -> None:
        self._returns_after = step
        self._call += 1
        self._clock.at(self._stretch.end_ns(step), self._end_call, self._call)

    def look_up(self) -> None:
        """End the planned stretch after the present step: a message has arrived."""
        step = self._stretch.current(self._clock.now_ns)
        if not self._process.frozen and step < self._returns_after:
            self._return_after(step)

    def _end(self, call: int) -> None:
        if call == self._call and self._process.alive:
            self.on = False
            self._ended(self._returns_after, self._stretch.took_ns // self._stretch.steps)

    def freeze(self) -> None:
        self._call += 1
        self._frozen_ns = self._clock.now_ns

    def thaw(self) -> int:
        """Continue after the process was stopped. Returns the length of the pause if it interrupted
        steps, else 0."""
        if not self.on:
            return 0
        stopped_ns = self._clock.now_ns - self._frozen_ns
        self._stretch.begins_ns += stopped_ns
        self._return_after(self._returns_after)
        return stopped_ns
