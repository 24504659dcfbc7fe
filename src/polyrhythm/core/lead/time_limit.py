"""The time limit of a job (`--max-seconds`), and how long the job may go on after it.

*The limit is a goal like others: the job ends with the first fold after it. If no fold comes, the
job waits for `patience_ns` and then ends without one (`overtime.py`). A worker that computes at the
limit has begun its step before the limit, so it contributes within the time of a step. The longest
step that the job has seen is therefore part of the patience (decision 105).*

The limit counts from the opening of round 1. *If round 1 does not open within the start timeout, the
limit counts from there: a job whose workers hang before they attach a model ends too.*
"""

LEAST_NS = 10 * 10**9
MOST_NS = 60 * 10**9


def patience_ns(limit_ns: int, longest_ns: int) -> int:
    """How long a job goes on after its limit without a fold. `longest_ns`: the longest time between
    two contributions of a worker before the limit."""
    return min(max(limit_ns // 10, LEAST_NS), MOST_NS) + longest_ns


class TimeLimit:
    def __init__(self, seconds: float | None) -> None:
        """`seconds`: the limit; None if the job has none."""
        self._limit_ns = None if seconds is None else round(seconds * 1e9)
        self._until_ns: int | None = None
        """When the job reaches its limit; None if there is no limit, or if round 1 has not opened."""
        self._since_ns = 0
        """When the patience began."""
        self._began_ns: dict[int, int] = {}
        """Per worker, when it entered or contributed last."""
        self._longest_ns = 0
        self.wake_ns: int | None = None
        """When to call `overdue`; None if the lead waits for nothing after the limit."""

    @property
    def patience_ns(self) -> int:
        return patience_ns(self._limit_ns or 0, self._longest_ns)

    @property
    def waits(self) -> bool:
        """Whether the lead waits for the end of the patience."""
        return self.wake_ns is not None

    def expect(self, until_ns: int) -> None:
        """A worker has joined, and round 1 should open until this time."""
        if self._limit_ns is not None and self._until_ns is None and not self.waits:
            self.wait_from(until_ns + self._limit_ns)

    def open(self, now_ns: int) -> None:
        """Round 1 opens: the time counts from now on."""
        if self._limit_ns is not None:
            self._until_ns = now_ns + self._limit_ns
            self.wait_from(self._until_ns)

    def passed(self, now_ns: int) -> bool:
        return self._until_ns is not None and now_ns >= self._until_ns

    def entered(self, worker: int, now_ns: int) -> None:
        """A worker has become a member: it begins its first step."""
        if self._limit_ns is not None:
            self._began_ns[worker] = now_ns

    def contributed(self, worker: int, now_ns: int) -> None:
        """A contribution is complete. *Steps that end after the limit are not measured, so the
        patience is never longer than the limit and a minute.*"""
        if self._limit_ns is not None and not self.passed(now_ns):
            took_ns = now_ns - self._began_ns.get(worker, now_ns)
            self._began_ns[worker] = now_ns
            if took_ns > self._longest_ns:
                self._longest_ns = took_ns

    def after_s(self, now_ns: int) -> float:
        """The seconds since the limit was reached."""
        return 0.0 if self._until_ns is None else (now_ns - self._until_ns) / 1e9

    # -- after the limit -----------------------------------------------------------------------

    def wait_from(self, since_ns: int) -> None:
        """Wait for the patience, which begins at this time."""
        self._since_ns = since_ns
        self.wake_ns = since_ns + self.patience_ns

    def overdue(self, now_ns: int) -> bool:
        """Whether the patience is over."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return False
        # workers may have made longer steps since `wake_ns` was computed
        self.wake_ns = self._since_ns + self.patience_ns
        return now_ns >= self.wake_ns

    def settled(self) -> None:
        """Nothing is waited for any more."""
        self.wake_ns = None

    def resumed(self, now_ns: int) -> None:
        """The lead was paused until now, and has read no message meanwhile: its patience begins
        again."""
        if self.wake_ns is not None:
            self.wait_from(max(self._since_ns, now_ns))
