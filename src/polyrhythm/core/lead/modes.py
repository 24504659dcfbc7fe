"""The two modes in which contributions become part of the parameters: by rounds, or on arrival.

The mode is chosen once per job, by the policy's trait. All other parts of the lead call it and do not
ask which one it is (decision 041).
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from polyrhythm.core.lead.by_rounds import ByRounds
from polyrhythm.core.lead.contributions import Complete
from polyrhythm.core.lead.members import Member
from polyrhythm.core.lead.on_arrival import OnArrival
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.policy import PolicyEvent
from polyrhythm.wire.messages import Folded, Trailer


class Mode(Protocol):
    withholds: ClassVar[bool]
    """Whether workers must withhold contributions before a cut: no fold divides those that are in it
    from those that are not."""
    part: float
    """The part of the next round's equivalent that is done; always 0 by rounds."""

    @property
    def done(self) -> int:
        """How many rounds, or their equivalent, are folded or being folded."""

    # -- contributions -------------------------------------------------------------------------

    def sent(self, trailer: Trailer, now_ns: int) -> None:
        """A trailer has come."""

    def reported(self, server: int) -> None:
        """A server has reported a contribution."""

    def complete(self, complete: Complete) -> None:
        """A contribution is complete; the policy does not know of it yet."""

    def ahead(self, complete: Complete) -> bool:
        """Whether a contribution is complete that is in the next fold, and not in the one under way."""

    def counted(self, now_ns: int) -> None:
        """A contribution is complete, and the policy has decided about it."""

    def forget(self, worker: int, incarnation: int) -> None:
        """This member was removed."""

    # -- the policy ----------------------------------------------------------------------------

    def ask(self, event: PolicyEvent, now_ns: int) -> None:
        """Ask the policy, and carry out its decision, unless the job is ending."""

    def call_back(self, member: Member, now_ns: int) -> None:
        """A member may have chunks to visit again after it abstained."""

    def end_if_idle(self, now_ns: int) -> None:
        """End the job if no member can contribute any more."""

    # -- a stop on request ---------------------------------------------------------------------

    def stop(self, now_ns: int) -> None:
        """End the job in order: with the contributions that workers have made."""

    def stop_waiting(self, now_ns: int) -> None:
        """A stop has waited long enough for the open round."""

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        """Order a fold, as soon as that is possible."""

    def folded(self, message: Folded) -> bool:
        """A server has folded. Returns True if the fold is over."""

    def closed(self, now_ns: int) -> None:
        """A fold is over: check the goals of the job, and order its last fold if one is due."""

    def recount(self, versions: Mapping[int, int]) -> bool:
        """The primaries have changed and have these versions. Returns True if that ends a fold."""

    def repaid(self, now_ns: int) -> None:
        """No contribution is owed to a promoted server any more."""

    def resume(self, now_ns: int) -> None:
        """Every server applies the new routes: order the fold that waited for that, if any."""

    def learned(self, now_ns: int) -> None:
        """A learner has caught up with its primary."""

    def waiting(self) -> Waiting | None:
        """What the job waits for in this mode only, if anything."""


def choose_mode(parts: Parts) -> Mode:
    return ByRounds(parts) if parts.policy.traits.rounds else OnArrival(parts)
