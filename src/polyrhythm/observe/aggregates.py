"""Means and medians over the rounds of a run, and the extremes of its metrics. Each line of the
journal summarises several rounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class MeanOverRounds:
    value: float | None = None
    """The mean so far; None until a line of the journal has had a value."""
    _rounds: int = 0

    def take(self, value: float | None, rounds: int) -> None:
        if value is not None:
            whole = (self.value or 0.0) * self._rounds + value * rounds
            self._rounds += rounds
            self.value = whole / max(1, self._rounds)


@dataclass(slots=True)
class MedianOverRounds:
    """An approximate median: each line of the journal has only the median of its own rounds."""

    _lines: list[tuple[float, int]] = field(default_factory=list)

    def take(self, value: float | None, rounds: int) -> None:
        if value is not None and rounds:
            self._lines.append((value, rounds))

    @property
    def value(self) -> float | None:
        half, seen = sum(rounds for _, rounds in self._lines) / 2, 0
        for value, rounds in sorted(self._lines):
            seen += rounds
            if seen >= half:
                return value
        return None


@dataclass(slots=True)
class Extremes:
    """The times at which a changing value was higher or lower than ever before. They show when the
    value first reached a bound, and need little memory however often the value changes."""

    _highs: list[tuple[float, float]] = field(default_factory=list)
    _lows: list[tuple[float, float]] = field(default_factory=list)

    def take(self, at_s: float, value: float) -> None:
        if not self._highs or value > self._highs[-1][1]:
            self._highs.append((at_s, value))
        if not self._lows or value < self._lows[-1][1]:
            self._lows.append((at_s, value))

    def first_s(self, met: Callable[[float], bool]) -> float | None:
        """The first time at which the value met a bound from above or from below; None if it never
        did."""
        found = [at_s for at_s, value in (*self._highs, *self._lows) if met(value)]
        return min(found, default=None)


@dataclass(slots=True)
class Pushed:
    """The contributions that did not carry the whole model as it is, and their size, as their workers
    have measured it."""

    contributions: int = 0
    _nbytes: int = 0

    def take(self, fields: Mapping[str, int]) -> None:
        """Take the fields `pushed` of a line about rounds."""
        self.contributions += fields.get("contributions", 0)
        self._nbytes += fields.get("nbytes", 0)

    def nbytes(self, contributions: int, whole: float) -> int:
        """The size of this many contributions in bytes. Those that did not report a size have the
        size `whole`."""
        return self._nbytes + round((contributions - self.contributions) * whole)
