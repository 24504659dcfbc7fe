"""When a model is examined while it is being trained: seldom enough that nobody notices.

*An examination begins a quarter of a second after the last one ended at the earliest, and no sooner
than nine times as long as that one took: it never takes more than a tenth of the time of
whoever does it.*
"""

_LEAST_NS = 250_000_000
_SHARE = 9


class Examinations:
    """The times of one worker's examinations. The first is due a quarter of a second from now."""

    def __init__(self, now_ns: int) -> None:
        self._due_ns = now_ns + _LEAST_NS

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._due_ns

    def done(self, began_ns: int, now_ns: int) -> None:
        """One took from `began_ns` until now."""
        self._due_ns = now_ns + max(_LEAST_NS, _SHARE * (now_ns - began_ns))
