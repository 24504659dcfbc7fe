"""A stop that somebody asked for.

*With rounds, the job stops at the next fold: the workers are told to contribute what they have, so the
round that is open counts. A worker that does not contribute within `PATIENCE_NS` is not waited for:
the round is folded without it, and it gets the final version at its next step.* Without rounds there
is nothing to wait for: the servers fold what has arrived and nothing after it.
"""

PATIENCE_NS = 10 * 10**9
"""For the round that is open when the stop is asked for."""


class Stopping:
    def __init__(self) -> None:
        self.asked = False
        self.wake_ns: int | None = None
        """When the open round is folded at the latest."""

    def begin(self, now_ns: int) -> None:
        """A stop was asked for while a round is open."""
        self.asked = True
        self.wake_ns = now_ns + PATIENCE_NS

    def overdue(self, now_ns: int) -> bool:
        return self.wake_ns is not None and now_ns >= self.wake_ns

    def settled(self) -> None:
        """The last fold is decided."""
        self.wake_ns = None

    def exclude_time(self, paused_ns: int) -> None:
        """The lead was paused for so long: nobody could contribute meanwhile."""
        if self.wake_ns is not None:
            self.wake_ns += paused_ns
