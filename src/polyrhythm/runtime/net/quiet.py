"""Which links of a server are quiet: nothing has come over them since the last look.

Looking costs a comparison per link, and a system call for a quiet one. Reading a link costs nothing
more than counting (`Link.arrivals`).
"""

from weakref import WeakKeyDictionary

from polyrhythm.core.events import LinksQuiet
from polyrhythm.core.names import server_number, worker_number
from polyrhythm.io.link import Link
from polyrhythm.runtime.net.peers import Peers, can_fall_silent


class QuietLinkReader:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._arrivals: WeakKeyDictionary[Link, int] = WeakKeyDictionary()
        """Per link, the number of its arrivals at the last look."""
        self._last: tuple[tuple[str, int], ...] = ()

    def look(self) -> LinksQuiet | None:
        """The event that names the quiet links; None if there are none, and were none before."""
        quiet = tuple(
            (link.peer, link.incarnation) for link in self._peers.all() if self._is_quiet(link)
        )
        before, self._last = self._last, quiet
        return LinksQuiet(quiet) if quiet or before else None

    def _is_quiet(self, link: Link) -> bool:
        peer = link.peer
        if not can_fall_silent(link):
            return False
        if worker_number(peer) is None and server_number(peer) is None:
            return False  # the lead's link is watched by its heartbeats, and others do not last
        before, now = self._arrivals.get(link, -1), link.arrivals
        self._arrivals[link] = now
        if now != before:
            return False
        # bytes that have arrived, but wait until this server reads them, show that the link works
        return link.pollable is None or not link.pollable.readable()
