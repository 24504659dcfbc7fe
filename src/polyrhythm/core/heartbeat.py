"""When the next heartbeat of a process is due."""


class Heartbeat:
    __slots__ = ("_every_ns", "next_ns")

    def __init__(self) -> None:
        self._every_ns = 0
        self.next_ns: int | None = None
        """When the next heartbeat is due; None before `begin`."""

    def begin(self, every_s: float, now_ns: int) -> None:
        self._every_ns = round(every_s * 1e9)
        self.next_ns = now_ns + self._every_ns

    def due(self, now_ns: int) -> bool:
        """Whether a heartbeat is due now; if so, the next one is scheduled."""
        if self.next_ns is None or now_ns < self.next_ns:
            return False
        self.next_ns = now_ns + self._every_ns
        return True
