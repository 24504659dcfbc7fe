"""The links of a node, by the names of the peers."""

import threading

from polyrhythm.core.names import server_number
from polyrhythm.io.link import Link
from polyrhythm.wire.messages import Alive


class Peers:
    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._dirty: dict[Link, None] = {}
        """The links with queued messages that `flush` must send, in the order of their first
        message."""
        self._lock = threading.Lock()

    def add(self, link: Link) -> Link | None:
        """Add a link. If the peer has a link with an older incarnation, it is replaced and
        returned. If the peer has a link with the same or a later incarnation, the new link is not
        added, and is returned itself."""
        with self._lock:
            before = self._links.get(link.peer)
            if before is not None and link.incarnation <= before.incarnation:
                return link
            self._links[link.peer] = link
            return before

    def rename(self, old: str, new: str, incarnation: int) -> Link | None:
        """Rename the peer `old` to `new`. Returns the link that `new` had before, if any."""
        with self._lock:
            before = self._links.pop(new, None)
            link = self._links.pop(old, None)
            if link is not None:
                link.peer, link.incarnation = new, incarnation
                self._links[new] = link
            return before

    def get(self, peer: str) -> Link | None:
        return self._links.get(peer)

    def remove(self, link: Link) -> bool:
        """Remove a link. Returns False if it was removed or replaced before."""
        with self._lock:
            if self._links.get(link.peer) is not link:
                return False
            del self._links[link.peer]
            return True

    def touch(self, link: Link) -> None:
        """Note that a message was queued on this link, so that `flush` sends it."""
        self._dirty[link] = None

    def flush(self) -> None:
        while self._dirty:
            link = next(iter(self._dirty))
            self._dirty.pop(link, None)
            link.flush()

    def keep_alive(self, message: Alive) -> None:
        """Send a heartbeat over every link to a server that could fall silent, unless other bytes
        wait to be sent over it."""
        for link in self.all():
            if can_fall_silent(link) and server_number(link.peer) is not None and not link.unsent:
                link.send(message)

    def close(self) -> None:
        for link in self.all():
            link.close()

    def dispose(self) -> None:
        for link in self.all():
            link.dispose()

    def all(self) -> list[Link]:
        with self._lock:
            return list(self._links.values())


def can_fall_silent(link: Link) -> bool:
    """Whether the network between the two ends can fail without ending the link."""
    return link.kind == "tcp"


def hang_up(link: Link) -> None:
    """Close a link on a new thread, because closing waits until queued messages are sent."""

    def close() -> None:
        link.close()
        link.dispose()

    threading.Thread(target=close, name="close", daemon=True).start()
