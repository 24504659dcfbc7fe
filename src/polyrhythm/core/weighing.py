"""Whether a worker waits for the answer to its contribution, or computes on and takes it with its next.

*Who waits computes every step on parameters that have its last contribution in them, and are a step
fresher towards the others; who goes ahead hides what the way takes. An answer that takes little of a
step is waited for. The first ones are, to know what they take; later, among many that are not, one is
looked at again, so seldom that looking costs next to nothing.*
"""

from collections import deque
from statistics import median

LITTLE = 1 / 10
"""Of a step: what an answer may take to be waited for."""
_LOOKS = 5
"""The usual is what is in the middle of so many."""
_LOOK_AGAIN = 1 / 100
"""Of the time: what is spent on seeing how long an answer takes by now."""


class Weighing:
    def __init__(self) -> None:
        self._steps_ns: deque[int] = deque(maxlen=_LOOKS)
        self._answers_ns: deque[int] = deque(maxlen=_LOOKS)
        self._asked_ns: int | None = None
        self._ahead_ns = 0
        """How long it has computed since an answer was last waited for."""

    def waits(self, step_ns: int, now_ns: int) -> bool:
        """A step that took so long is contributed now: whether its answer is waited for."""
        self._steps_ns.append(step_ns)
        self._ahead_ns += step_ns
        if not self._worth_it():
            return False
        self._asked_ns, self._ahead_ns = now_ns, 0
        return True

    def _worth_it(self) -> bool:
        if len(self._answers_ns) < _LOOKS:
            return True
        answer_ns = median(self._answers_ns)
        return (
            answer_ns <= LITTLE * median(self._steps_ns)
            or answer_ns <= _LOOK_AGAIN * self._ahead_ns
        )

    def answered(self, now_ns: int) -> None:
        """It goes on."""
        if self._asked_ns is not None:
            self._answers_ns.append(now_ns - self._asked_ns)
            self._asked_ns = None
