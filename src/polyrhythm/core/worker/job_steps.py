"""Makes learning-rate schedules follow the steps of the job instead of the steps of one worker's
loop.

*A step of the job is one whole batch of each of the workers with which the job began
(`--workers`).* Under `bsp` this is one round, in which the training loop of each worker makes one
step. Under other policies the two differ: the loop of a fast worker makes more steps than that of a
slow worker, under `fsp` a step is a part of a batch, and the loop of a worker that joined late has
missed steps.

The lead counts the steps of the job and tells the workers. If a training loop calls
`scheduler.step()` after every step, each call advances the scheduler to the number of the job's
steps: by none, one or several. So after equally many passes the learning rate is the same on all
workers and under every policy (docs/decisions/111).
"""

from math import floor, inf

_EPSILON = 1e-6


class JobSteps:
    """The number of steps that the job has made, as one worker knows it: the last count from the
    lead, plus an estimate of the steps since then."""

    __slots__ = ("_estimates", "_growth", "_most", "_since", "_told", "joined", "own", "resumed")

    def __init__(self, told: float, *, estimates: bool = True, resumed: bool = False) -> None:
        """`told`: the steps that the job had made when this worker began. `estimates`: whether the
        worker estimates the steps of the job between two counts from the lead. It need not if the
        servers make one step per round, because the lead then sends its count before every step.
        `resumed`: whether the job continues from a checkpoint, which may contain the positions of
        schedulers."""
        self.joined = told
        self.resumed = resumed
        self.own = 0
        """The number of steps of the worker's loop."""
        self._told = told
        self._since = 0.0
        """The steps of the loop since the last count from the lead, in steps over whole batches."""
        self._estimates = estimates
        self._most = (inf, inf)
        """The steps of the job between the last two counts from the lead. The estimate adds at most
        this many."""
        self._growth = (1.0, 1.0)
        """The measured numbers of job steps per step of this worker, one for each time between two
        counts from the lead. The estimate uses the lowest of them, and at most 1, because a
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
    """Decides how many steps one scheduler makes when the training loop calls it.

    *Only a scheduler that is called once after every step follows the job. A scheduler that is
    called more rarely, such as once per pass, makes one step per call.*
    """

    __slots__ = ("_ahead", "_called", "_calls", "_catching_up")

    def __init__(self) -> None:
        self._called: int | None = None
        """How many steps the loop had made at the last call."""
        self._calls = 0
        """How many calls in a row came one step after the call before."""
        self._catching_up = False
        """Whether the last calls may be those of a loop that steps the scheduler once per pass, and
        now catches up with passes that other workers have visited."""
        self._ahead = 0.0
        """By how many steps the scheduler is ahead of the job. It may have made steps before the
        job began, and loops differ in their first call."""

    def steps(self, position: int, job: JobSteps, catches_up: int = 0) -> int:
        """How many steps the scheduler makes at this call of the loop. `position`: how many steps
        it has made. `catches_up`: a loop that steps the scheduler once per pass may call it this
        many times in a row to catch up with the job's passes."""
        called, self._called = self._called, job.own
        if called is None:
            soon = job.own <= 1
            # If a scheduler has made steps before the job began, it continues from there, on all
            # workers. In a job that resumed, its position includes the steps of the job.
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
        """Whether the scheduler has to wait until it is known how the loop calls it."""
        return self._catching_up and self._called is not None and job.own <= self._called + 1

    @property
    def follows(self) -> bool:
        """Whether the last calls show that the loop calls the scheduler after every step."""
        return self._calls > 1
