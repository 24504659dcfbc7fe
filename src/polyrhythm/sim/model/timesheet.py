"""Where a simulated worker's time goes: computing, waiting and transferring, for the trailer to say."""


class SimTimesheet:
    def __init__(self) -> None:
        self.resumed_ns = 0
        """Since when the user's code has the parameters; what was not computing is passed over."""
        self.busy_ns = 0
        """Until then it does not compute."""
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
        """What was sent will have left then."""
        if left_ns > self._left_ns:
            self._left_ns = left_ns
            self.transferred_ns = left_ns - began_ns

    def landed(self, first_byte_ns: int, now_ns: int) -> None:
        """A slice has come; what came at the same time as another is not counted twice."""
        began_ns = max(first_byte_ns, self._landed_ns, self._left_ns)
        self._came_ns += now_ns - began_ns
        self._landed_ns = now_ns

    def resume(self, now_ns: int, handling_ns: int) -> None:
        """Between sending and going on, what was not the parameters' coming was waiting."""
        if self._left_ns > now_ns:  # it did not wait until all had left
            self.transferred_ns -= self._left_ns - now_ns
            self._left_ns = now_ns
        self.waited_ns = now_ns - self._left_ns - self._came_ns
        self.transferred_ns += self._came_ns
        self.resumed_ns = now_ns
        if handling_ns:
            self.handle(handling_ns, now_ns)

    def handle(self, took_ns: int, now_ns: int) -> None:
        """The worker itself is busy with an exchange, and computes after that."""
        self.transferred_ns += took_ns
        self.resumed_ns += took_ns
        self.busy_ns = now_ns + took_ns

    def wait(self, took_ns: int) -> None:
        self.waited_ns += took_ns
        self.resumed_ns += took_ns
