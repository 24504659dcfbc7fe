"""The links of a node by the name of who is at the other end."""

import threading

from polyrhythm.io.link import Link


class Peers:
    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._dirty: set[Link] = set()
        self._lock = threading.Lock()

    def add(self, link: Link) -> bool:
        """False if another link to the same peer is there."""
        with self._lock:
            if link.peer in self._links:
                return False
            self._links[link.peer] = link
            return True

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            link = self._links.pop(old, None)
            if link is not None:
                link.peer = new
                self._links[new] = link

    def get(self, peer: str) -> Link | None:
        return self._links.get(peer)

    def remove(self, link: Link) -> bool:
        """False if it was removed before."""
        with self._lock:
            if self._links.get(link.peer) is not link:
                return False
            del self._links[link.peer]
            return True

    def touch(self, link: Link) -> None:
        """Something was sent that waits to be flushed."""
        self._dirty.add(link)

    def flush(self) -> None:
        while self._dirty:
            self._dirty.pop().flush()

    def close(self) -> None:
        for link in self._all():
            link.close()

    def dispose(self) -> None:
        for link in self._all():
            link.dispose()

    def _all(self) -> list[Link]:
        with self._lock:
            return list(self._links.values())
