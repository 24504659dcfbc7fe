"""The two modes in which contributions become part of the parameters: by rounds, or on arrival.

The policy's traits decide which mode a job has. The other parts of the lead call the mode through
this interface, and do not ask which of the two it is (decision 041).
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from polyrhythm.core.lead.by_rounds import ByRounds
from polyrhythm.core.lead.contributions import Complete
from polyrhythm.core.lead.members import Member
from polyrhythm.core.lead.on_arrival import ByArrival
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.policy import PolicyEvent
from polyrhythm.wire.messages import Folded, Trailer


class Mode(Protocol):
    withholds: ClassVar[bool]
    """Whether workers must withhold contributions before a cut. With rounds they need not, because
    a fold separates the contributions before it from those after it."""
    part: float
    """The fraction of the next round equivalent that is done; always 0 in the mode with rounds."""

    @property
    def done(self) -> int:
        """How many rounds (on arrival: round equivalents) are folded or being folded."""

    # -- contributions -------------------------------------------------------------------------

    def sent(self, trailer: Trailer, now_ns: int) -> None:
        """The trailer of a contribution has come."""

    def reported(self, server: int) -> None:
        """A server has reported a contribution."""

    def complete(self, complete: Complete) -> bool:
        """A contribution is complete; the policy does not know of it yet. Returns whether the
        contribution belongs to the next fold instead of the fold under way."""

    def tell(self, member: Member, now_ns: int) -> None:
        """A contribution of this member is complete, and the policy knows of it: tell the member how
        far the job has come, unless its release tells it."""

    def counted(self, now_ns: int) -> None:
        """A contribution is complete, and the policy knows of it."""

    def forget(self, worker: int, incarnation: int) -> None:
        """This member was removed: forget what this mode knows of it."""

    # -- the policy ----------------------------------------------------------------------------

    def ask(self, event: PolicyEvent, now_ns: int) -> None:
        """Ask the policy, and carry out its decision, unless the job is ending."""

    def call_back(self, member: Member, now_ns: int) -> None:
        """A member that abstained may have chunks to visit now."""

    def end_if_idle(self, now_ns: int) -> None:
        """End the job if no member can contribute any more."""

    # -- a stop on request ---------------------------------------------------------------------

    def stop(self, now_ns: int) -> None:
        """End the job in an orderly way: the contributions that workers have computed still
        count."""

    def stop_waiting(self, now_ns: int) -> None:
        """The time for which a requested stop waits for the open round is over: fold that round
        now."""

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        """Order a fold, as soon as possible."""

    def folded(self, message: Folded) -> bool:
        """A server has folded. Returns True if the fold is over."""

    def closed(self, now_ns: int) -> None:
        """A fold is over: check the goals of the job, and order the last fold if one is reached."""

    def released(self, now_ns: int) -> None:
        """The members were released after a fold."""

    def recount(self, versions: Mapping[int, int]) -> bool:
        """The primaries have changed; `versions` gives the version of each primary. Returns True if the
        fold under way is over now."""

    def repaid(self, now_ns: int) -> None:
        """Workers have finished sending contributions again to promoted servers."""

    def resume(self, now_ns: int) -> None:
        """Every server applies the new routes: if a fold has waited for the routes, order it."""

    def learned(self, now_ns: int) -> None:
        """A learner has caught up with its primary."""

    def waiting(self) -> Waiting | None:
        """What the job waits for, if only this mode can wait for it; otherwise None."""


def choose_mode(parts: Parts) -> Mode:
    return ByRounds(parts) if parts.policy.traits.rounds else ByArrival(parts)
