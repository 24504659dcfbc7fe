"""Who is a member, under which incarnation, with an epoch that grows with every change.

*The incarnation is the view epoch at which the lead admitted the worker. A name is refused while
its first holder is linked, otherwise it is a rejoin.*
"""

from dataclasses import dataclass, field

from polyrhythm.wire.messages import MemberSpec


@dataclass(slots=True)
class Member:
    worker: int
    name: str
    incarnation: int
    since_ns: int
    attached: bool = False
    routed: bool = False
    """It was told where slices live."""
    enrolled: bool = False
    entered: bool = False
    """The policy knows it: it takes part in rounds."""
    resting: bool = False
    """Without rounds: it abstained, and waits for chunks or the end."""

    confirms: int = 0
    """The lease that it abstained under while something of its was still arriving."""

    key: tuple[int, int] = field(init=False)
    """Who comes back under the same number is somebody else."""

    def __post_init__(self) -> None:
        self.key = self.worker, self.incarnation


class View:
    def __init__(self) -> None:
        self.epoch = 0
        self.attached = 0
        """How many have handed in the job's model."""
        self._members: dict[int, Member] = {}
        self._ids: dict[str, int] = {}
        self._specs: tuple[MemberSpec, ...] | None = None
        """Of all who have entered, until that changes."""

    def __contains__(self, worker: int) -> bool:
        return worker in self._members

    def __len__(self) -> int:
        return len(self._members)

    def get(self, worker: int, incarnation: int) -> Member | None:
        """The member if this is its current incarnation, else None: then it is a ghost."""
        member = self._members.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def holder(self, name: str) -> Member | None:
        return self._members.get(self._ids.get(name, -1))

    def at(self, worker: int) -> Member | None:
        """Who holds this number now, under whatever incarnation."""
        return self._members.get(worker)

    def known(self, name: str) -> bool:
        """Somebody of this name is or was here."""
        return name in self._ids

    def members(self) -> list[Member]:
        return list(self._members.values())

    def all_rest(self) -> bool:
        return all(member.resting for member in self._members.values())

    def attach(self, member: Member) -> None:
        self.attached += not member.attached
        member.attached = True

    def enter(self, member: Member) -> None:
        """The policy knows it from now on."""
        member.entered = True
        self._specs = None

    def admit(self, name: str, now_ns: int) -> Member:
        self.epoch += 1
        worker = self._ids.setdefault(name, len(self._ids))
        member = self._members[worker] = Member(worker, name, self.epoch, now_ns)
        return member

    def remove(self, worker: int) -> Member | None:
        member = self._members.pop(worker, None)
        if member is not None:
            self._specs = None
            self.epoch += 1
            self.attached -= member.attached
        return member

    def specs(self) -> tuple[MemberSpec, ...]:
        """Of all who have entered: the same tuple as long as they are the same."""
        if self._specs is None:
            entered = (member for member in self._members.values() if member.entered)
            self._specs = tuple(MemberSpec(m.worker, m.incarnation, m.name) for m in entered)
        return self._specs
