"""The links of a node, by the names of the processes at their other ends."""

import threading
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from polyrhythm.core.events import LinksQuiet, PeersHeard
from polyrhythm.core.links import LinkTable
from polyrhythm.core.names import server_number, worker_number
from polyrhythm.core.seat import Seat
from polyrhythm.io.link import Link
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import Alive


class Peers:
    def __init__(self) -> None:
        self._table: LinkTable[Link] = LinkTable()
        self._dirty: dict[Link, None] = {}
        """The links with queued messages that `flush` must send, in the order of their first
        message."""
        self._lock = threading.Lock()

    def add(self, link: Link) -> Link | None:
        """See `LinkTable.add`."""
        with self._lock:
            return self._table.add(link)

    def add_unnamed(self, link: Link) -> None:
        """See `LinkTable.add_unnamed`."""
        with self._lock:
            self._table.add_unnamed(link)

    def is_unnamed(self, link: Link) -> bool:
        with self._lock:
            return self._table.is_unnamed(link)

    def name(self, unnamed: str, peer: str, incarnation: int) -> tuple[Link | None, Link | None]:
        """See `LinkTable.name`."""
        with self._lock:
            return self._table.name(unnamed, peer, incarnation)

    def rename(self, old: str, new: str, incarnation: int) -> Link | None:
        """See `LinkTable.rename`."""
        with self._lock:
            return self._table.rename(old, new, incarnation)

    def get(self, peer: str) -> Link | None:
        return self._table.links.get(peer)

    def remove(self, link: Link) -> bool:
        """See `LinkTable.remove`."""
        with self._lock:
            return self._table.remove(link)

    def touch(self, link: Link) -> None:
        """Note that a message was queued on this link, so that `flush` sends it."""
        self._dirty[link] = None

    def flush(self) -> None:
        while self._dirty:
            link = next(iter(self._dirty))
            self._dirty.pop(link, None)
            link.flush()

    def keep_alive(self, message: Alive, seat: Seat) -> None:
        """Send a heartbeat over every link to a server that could become silent, unless other bytes
        wait for that link. The lead's process gets its heartbeat elsewhere."""
        for link in self.all():
            server = server_number(link.peer)
            if server not in (None, seat.server) and can_fall_silent(link) and not link.unsent:
                link.send(message)

    def close(self) -> None:
        for link in self.all():
            link.close()

    def dispose(self) -> None:
        for link in self.all():
            link.dispose()

    def all(self) -> list[Link]:
        with self._lock:
            return list(self._table.links.values())


def can_fall_silent(link: Link) -> bool:
    """Whether the network between the two ends can fail without ending the link."""
    return not link.kind.is_within_host


def hang_up(link: Link) -> None:
    """Close a link on a new thread, because closing waits until queued messages are sent."""

    def close() -> None:
        link.close()
        link.dispose()

    threading.Thread(target=close, name="close", daemon=True).start()


_MOST_UNREAD = 8


class HeartbeatSender:
    """Sends the lead's heartbeats to workers and servers.

    *A peer that does not read gets at most 8 heartbeats.* A worker reads nothing during a training
    step, which may take an hour. Heartbeats would fill its link and delay other messages of the
    lead, and a link whose peer reads nothing for a minute is ended. *One exception: while the job
    waits for its servers, peers send no heartbeats, so they cannot confirm those of the lead. Such
    a peer gets every heartbeat, because it reads all the time.*
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._sent: WeakKeyDictionary[Link, int] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[Link, int] = WeakKeyDictionary()

    def send(self, message: m.Alive) -> None:
        """Send a heartbeat to every peer. The pacemaker's own thread calls this, so that no other
        work of the process delays heartbeats."""
        for link in self._peers.all():
            sent, read = self._sent.get(link, 0), self._read.get(link)
            if read is None or sent - read < _MOST_UNREAD:
                self._sent[link] = sent + 1
                link.send(message)

    def confirm(self, link: Link, message: m.Alive) -> None:
        """Note how many heartbeats the peer has read, as its own heartbeat reports."""
        self._read[link] = message.sequence


class LinkWatch:
    """Finds the links of a server over which bytes have come since the last check, and the quiet
    ones.

    A check costs a comparison per link, and a system call for a quiet one. Reading a link costs
    only a counter (`Link.arrivals`).
    """

    def __init__(self, peers: Peers, seat: Callable[[], Seat]) -> None:
        self._peers = peers
        self._seat = seat
        self._arrivals: WeakKeyDictionary[Link, int] = WeakKeyDictionary()
        """Per link, its number of arrivals at the last check."""
        self._last: tuple[tuple[str, int], ...] = ()

    def heard(self) -> PeersHeard | None:
        """The event that names the links over which bytes have come; None if there are none."""
        heard = tuple((link.peer, link.incarnation) for link in self._watched() if self._came(link))
        return PeersHeard(heard) if heard else None

    def quiet(self) -> LinksQuiet | None:
        """The event that names the quiet links; None if there are none, and were none before."""
        quiet = tuple(
            (link.peer, link.incarnation) for link in self._watched() if self._is_quiet(link)
        )
        before, self._last = self._last, quiet
        return LinksQuiet(quiet) if quiet or before else None

    def _watched(self) -> Iterator[Link]:
        """The links to workers and servers that can become silent. Links of operators and unknown
        peers do not last, and the heartbeats of the lead are watched elsewhere."""
        for link in self._peers.all():
            peer = link.peer
            known = worker_number(peer) is not None or server_number(peer) is not None
            if known and can_fall_silent(link) and peer != self._seat().name:
                yield link

    def _came(self, link: Link) -> bool:
        """Whether bytes have been read since the last check."""
        before, now = self._arrivals.get(link, -1), link.arrivals
        self._arrivals[link] = now
        return now != before

    def _is_quiet(self, link: Link) -> bool:
        if self._came(link):
            return False
        # bytes that have arrived, but wait until this server reads them, show that the link works
        return link.pollable is None or not link.pollable.readable()
