"""How a simulated worker's time divides into computing, waiting and transferring, as its trailer
reports it."""


class SimTimesheet:
    __slots__ = (
        "_came_ns",
        "_landed_ns",
        "_left_ns",
        "busy_ns",
        "resumed_ns",
        "stopped_ns",
        "transferred_ns",
        "waited_ns",
    )

    def __init__(self) -> None:
        self.resumed_ns = 0
        """When the user's code got the parameters, plus all later time that does not count as
        computing."""
        self.busy_ns = 0
        """When the worker has handled the exchange and can compute."""
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
        """Note when the last byte of a contribution leaves. `began_ns`: when sending began."""
        if left_ns > self._left_ns:
            self._left_ns = left_ns
            self.transferred_ns = left_ns - began_ns

    def on_landed(self, first_byte_ns: int, now_ns: int) -> None:
        """Note that a slice has arrived. If the transfers of several slices overlap, the time counts
        once."""
        if first_byte_ns < self._landed_ns:
            first_byte_ns = self._landed_ns
        if first_byte_ns < self._left_ns:
            first_byte_ns = self._left_ns
        self._came_ns += now_ns - first_byte_ns
        self._landed_ns = now_ns

    def resume(self, now_ns: int, handling_ns: int) -> None:
        """End the exchange. The time since sending counts as waiting, except the time in which
        parameters arrived."""
        # the parameters arrived before the contribution had left completely
        if self._left_ns > now_ns:
            self.transferred_ns -= self._left_ns - now_ns
            self._left_ns = now_ns
        # sending may have been queued behind other messages until after the parameters arrived
        self.waited_ns = max(0, now_ns - self._left_ns - self._came_ns)
        self.transferred_ns = max(0, self.transferred_ns + self._came_ns)
        self.resumed_ns = now_ns
        if handling_ns:
            self.handle(handling_ns, now_ns)

    def handle(self, took_ns: int, now_ns: int) -> None:
        """Note that the worker handles an exchange for this long. It can compute after that."""
        self.transferred_ns += took_ns
        self.resumed_ns += took_ns
        self.busy_ns = now_ns + took_ns

    def wait(self, took_ns: int) -> None:
        self.waited_ns += took_ns
        self.resumed_ns += took_ns
