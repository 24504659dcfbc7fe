"""When a worker evaluates the model while it trains: rarely, so that it costs little.

*After an evaluation, the worker waits for at least a quarter of a second and for at least nine
times the duration of that evaluation. So evaluations take at most a tenth of the worker's time. If
no goal of the job depends on the result, it waits for at least one second and evaluates for at most
a fiftieth of its time.*
"""

_DECIDING = (250_000_000, 9)
_SHOWN = (1_000_000_000, 49)


class Evaluations:
    """The times of one worker's evaluations. `decides`: the result may end the job."""

    def __init__(self, now_ns: int, *, decides: bool) -> None:
        self._least_ns, self._share = _DECIDING if decides else _SHOWN
        self._due_ns = now_ns + _DECIDING[0]

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._due_ns

    def done(self, began_ns: int, now_ns: int) -> None:
        """Note an evaluation that began at `began_ns` and ends now."""
        self._due_ns = now_ns + max(self._least_ns, self._share * (now_ns - began_ns))
