"""How far a job without rounds has come.

*As many contributions as there are members are worth a round: each is folded with 1/P of its rate.*
"""


class Course:
    def __init__(self) -> None:
        self.round = 0
        self._part = 0.0

    def advance(self, members: int) -> bool:
        """A contribution was counted; True if that completed what a round is worth."""
        self._part += 1 / max(1, members)
        if self._part < 1 - 1e-9:
            return False
        self._part -= 1
        self.round += 1
        return True
