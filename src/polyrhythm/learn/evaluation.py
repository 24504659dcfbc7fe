"""When a model is evaluated while it trains: seldom enough that it costs little.

*An evaluation begins at least a quarter of a second after the end of the last one, and at least nine
times as long after it as it took. So it takes at most a tenth of its worker's time. Where no goal of the
job depends on the result, these are a second and a fiftieth.*
"""

_DECIDING = (250_000_000, 9)
_SHOWN = (1_000_000_000, 49)


class Evaluations:
    """The times of one worker's evaluations. `decides`: the job may end with their result."""

    def __init__(self, now_ns: int, *, decides: bool) -> None:
        self._least_ns, self._share = _DECIDING if decides else _SHOWN
        self._due_ns = now_ns + _DECIDING[0]

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._due_ns

    def done(self, began_ns: int, now_ns: int) -> None:
        """One took from `began_ns` until now."""
        self._due_ns = now_ns + max(self._least_ns, self._share * (now_ns - began_ns))
