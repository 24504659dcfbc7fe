"""The driver lets machines handle one event at a time, and wakes each machine at the time for which
it asked."""

import threading
import time

from polyrhythm.core.events import Tick
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.runtime.driver import Driver


class Sleeper:
    """A machine that asks to be woken every millisecond. Like any machine, it must not be called
    while it handles an event."""

    def __init__(self) -> None:
        self.ticks = self.handled = 0
        self.disturbed = 0
        self._busy = False
        self._next_ns = 0
        self.enough = threading.Event()

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        self._busy = True
        # another thread would call this machine in this time if the driver allowed it
        time.sleep(0.0005)
        if isinstance(event, Tick):
            self.ticks += 1
            if self.ticks >= 100:
                self.enough.set()
        self.handled += not isinstance(event, Tick)
        self._next_ns = now_ns + 1_000_000
        self._busy = False
        return []

    def wake_at(self) -> int | None:
        self.disturbed += self._busy
        return self._next_ns

    def why(self) -> Waiting:
        return Waiting(Reason("none"), 0)

    def check(self) -> None:
        pass


def test_a_machine_is_never_asked_while_it_handles_an_event() -> None:
    sleeper = Sleeper()
    driver = Driver({"s": sleeper}, lambda name, effect: None)
    posted, until_s = 0, time.monotonic() + 30
    while not sleeper.enough.is_set() and time.monotonic() < until_s:
        if posted < sleeper.handled + 10:
            posted += 1
            driver.post("s", "event")
        else:  # let the other thread handle events
            time.sleep(0.0005)
    driver.close()
    assert sleeper.ticks >= 100
    assert sleeper.disturbed == 0


def test_the_timekeeper_goes_on_without_events() -> None:
    sleeper = Sleeper()
    driver = Driver({"s": sleeper}, lambda name, effect: None)
    driver.post("s", "first")
    assert sleeper.enough.wait(30)
    driver.close()
