"""Links whose peers have not completed the handshake: how many a server keeps, and for how long.

*At most 64 links may be silent (no hello yet), and at most 64 unproven (a hello but no proof yet).
When one more comes, the oldest link of that kind is closed. When file descriptors are scarce, the
oldest silent link is closed before the next connection is accepted, or the oldest unproven one if
no link is silent; so some descriptors stay free for members. A peer has ten seconds for the whole
handshake.* A flood of silent connections therefore never closes the link of a peer that has sent a
hello.
"""

MOST = 64
PATIENCE_NS = 10 * 10**9


class Strangers:
    """The links whose handshake is not complete, oldest first within each kind. The caller gives
    each link a number."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._silent: dict[int, int] = {}
        """The deadlines of the links whose peers have not sent a hello."""
        self._unproven: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._unproven)

    def make_room(self) -> list[int]:
        """File descriptors are scarce and a connection waits to be accepted. Returns the links to
        close."""
        kind = self._silent or self._unproven
        return [self._oldest(kind)] if kind else []

    def came(self, link: int, now_ns: int) -> list[int]:
        """A link was accepted. Returns the links to close."""
        closing = []
        if len(self._silent) >= self._most:
            closing.append(self._oldest(self._silent))
        self._silent[link] = now_ns + PATIENCE_NS
        return closing

    def said_hello(self, link: int) -> list[int]:
        """The peer has sent its hello, but no proof yet. Returns the links to close."""
        closing = []
        if len(self._unproven) >= self._most:
            closing.append(self._oldest(self._unproven))
        self._unproven[link] = self._silent.pop(link)
        return closing

    def gone(self, link: int) -> None:
        """Forget a link: its handshake is complete, or it has closed."""
        self._silent.pop(link, None)
        self._unproven.pop(link, None)

    def overdue(self, now_ns: int) -> list[int]:
        """Remove and return the links whose deadline has passed."""
        links = {**self._silent, **self._unproven}
        late = [link for link, until_ns in links.items() if until_ns <= now_ns]
        for link in late:
            self.gone(link)
        return late

    def wake_at(self) -> int | None:
        return min((*self._silent.values(), *self._unproven.values()), default=None)

    def _oldest(self, kind: dict[int, int]) -> int:
        link = next(iter(kind))
        del kind[link]
        return link
