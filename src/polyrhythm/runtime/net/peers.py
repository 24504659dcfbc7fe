"""The links of a node by the names of their peers."""

import threading

from polyrhythm.io.link import Link


class Peers:
    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._dirty: dict[Link, None] = {}
        """The links to flush, in the order in which messages were queued."""
        self._lock = threading.Lock()

    def add(self, link: Link) -> Link | None:
        """Add a link. Returns the older link of its peer, which this one replaces; or this link
        itself, which is then not added, if the peer is linked already under the same or a later
        incarnation."""
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
        """Remove a link; False if it was removed before."""
        with self._lock:
            if self._links.get(link.peer) is not link:
                return False
            del self._links[link.peer]
            return True

    def touch(self, link: Link) -> None:
        """A message was queued that `flush` will send."""
        self._dirty[link] = None

    def flush(self) -> None:
        while self._dirty:
            link = next(iter(self._dirty))
            self._dirty.pop(link, None)
            link.flush()

    def close(self) -> None:
        for link in self.all():
            link.close()

    def dispose(self) -> None:
        for link in self.all():
            link.dispose()

    def all(self) -> list[Link]:
        with self._lock:
            return list(self._links.values())


def hang_up(link: Link) -> None:
    """Close a link on a thread of its own, because closing waits until queued messages are sent."""

    def close() -> None:
        link.close()
        link.dispose()

    threading.Thread(target=close, name="close", daemon=True).start()
