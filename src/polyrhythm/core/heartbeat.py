"""A regular sign of life."""


class Heartbeat:
    def __init__(self) -> None:
        self._every_ns = 0
        self.next_ns: int | None = None
        """When the next is due; None: not begun."""

    def begin(self, every_s: float, now_ns: int) -> None:
        self._every_ns = round(every_s * 1e9)
        self.next_ns = now_ns + self._every_ns

    def due(self, now_ns: int) -> bool:
        """Once for every time that one is."""
        if self.next_ns is None or now_ns < self.next_ns:
            return False
        self.next_ns = now_ns + self._every_ns
        return True
