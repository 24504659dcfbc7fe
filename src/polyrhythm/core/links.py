"""The links of a process (`LinkTable`, for real and simulated nodes), and the links to servers that
a machine needs (`Links`).

*A restarted process has a new incarnation and gets a new link. The end of the old link does not
affect the new one.*
"""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from polyrhythm.wire.messages import ServerSpec


class NamedLink(Protocol):
    peer: str
    """The name of the process at the other end. While it is unknown: the name of the link."""
    incarnation: int
    """The incarnation of that process; 0 until it is known."""


AnyLink = TypeVar("AnyLink", bound=NamedLink)


class LinkTable(Generic[AnyLink]):
    """The links of a process, by the names of the processes at their other ends.

    *A process has at most one link to each other process. A link to a later incarnation replaces
    the link to an earlier one, even if the end of the earlier link was not noticed. A second link
    to the same incarnation is not used.* If the other process has opened the link, the lead decides
    which process that is. Until then the link has its own name, and nothing is read from it.
    """

    __slots__ = ("_unnamed", "links")

    def __init__(self) -> None:
        self.links: dict[str, AnyLink] = {}
        """The links by the names of their peers."""
        self._unnamed: dict[str, AnyLink] = {}
        """The links whose peers the lead has not named yet. The keys are the names of the links."""

    def add(self, link: AnyLink) -> AnyLink | None:
        """Add a link. If the peer has a link with an older incarnation, the new link replaces it,
        and the old link is returned. If the peer has a link with the same or a later incarnation,
        the new link is not added, but returned."""
        before = self.links.get(link.peer)
        if before is not None and link.incarnation <= before.incarnation:
            return link
        self.links[link.peer] = link
        return before

    def add_unnamed(self, link: AnyLink) -> None:
        """Add a link without a peer. It must not be read until `name` gives it one."""
        self.links[link.peer] = self._unnamed[link.peer] = link

    def is_unnamed(self, link: AnyLink) -> bool:
        return self._unnamed.get(link.peer) is link

    def name(
        self, unnamed: str, peer: str, incarnation: int
    ) -> tuple[AnyLink | None, AnyLink | None]:
        """Give an unnamed link the peer that the lead has announced. Returns two links: this one
        (None if it has ended meanwhile), and the one that is no longer used (see `add`)."""
        link = self._unnamed.pop(unnamed, None)
        if link is None:
            return None, None
        del self.links[unnamed]
        link.peer, link.incarnation = peer, incarnation
        return link, self.add(link)

    def rename(self, old: str, new: str, incarnation: int) -> AnyLink | None:
        """Give the peer `old` the name `new` and this incarnation, as the lead in this process has
        decided. Returns the link that `new` had before, if any."""
        before = self.links.pop(new, None)
        link = self.links.pop(old, None)
        if link is not None:
            link.peer, link.incarnation = new, incarnation
            self.links[new] = link
        return before

    def remove(self, link: AnyLink) -> bool:
        """Remove a link. Returns False if it was removed or replaced before."""
        if self.links.get(link.peer) is not link:
            return False
        del self.links[link.peer]
        self._unnamed.pop(link.peer, None)
        return True


class Links:
    __slots__ = ("_dialed", "_linked", "_wanted")

    def __init__(self) -> None:
        # these three dicts map the number of a server to its incarnation
        self._wanted: dict[int, int] = {}
        self._linked: dict[int, int] = {}
        self._dialed: dict[int, int] = {}

    def __bool__(self) -> bool:
        """Whether a link to any server is needed."""
        return bool(self._wanted)

    def __contains__(self, server: int) -> bool:
        return server in self._wanted

    @property
    def complete(self) -> bool:
        """Whether every link that is needed is up."""
        return self._wanted.items() <= self._linked.items()

    @property
    def absent(self) -> list[int]:
        """The servers to which a link is needed, but is not up."""
        return sorted(server for server, _ in self._wanted.items() - self._linked.items())

    def want(self, specs: Iterable[ServerSpec]) -> None:
        """Set the servers to which links are needed. Links to other servers are no longer
        needed."""
        self._wanted = {spec.server: spec.incarnation for spec in specs}

    def lacks(self, specs: Iterable[ServerSpec]) -> bool:
        """Whether `specs` lacks a server to which a link is needed."""
        return not self._wanted.items() <= {spec.server: spec.incarnation for spec in specs}.items()

    def wants(self, server: int, incarnation: int) -> bool:
        """Whether a link to this incarnation of the server is needed; 0 stands for any
        incarnation."""
        return server in self._wanted and incarnation in (0, self._wanted[server])

    def incarnation(self, server: int) -> int:
        return self._wanted[server]

    def dial(self, specs: Iterable[ServerSpec]) -> tuple[ServerSpec, ...]:
        """Return the servers in `specs` to which no connection was tried yet, and mark them as
        tried."""
        missing = tuple(s for s in specs if self._dialed.get(s.server) != s.incarnation)
        self._dialed.update((spec.server, spec.incarnation) for spec in missing)
        return missing

    def on_linked(self, server: int, incarnation: int) -> None:
        self._linked[server] = incarnation

    def came(self, server: int, incarnation: int) -> None:
        """Note that a link to this server is open, so this process need not connect to it."""
        self._linked[server] = self._dialed[server] = incarnation

    def on_ended(self, server: int, incarnation: int) -> bool:
        """Note the end of a link. Returns False if a link to a later incarnation has replaced
        it."""
        if 0 < incarnation < self._linked.get(server, 0):
            return False
        self._linked.pop(server, None)
        if incarnation == 0 or self._dialed.get(server, 0) <= incarnation:
            self._dialed.pop(server, None)  # the server may be dialled again
        return True
