"""The links of a node by the name of who is at the other end."""

import threading

from polyrhythm.io.link import Link


class Peers:
    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._dirty: dict[Link, None] = {}
        """What is to be flushed, in order: who was sent to first should have it first."""
        self._lock = threading.Lock()

    def add(self, link: Link) -> Link | None:
        """The link that is in the way: its peer's older one, which this one replaces, or this one
        itself, if the peer is linked already under the same incarnation or a later one."""
        with self._lock:
            before = self._links.get(link.peer)
            if before is not None and link.incarnation <= before.incarnation:
                return link
            self._links[link.peer] = link
            return before

    def rename(self, old: str, new: str, incarnation: int) -> Link | None:
        """The stranger behind `old` is `new`; the link that `new` had before, if any."""
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
        """False if it was removed before."""
        with self._lock:
            if self._links.get(link.peer) is not link:
                return False
            del self._links[link.peer]
            return True

    def touch(self, link: Link) -> None:
        """Something was sent that waits to be flushed."""
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
    """Closing waits for what was sent to leave, which nobody should have to wait for."""

    def close() -> None:
        link.close()
        link.dispose()

    threading.Thread(target=close, name="close", daemon=True).start()
