"""The interface of every machine: it takes an event and the time, and returns effects.

The runtime and the simulator run the same machines. A machine therefore never reads a clock, and
the same events at the same times give the same effects.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from polyrhythm.wire.messages.reasons import Reason as Reason


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """What a machine waits for, since when, and the deadline of the wait if it has one."""

    reason: Reason
    since_ns: int
    until_ns: int | None = None


class Deadline(msgspec.Struct):
    """The time at which a part of a machine wants to be called."""

    wake_ns: int | None = None
    """None: no deadline."""

    def is_over(self, now_ns: int) -> bool:
        return self.wake_ns is not None and now_ns >= self.wake_ns

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadline by the time in which the process was paused."""
        if self.wake_ns is not None:
            self.wake_ns += paused_ns


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An input of a machine from its own process. Messages of peers are inputs too."""


class Effect(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An instruction of a machine. The runtime or the simulator carries it out."""


class Machine(Protocol):
    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        """Change the state, and return the effects to carry out."""

    def wake_at(self) -> int | None:
        """When the machine wants a `Tick`; None if it needs none."""

    def why(self) -> Waiting:
        """What the machine waits for now."""

    def check(self) -> None:
        """Raise InvariantBroken if the state is inconsistent."""
