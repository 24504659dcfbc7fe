"""Where a simulated worker's time goes: computing, waiting and transferring, for the trailer to say."""


class SimTimesheet:
    def __init__(self) -> None:
        self.resumed_ns = 0
        """Since when the user's code has the parameters, later by the time that is excluded."""
        self.busy_ns = 0
        """The worker computes only after this time."""
        self.stopped_ns = 0
        """Since the last contribution, how long its process was stopped while it computed."""
        self.waited_ns = 0
        self.transferred_ns = 0
        self._left_ns = 0
        self._landed_ns = 0
        self._came_ns = 0

    def begin_exchange(self, now_ns: int) -> None:
        self._left_ns = now_ns
        self.waited_ns = self.transferred_ns = self._came_ns = self.stopped_ns = 0

    def left(self, began_ns: int, left_ns: int) -> None:
        """Everything that was sent will have left at this time."""
        if left_ns > self._left_ns:
            self._left_ns = left_ns
            self.transferred_ns = left_ns - began_ns

    def landed(self, first_byte_ns: int, now_ns: int) -> None:
        """A slice has come; time in which several slices come is counted once."""
        began_ns = max(first_byte_ns, self._landed_ns, self._left_ns)
        self._came_ns += now_ns - began_ns
        self._landed_ns = now_ns

    def resume(self, now_ns: int, handling_ns: int) -> None:
        """The time from sending to here in which no parameters came was waiting."""
        if self._left_ns > now_ns:  # it did not wait until all had left
            self.transferred_ns -= self._left_ns - now_ns
            self._left_ns = now_ns
        self.waited_ns = now_ns - self._left_ns - self._came_ns
        self.transferred_ns += self._came_ns
        self.resumed_ns = now_ns
        if handling_ns:
            self.handle(handling_ns, now_ns)

    def handle(self, took_ns: int, now_ns: int) -> None:
        """The worker is busy with an exchange for this long, and then computes."""
        self.transferred_ns += took_ns
        self.resumed_ns += took_ns
        self.busy_ns = now_ns + took_ns

    def wait(self, took_ns: int) -> None:
        self.waited_ns += took_ns
        self.resumed_ns += took_ns
