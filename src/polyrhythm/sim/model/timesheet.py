"""How a simulated worker's time divides into computing, waiting and transferring, as its trailer
reports it."""


class SimTimesheet:
    def __init__(self) -> None:
        self.resumed_ns = 0
        """When the user's code got the parameters, plus the time that is excluded from computing
        since."""
        self.busy_ns = 0
        """The worker computes only after this time."""
        self.stopped_ns = 0
        """How long the process was stopped while it computed, since the last contribution."""
        self.waited_ns = 0
        self.transferred_ns = 0
        self._left_ns = 0
        self._landed_ns = 0
        self._came_ns = 0

    def begin_exchange(self, now_ns: int) -> None:
        self._left_ns = now_ns
        self.waited_ns = self.transferred_ns = self._came_ns = self.stopped_ns = 0

    def left(self, began_ns: int, left_ns: int) -> None:
        """Note when everything that was sent will have left."""
        if left_ns > self._left_ns:
            self._left_ns = left_ns
            self.transferred_ns = left_ns - began_ns

    def landed(self, first_byte_ns: int, now_ns: int) -> None:
        """Note a slice that has arrived. Time during which several slices arrive is counted
        once."""
        began_ns = max(first_byte_ns, self._landed_ns, self._left_ns)
        self._came_ns += now_ns - began_ns
        self._landed_ns = now_ns

    def resume(self, now_ns: int, handling_ns: int) -> None:
        """End the exchange: the time since sending in which no parameters arrived was waiting."""
        if self._left_ns > now_ns:  # the worker did not wait until everything had left
            self.transferred_ns -= self._left_ns - now_ns
            self._left_ns = now_ns
        self.waited_ns = now_ns - self._left_ns - self._came_ns
        self.transferred_ns += self._came_ns
        self.resumed_ns = now_ns
        if handling_ns:
            self.handle(handling_ns, now_ns)

    def handle(self, took_ns: int, now_ns: int) -> None:
        """Note that the worker handles an exchange for this long, and computes afterwards."""
        self.transferred_ns += took_ns
        self.resumed_ns += took_ns
        self.busy_ns = now_ns + took_ns

    def wait(self, took_ns: int) -> None:
        self.waited_ns += took_ns
        self.resumed_ns += took_ns
