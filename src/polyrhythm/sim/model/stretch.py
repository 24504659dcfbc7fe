"""Several steps in a row that are assumed to be equally long: when each one ends, and which one is
being computed.

A worker that is not interrupted needs one event for a whole stretch, however many steps it has.
"""

import msgspec


class Stretch(msgspec.Struct, gc=False):
    begins_ns: int
    steps: int
    took_ns: int
    """The time of all steps together."""

    def end_ns(self, step: int) -> int:
        """Return when a step ends. The first step has the number 1."""
        return self.begins_ns + self.took_ns * step // self.steps

    def current(self, now_ns: int) -> int:
        """Return the number of the first step that ends now or later."""
        passed_ns = now_ns - self.begins_ns
        step = max(1, -(-passed_ns * self.steps // self.took_ns))
        while step > 1 and self.end_ns(step - 1) >= now_ns:
            step -= 1
        return min(step, self.steps)
