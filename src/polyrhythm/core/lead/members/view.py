"""The view: which workers are members, and each member's incarnation.

*The view epoch rises with every admission and removal. The incarnation of a worker is the epoch at
which it was admitted. So a worker that rejoins under its old name has a new incarnation.*
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from polyrhythm.core.values import name_order
from polyrhythm.wire.messages import MemberSpec


@dataclass(slots=True, eq=False)
class Member:
    worker: int
    name: str
    incarnation: int
    since_ns: int
    attached: bool = False
    """Whether the member has attached a model that is equal to the job's model."""
    routed: bool = False
    """Whether the member knows the routes of the slices."""
    enrolled: bool = False
    """Whether the member has enrolled a data set. If so, it gets leases of chunks."""
    entered: bool = False
    """Whether the policy counts this worker as a member, so the worker takes part in folds."""
    late: bool = False
    """Whether the member entered after round 1 was opened."""
    resting: bool = False
    """Whether the member has abstained, and waits for chunks, for the next round or for the end of
    the job."""
    confirms: int = 0
    """The lease under which the member abstained; 0 if there is none. It is confirmed when the
    member's last contribution is complete."""
    loop_over: bool = False
    """Whether the member has reported that its training loop is over."""

    @property
    def key(self) -> tuple[int, int]:
        """Worker and incarnation. A worker that rejoins is a different member."""
        return self.worker, self.incarnation


class View(msgspec.Struct, eq=False):
    epoch: int = 0
    attached: int = 0
    """How many members have attached the job's model."""
    _members: dict[int, Member] = {}
    _numbers: dict[str, int] = {}
    """Per name, the number of the worker. Former members keep their numbers."""

    def resume(self, epoch: int, numbers: Mapping[str, int]) -> None:
        """Continue from a checkpoint: the view epoch continues from `epoch`, and known names keep
        their numbers."""
        self.epoch = epoch
        self._numbers = dict(numbers)

    @property
    def numbers(self) -> Mapping[str, int]:
        """Per name, the number of the worker that is or was a member."""
        return self._numbers

    def __contains__(self, worker: int) -> bool:
        return worker in self._members

    def __len__(self) -> int:
        return len(self._members)

    def get(self, worker: int, incarnation: int) -> Member | None:
        """The member with this number, if this is its current incarnation."""
        member = self._members.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def named(self, name: str) -> Member | None:
        return self._members.get(self._numbers.get(name, -1))

    def at(self, worker: int) -> Member | None:
        """The member with this number, in any incarnation."""
        return self._members.get(worker)

    def known(self, name: str) -> bool:
        """Whether a worker with this name is or was a member."""
        return name in self._numbers

    def members(self) -> list[Member]:
        return list(self._members.values())

    def all_attached(self) -> list[Member]:
        return [member for member in self._members.values() if member.attached]

    def all_rest(self) -> bool:
        return all(member.resting for member in self._members.values())

    def attach(self, member: Member) -> None:
        self.attached += not member.attached
        member.attached = True

    def enter(self, member: Member) -> None:
        """Let the policy count this worker as a member from now on."""
        member.entered = True

    def admit(self, name: str, now_ns: int) -> Member:
        self.epoch += 1
        worker = self._numbers.setdefault(name, len(self._numbers))
        member = self._members[worker] = Member(worker, name, self.epoch, now_ns)
        return member

    def remove(self, worker: int) -> Member | None:
        member = self._members.pop(worker, None)
        if member is not None:
            self.epoch += 1
            self.attached -= member.attached
        return member

    def entered(self) -> list[tuple[int, int]]:
        """The keys of the members that have entered, ordered by name, so that the order of joining
        does not matter."""
        entered = (member for member in self._members.values() if member.entered)
        return [each.key for each in sorted(entered, key=lambda each: name_order(each.name))]

    def has_entered(self, members: Collection[tuple[int, int]]) -> bool:
        """Whether exactly these members have entered."""
        present = self._members.values()
        return {(m.worker, m.incarnation) for m in present if m.entered} == set(members)

    def specs(self) -> tuple[MemberSpec, ...]:
        """All members that have entered, as sent to servers."""
        members = self._members.values()
        return tuple([MemberSpec(m.worker, m.incarnation, m.name) for m in members if m.entered])
