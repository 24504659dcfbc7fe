"""The barrier's timer (dSyncPS §3.1.2): when it fires, the round closes without the missing
members.

`auto` sets it to 3 times the longest of the last 20 rounds, and to at least 10 s. Before a round
has been measured it is the paper's 120 s.
"""

from collections import deque

from polyrhythm.errors import UsageError

_PAPER_NS = 120 * 10**9
_LEAST_NS = 10 * 10**9
_FACTOR = 3
_ROUNDS = 20


class Timer:
    def __init__(self, fixed_ns: int | None, auto: bool) -> None:
        self._auto = auto
        self._rounds_ns: deque[int] = deque(maxlen=_ROUNDS)
        self.length_ns = _PAPER_NS if auto else fixed_ns
        """The length of the timer; None means that it never fires."""

    @classmethod
    def parse(cls, text: str) -> "Timer":
        if text == "auto":
            return cls(None, auto=True)
        if text == "off":
            return cls(None, auto=False)
        try:
            seconds = float(text.removesuffix("s"))
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            raise UsageError(
                f"--timer {text!r} is not understood: give auto, off or seconds such as 120s"
            )
        return cls(round(seconds * 1e9), auto=False)

    def measured(self, round_ns: int) -> None:
        self._rounds_ns.append(round_ns)
        if self._auto:
            self.length_ns = max(_LEAST_NS, _FACTOR * max(self._rounds_ns))
