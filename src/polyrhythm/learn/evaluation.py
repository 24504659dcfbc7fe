"""When a worker evaluates the model while it trains: rarely enough that the cost is small.

*An evaluation begins at least a quarter of a second after the end of the last one, and at least
nine times its duration after it, so evaluations take at most a tenth of the worker's time. If no
goal of the job depends on the result, the limits are one second and a fiftieth.*
"""

_DECIDING = (250_000_000, 9)
_SHOWN = (1_000_000_000, 49)


class Evaluations:
    """The times of one worker's evaluations. `decides`: the job may end because of their result."""

    def __init__(self, now_ns: int, *, decides: bool) -> None:
        self._least_ns, self._share = _DECIDING if decides else _SHOWN
        self._due_ns = now_ns + _DECIDING[0]

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._due_ns

    def done(self, began_ns: int, now_ns: int) -> None:
        """Note an evaluation that took from `began_ns` until now."""
        self._due_ns = now_ns + max(self._least_ns, self._share * (now_ns - began_ns))
