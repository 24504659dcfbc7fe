"""Steps in a row, taken as equally long: when each ends, and how many have ended.

A worker that nothing interrupts needs one event for all of them, however many they are.
"""

import msgspec


class Stretch(msgspec.Struct, gc=False):
    begins_ns: int
    steps: int
    took_ns: int
    """The time of all steps together."""

    def end_ns(self, step: int) -> int:
        """When the step of this number ends, counted from 1."""
        return self.begins_ns + self.took_ns * step // self.steps

    def current(self, now_ns: int) -> int:
        """The number of the step that ends next, or now."""
        passed_ns = now_ns - self.begins_ns
        step = max(1, -(-passed_ns * self.steps // self.took_ns))
        while step > 1 and self.end_ns(step - 1) >= now_ns:
            step -= 1
        return min(step, self.steps)
