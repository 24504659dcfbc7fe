"""When the next cut (the state of a checkpoint) is due."""

from polyrhythm.core.durations import parse_duration
from polyrhythm.errors import UsageError

_ROUNDS = "rounds"


class Schedule:
    """When the next cut is due, as `--checkpoint-every` says: every `60s`, or every `100rounds`."""

    def __init__(self, every: str) -> None:
        self.every_ns: int | None = None
        self.every_rounds: int | None = None
        number = every.removesuffix(_ROUNDS)
        if every.endswith(_ROUNDS):
            if not (number.isascii() and number.isdigit() and int(number) > 0):
                raise UsageError(f"--checkpoint-every {every!r}: give 60s, or 100rounds")
            self.every_rounds = int(number)
        elif every:
            try:
                self.every_ns = parse_duration(every)
            except ValueError:
                wrong = f"--checkpoint-every {every!r} is not understood"
                raise UsageError(f"{wrong}: give a time such as 60s, or 100rounds") from None
        self._ns = 0
        self._rounds = 0

    def begin(self, rounds: int, now_ns: int) -> None:
        """Round 1 opens, or a cut begins: the next cut is due one interval later."""
        self._ns, self._rounds = now_ns, rounds

    def due(self, rounds: int, now_ns: int) -> bool:
        if self.every_ns is not None:
            return now_ns >= self._ns + self.every_ns
        return self.every_rounds is not None and rounds >= self._rounds + self.every_rounds

    @property
    def wake_ns(self) -> int | None:
        return None if self.every_ns is None else self._ns + self.every_ns
