"""The evaluator: the member that evaluates the model for all members.

*There is exactly one evaluator as long as any member takes part. At first it is the member with the
lowest number. When it leaves, dies or is evicted, the remaining member with the lowest number takes
over. A former evaluator that comes back does not replace the present one* (decision 061).
"""

import msgspec

from polyrhythm.core.lead.members.view import Member, View
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.machine import Reason
from polyrhythm.core.names import own_number
from polyrhythm.wire import messages as m


class Chosen(msgspec.Struct):
    """The member that was chosen last, or none."""

    worker: int = -1
    """The number of the member; -1 if none was chosen yet."""
    incarnation: int = 0
    name: str = ""


class Evaluator:
    def __init__(self, chosen: Chosen, view: View, outbox: LeadOutbox) -> None:
        self._chosen = chosen
        self._view = view
        self._outbox = outbox

    def is_chosen(self, member: Member) -> bool:
        return (self._chosen.worker, self._chosen.incarnation) == member.key

    def choose(self) -> None:
        """Choose another evaluator if there is none, or if the present one is no longer a member.
        Call this whenever members have entered or were removed."""
        chosen = self._chosen
        if self._view.get(chosen.worker, chosen.incarnation) is not None:
            return
        entered = [member for member in self._view.members() if member.entered]
        if not entered:
            return
        reason = Reason("lowest-number")
        if chosen.worker >= 0:
            reason = Reason("evaluator-gone", {"name": chosen.name})
        member = min(entered, key=_order)
        chosen.worker, chosen.incarnation, chosen.name = *member.key, member.name
        self._outbox.tell(member, m.Appointed(**self._outbox.identity(member)))
        self._outbox.note("evaluator", worker=member.worker, name=member.name, **reason.noted())


def _order(member: Member) -> tuple[bool, int, int]:
    """The order in which members are chosen. Members with a number in their names come first, in
    the order of these numbers, which are the same in every run. The others follow in the order of
    their first admission."""
    number = own_number(member.name)
    return number is None, number or 0, member.worker
