"""When a model is examined while it is being trained: seldom enough that nobody notices.

*An examination begins a quarter of a second after the last one ended at the earliest, and no sooner
than nine times as long as that one took: it never takes more than a tenth of the time of
whoever does it. Where no goal depends on it, these are a second and a fiftieth.*
"""

_AWAITED = (250_000_000, 9)
_SHOWN = (1_000_000_000, 49)


class Evaluations:
    """The times of one worker's examinations; `awaited`: the job may end with what they find."""

    def __init__(self, now_ns: int, *, awaited: bool) -> None:
        self._least_ns, self._share = _AWAITED if awaited else _SHOWN
        self._due_ns = now_ns + _AWAITED[0]

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._due_ns

    def done(self, began_ns: int, now_ns: int) -> None:
        """One took from `began_ns` until now."""
        self._due_ns = now_ns + max(self._least_ns, self._share * (now_ns - began_ns))
