"""What a worker has done since its last contribution: its steps, and the points that they visited."""

from polyrhythm.core.worker.cadence import Cadence
from polyrhythm.learn.visits import Visits


class Uncontributed:
    def __init__(self, visits: Visits, cadence: Cadence) -> None:
        self._visits = visits
        self._cadence = cadence
        self.steps = 0
        self.given: float | None = None
        """The number of points that the user's code gave with its steps; None if it gave no number."""
        self.stepped = 0.0
        """The number of points between the last contribution and the last step, without those that
        the training loop dropped."""
        self.whole_steps = 0.0
        """How many steps over whole batches the steps are worth."""

    def give(self, points: float) -> None:
        self.given = (self.given or 0.0) + points

    def end_step(self, whole: float) -> None:
        """`whole`: the size of the step as a share of a step over whole batches."""
        self.steps += 1
        self.stepped = self.weighed
        self.whole_steps += whole

    def take_back(self, whole: float) -> None:
        """Undo the last step."""
        self.steps -= 1
        self.stepped = self.weighed
        self.whole_steps -= whole

    def forget(self) -> None:
        self.steps, self.given, self.stepped, self.whole_steps = 0, None, 0.0, 0.0

    def take_steps(self) -> tuple[int, float]:
        """The number of steps, and how many steps over whole batches they are worth. Then begin at
        zero."""
        steps, whole = max(1, self.steps), self.whole_steps
        self.steps, self.whole_steps = 0, 0.0
        return steps, whole

    @property
    def visited(self) -> float:
        """The number of points since the last contribution."""
        return self.given if self.given is not None else self._visits.points

    @property
    def weighed(self) -> float:
        """How many of the points since the last contribution were used to compute gradients."""
        return self.given if self.given is not None else self._visits.points - self._visits.dropped

    @property
    def in_step(self) -> float:
        """How many of the points since the last step were used to compute gradients."""
        return self.weighed - self.stepped

    def share(self) -> float:
        """The size of the step as a share of a whole step: less than 1 if it has fewer points than a
        whole step."""
        return 1.0 if self.given is not None else self._cadence.share(self._visits.in_step)

    def take_weight(self, collected: float) -> float:
        """The weight of a contribution. `collected`: how many points of new batches it contains; 0 if it
        is another step with batches that an earlier contribution contained."""
        given, self.given = self.given, None
        return (given if given is not None else collected or self._visits.in_step) or 1.0

    def reported(self, *, several: bool, first: bool) -> int:
        """How many points the contribution reports as visited; -1: as many as its weight. If the
        user's code gives the points of each step, only the points of the model that steps first
        count. `several`: the worker has several models. `first`: the contribution is a step of the
        model that steps first."""
        if self.given is None or not several:
            return self._visits.reported
        return round(self.given) if first else 0
