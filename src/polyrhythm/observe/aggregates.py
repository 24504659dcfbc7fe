"""Means and medians over all rounds of a run. Each line of the journal summarises several
rounds."""

from dataclasses import dataclass, field


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
