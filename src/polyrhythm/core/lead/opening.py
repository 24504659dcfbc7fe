"""When round 1 opens.

*With as many attached workers as the job wants, less those who came and went, or, once the start
timeout is over, with those who are there; never with nobody. The timeout runs from the first
worker's admission.*
"""


class Opening:
    def __init__(self, workers: int, start_timeout_s: float) -> None:
        self.since_ns = 0
        self.until_ns: int | None = None
        self._workers = workers
        self._timeout_ns = round(start_timeout_s * 1e9)
        self._overdue = False

    def admitted(self, now_ns: int) -> None:
        if self.until_ns is None:
            self.since_ns, self.until_ns = now_ns, now_ns + self._timeout_ns

    def exclude_time(self, paused_ns: int) -> None:
        """So long nobody could be heard to come."""
        if self.until_ns is not None:
            self.until_ns += paused_ns

    def lost(self) -> None:
        """One who was to come is gone: it is not waited for."""
        self._workers = max(1, self._workers - 1)

    def tick(self, now_ns: int) -> None:
        self._overdue = self.until_ns is not None and now_ns >= self.until_ns

    def wake_at(self) -> int | None:
        return None if self._overdue else self.until_ns

    def missing(self, attached: int) -> int:
        return self._workers - attached

    def due(self, attached: int) -> bool:
        return attached > 0 and (attached >= self._workers or self._overdue)
