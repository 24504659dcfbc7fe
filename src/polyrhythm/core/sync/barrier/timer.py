"""The barrier's timer (dSyncPS §3.1.2): when it fires, the round closes without the missing
members.

`auto` sets it to 3 times the longest of the last 20 rounds, and to at least 10 s. Before a round
has been measured it is the paper's 120 s.
"""

import msgspec

from polyrhythm.core.kinds import ON_WORKERS
from polyrhythm.core.values import keep_last
from polyrhythm.errors import UsageError

_PAPER_NS = 120 * 10**9
_LEAST_NS = 10 * 10**9
_FACTOR = 3
_ROUNDS = 20


def timer_of(timer: str, *, deterministic: bool, optimizer_on: str) -> str:
    """The value of `--timer` for a job with these options. The default is `off` if every round
    waits for every worker."""
    waits = deterministic or optimizer_on == ON_WORKERS
    return "off" if waits and timer == "auto" else timer


class Timer(msgspec.Struct):
    length_ns: int | None
    """The length of the timer; None means that it never fires."""
    _auto: bool = False
    _rounds_ns: list[int] = []
    """The lengths of the last rounds."""

    @classmethod
    def parse(cls, text: str) -> "Timer":
        if text == "auto":
            return cls(_PAPER_NS, _auto=True)
        if text == "off":
            return cls(None)
        try:
            seconds = float(text.removesuffix("s"))
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            raise UsageError(
                f"--timer {text!r} is not understood: give auto, off or seconds such as 120s"
            )
        return cls(round(seconds * 1e9))

    def on_measured(self, round_ns: int) -> None:
        keep_last(self._rounds_ns, round_ns, _ROUNDS)
        if self._auto:
            self.length_ns = max(_LEAST_NS, _FACTOR * max(self._rounds_ns))
