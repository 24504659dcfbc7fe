"""Messages about workers that failed. Workers that fail for the same reason at about the same time
share one line."""

import time
from collections.abc import Callable, Mapping

_GATHER_S = 0.5
NEVER_ATTACHED = (
    "main(worker) returned in every worker without calling worker.attach(model, optimizer), so there"
    " was nothing to train"
)


def failure_lines(failures: Mapping[str, str]) -> list[str]:
    """One line for each reason. `failures`: for each failed process, by its name, the reason."""
    reasons: dict[str, list[str]] = {}
    for name, how in sorted(failures.items()):
        reasons.setdefault(how, []).append(name)
    return [f"{', '.join(names)} failed: {how}" for how, names in reasons.items()]


def first_line(failed: str) -> str:
    """The reason without the traceback that may follow it, for the journal."""
    return failed.partition("\n")[0]


class FailureLines:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._unsaid: dict[str, str] = {}
        self._since_s = 0.0

    def note(self, name: str, how: str) -> None:
        self._unsaid[name] = how
        self._since_s = time.monotonic()

    def say(self, *, now: bool = False) -> None:
        """Show the failures. Without `now`, wait a moment first, because other workers may fail for
        the same reason."""
        if now or time.monotonic() > self._since_s + _GATHER_S:
            for line in self.take():
                self._say(line)

    def take(self, said: str = "") -> list[str]:
        """Return the lines that were not shown yet, as a part of another message. Failures whose
        reason is in the text `said` are left out."""
        unsaid = {name: how for name, how in self._unsaid.items() if how not in said}
        lines = failure_lines(unsaid)
        self._unsaid.clear()
        return lines
