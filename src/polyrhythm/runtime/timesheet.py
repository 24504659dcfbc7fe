"""Where a worker's time goes: computing, waiting and transferring, for the trailer to say."""

import time


class Timesheet:
    def __init__(self) -> None:
        self.waited_ns = 0
        self.transferred_ns = 0
        self.resumed_ns = time.monotonic_ns()
        """Since when the user's code has the parameters; what was not computing is passed over."""
        self._interval_ns = 0

    def resume(self) -> None:
        """The parameters are here: the clock of computing starts."""
        self.resumed_ns = time.monotonic_ns()

    def computed_ns(self, until_ns: int | None = None) -> int:
        """How long the user's code has had the parameters."""
        return (time.monotonic_ns() if until_ns is None else until_ns) - self.resumed_ns

    def pass_over(self, nanoseconds: int) -> None:
        """So much of the time since it resumed was not computing."""
        self.resumed_ns += nanoseconds

    def exchanged(self, began_ns: int, idle_ns: int) -> None:
        """It has sent something and resumed, and its own thread had nothing to do for `idle_ns`
        meanwhile: that was waiting, also where others of its threads sent or read. What it did itself,
        filling, sending and taking what came, was transferring."""
        self.waited_ns = idle_ns
        self.transferred_ns = self.resumed_ns - began_ns - idle_ns

    def trained_through(self, began_ns: int) -> None:
        """It has sent something, and computes on."""
        self.resume()
        self.waited_ns = 0
        self.transferred_ns = self.resumed_ns - began_ns

    def awaited(self, began_ns: int) -> int:
        took_ns = time.monotonic_ns() - began_ns
        self.waited_ns += took_ns
        self.resumed_ns += took_ns
        return took_ns

    def rebased(self, began_ns: int, *, anew: bool) -> int:
        """`anew`: what it computed before was for an incarnation that is over. How long it took."""
        if anew:
            self.waited_ns = self.transferred_ns = 0
            self.resumed_ns = began_ns
        took_ns = time.monotonic_ns() - began_ns
        self.transferred_ns += took_ns
        self.resumed_ns += took_ns
        return took_ns

    def begin_interval(self) -> None:
        self._interval_ns = time.monotonic_ns()

    def interval_left_ns(self, interval_ns: int) -> int:
        return self._interval_ns + interval_ns - time.monotonic_ns()
