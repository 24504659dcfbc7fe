"""Means and medians of a run: over its rounds, of which each line of the journal summarises several,
and over its workers."""

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(slots=True)
class MeanOverRounds:
    value: float | None = None
    """The mean so far; None until a line has a value."""
    _rounds: int = 0

    def take(self, value: float | None, rounds: int) -> None:
        if value is not None:
            whole = (self.value or 0.0) * self._rounds + value * rounds
            self._rounds += rounds
            self.value = whole / max(1, self._rounds)


@dataclass(slots=True)
class MedianOverRounds:
    """An approximate median: each line has only the median of its own rounds."""

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
class MeanOfLatest:
    """The mean of the last values of all workers. The sum is exact, so the mean of equal values is
    that value."""

    _sum: Fraction = Fraction(0)
    _latest: dict[int, float] = field(default_factory=dict)

    def take(self, worker: int, value: float) -> float:
        """Replace the worker's last value. Returns the new mean."""
        self._sum += Fraction(value) - Fraction(self._latest.get(worker, 0.0))
        self._latest[worker] = value
        return float(self._sum / len(self._latest))
