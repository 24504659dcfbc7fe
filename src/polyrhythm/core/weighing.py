"""Whether a worker waits for the answer to its contribution, or computes on and takes it with its next.

*Who waits computes every step on parameters that have its last contribution in them, and are a step
fresher towards the others; who goes ahead hides what the way takes. An answer that takes little of what
a contribution takes to compute is waited for. The first ones are, to know what they take, but the very
first decides over nothing: others make their first steps then. Later, among many that are not waited
for, one is looked at again, so seldom that looking costs little; if that one took little, so are the
next.*
"""

from collections import deque
from statistics import median

LITTLE = 1 / 20
"""Of what a contribution takes to compute: what an answer may take to be waited for."""
_LOOKS = 5
"""The usual is taken from so many."""
_LOOK_AGAIN = 1 / 50
"""Of the time: what is spent on seeing how long an answer takes by now."""


class Weighing:
    def __init__(self) -> None:
        self._steps_ns: deque[int] = deque(maxlen=_LOOKS)
        self._answers_ns: deque[int] = deque(maxlen=_LOOKS)
        self._asked_ns: int | None = None
        self._first = True
        self._ahead_ns = 0
        """How long it has computed since an answer was last waited for."""

    def waits(self, step_ns: int, now_ns: int) -> bool:
        """What took so long to compute is contributed now: whether the answer is waited for."""
        self._steps_ns.append(step_ns)
        self._ahead_ns += step_ns
        if not self._worth_it():
            return False
        self._asked_ns, self._ahead_ns = now_ns, 0
        return True

    def _worth_it(self) -> bool:
        if len(self._answers_ns) < _LOOKS:
            return True
        usual_ns = _usual(self._answers_ns)
        return self._little(usual_ns) or usual_ns <= _LOOK_AGAIN * self._ahead_ns

    def _little(self, answer_ns: float) -> bool:
        return answer_ns <= LITTLE * median(self._steps_ns)

    def answered(self, now_ns: int) -> None:
        """It goes on."""
        if self._asked_ns is None:
            return
        answer_ns, self._asked_ns = now_ns - self._asked_ns, None
        if self._first:
            self._first = False
            return
        full = len(self._answers_ns) == _LOOKS
        if full and self._little(answer_ns) and not self._little(_usual(self._answers_ns)):
            self._answers_ns.clear()  # the way has changed
        self._answers_ns.append(answer_ns)


def _usual(answers_ns: deque[int]) -> float:
    """The mean without the longest: one that is late says nothing, two of five do."""
    return (sum(answers_ns) - max(answers_ns)) / (len(answers_ns) - 1)
