"""Links over which nothing comes although they have not ended.

*A process sends a heartbeat over each of its TCP links to servers once per heartbeat interval, unless
it has other bytes to send. So a link over which nothing comes for longer is silent (`liveness` has the
limit). The server then reports the peer to the lead, once per heartbeat, until something comes. A link
that carries a large tensor slowly is not silent: every byte counts, and not only complete frames.*

A server cannot know whether the link or the peer is at fault. The lead decides that
(`core/lead/servers/broken_links.py`), because both report to it.
"""

from polyrhythm.core.liveness import silent_link_s

_LOOKS_MISSED = 3
"""If the server has not looked at its links for this many heartbeat intervals, it was paused, and
silence counts from the present look."""

Peer = tuple[str, int]
"""The name of a peer, and the incarnation to which the link belongs."""


class QuietLinks:
    def __init__(self, heartbeat_s: float) -> None:
        self._limit_ns = round(silent_link_s(heartbeat_s) * 1e9)
        self._pause_ns = round(_LOOKS_MISSED * heartbeat_s * 1e9)
        self._since_ns: dict[Peer, int] = {}
        """Per peer over whose link nothing came at the last look: when that was first seen."""
        self._looked_ns = 0

    def look(self, quiet: tuple[Peer, ...], now_ns: int) -> None:
        """Nothing has come over the links to these peers since the last look. Something has come
        over all other links."""
        paused = now_ns - self._looked_ns > self._pause_ns
        before = {} if paused else self._since_ns
        self._since_ns = {peer: before.get(peer, now_ns) for peer in quiet}
        self._looked_ns = now_ns

    def silent(self, now_ns: int) -> list[tuple[Peer, float]]:
        """The peers whose links are silent, with the duration of the silence in seconds."""
        quiet = [(peer, now_ns - since_ns) for peer, since_ns in self._since_ns.items()]
        return [(peer, quiet_ns / 1e9) for peer, quiet_ns in quiet if quiet_ns >= self._limit_ns]
