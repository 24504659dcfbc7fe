"""Lets learning-rate schedules follow the steps of the job instead of the steps of one worker's
loop.

*A step of the job is one whole batch of each of the workers with which the job began
(`--workers`).* Under `bsp` this is a round, and the training loop of a worker makes one step in it.
Under other policies the loop of a fast worker makes more steps and that of a slow worker fewer,
under `fsp` the steps are parts of a batch, and the loop of a worker that joined late has made none.
The lead counts the steps of the job and tells the workers. In a training loop that calls
`scheduler.step()` after every step, each call steps the scheduler until it has made as many steps
as the job: not at all, once or several times. So the rate is the same on all workers, and under
every policy, after equally many passes (docs/decisions/111).
"""

from math import floor, inf

_EPSILON = 1e-6


class JobSteps:
    """How many steps the job has made, as one worker knows it: what the lead has told it last, and an
    estimate of the steps since then."""

    __slots__ = ("_estimates", "_growth", "_most", "_since", "_told", "joined", "own", "resumed")

    def __init__(self, told: float, *, estimates: bool = True, resumed: bool = False) -> None:
        """`told`: the steps that the job had made when this worker began. `estimates`: whether the
        worker estimates the steps that the job makes until the lead tells its count again. That is
        not needed if the servers make one step per round, because the lead then tells its count
        before every step. `resumed`: whether the job continues from a checkpoint, which may contain
        the positions of schedulers."""
        self.joined = told
        self.resumed = resumed
        self.own = 0
        """How many steps the worker's loop has made."""
        self._told = told
        self._since = 0.0
        """How many steps of whole batches the loop has made since the lead told its count."""
        self._estimates = estimates
        self._most = (inf, inf)
        """How many steps the job made between the last times at which the lead told its count: the
        estimate adds no more than that."""
        self._growth = (1.0, 1.0)
        """How many steps the job made per step of this worker, between the last times at which the
        lead told its count. The estimate uses the lowest of these values, and at most 1, because a
        scheduler cannot go back."""

    def on_step(self, whole: float) -> None:
        """Note a step of the loop. `whole`: its size as a share of a whole batch."""
        self.own += 1
        self._since += whole

    def tell(self, told: float) -> None:
        if told != self._told:
            if self._since:
                self._growth = (self._growth[1], (told - self._told) / self._since)
            self._most = (self._most[1], told - self._told)
            self._told, self._since = told, 0.0

    def on_rejoined(self, told: float) -> None:
        """Note the steps that the job has made while this worker was evicted."""
        self._told, self._since = told, 0.0

    @property
    def told(self) -> float:
        return self._told

    @property
    def now(self) -> float:
        if not self._estimates:
            return self._told
        since = self._since * max(0.0, min(1.0, *self._growth))
        return self._told + min(since, max(self._most))


class ScheduleCalls:
    """The calls of one scheduler: how many steps it makes when the training loop calls it.

    *Only a scheduler that is called once after every step follows the job. A scheduler that is called
    more rarely, such as once per pass, makes one step per call.*"""

    __slots__ = ("_ahead", "_called", "_calls", "_catching_up")

    def __init__(self) -> None:
        self._called: int | None = None
        """How many steps the loop had made at the last call."""
        self._calls = 0
        """How many calls in a row came one step after the call before."""
        self._catching_up = False
        """Whether the last calls may be those of a loop that catches up with the passes."""
        self._ahead = 0.0
        """How many more steps the scheduler has made than the job. It may have made steps before
        the job began, and loops differ in when they first call it."""

    def steps(self, position: int, job: JobSteps, catches_up: int = 0) -> int:
        """The loop calls the scheduler, which has made `position` steps. Returns how many steps it
        makes now. `catches_up`: in how many calls in a row a loop that steps the scheduler once per
        pass may catch up with the passes of the job."""
        called, self._called = self._called, job.own
        if called is None:
            soon = job.own <= 1
            # A scheduler that has made steps before the job goes on from there, on all workers. The
            # position from a checkpoint contains the steps of the job.
            before = max(0.0, position - job.joined) if job.resumed else position
            self._ahead = before + 1.0 - (job.own if soon else job.now - job.joined)
        else:
            soon = job.own == called + 1
            if job.own > called + 1:
                self._ahead = position + 1 - job.now
        self._calls = self._calls + 1 if soon else 0
        self._catching_up = soon and self._calls <= catches_up
        if self._calls <= catches_up:
            return 1
        return self.behind(position, job.now)

    def behind(self, position: int, now: float) -> int:
        """How many steps the scheduler still has to make when the job has made `now` steps."""
        return max(0, floor(now + self._ahead + _EPSILON) - position)

    def waits(self, job: JobSteps) -> bool:
        """Whether the scheduler has to wait, because it is not known yet how the loop calls it."""
        return self._catching_up and self._called is not None and job.own <= self._called + 1

    @property
    def follows(self) -> bool:
        """Whether the last calls show that the loop calls the scheduler after every step."""
        return self._calls > 1
