"""The lead's heartbeats on their way to workers and servers.

*A peer that does not read gets no more of them than fit beside everything else.* A worker reads nothing
during a step, which may take an hour; beats that filled its link would hold up what the lead has to
say, and a link that takes nothing for a minute is cut off. *A peer that has not begun to beat itself,
because the job waits for its servers, gets every beat: it reads all the time, and cannot confirm.*
"""

from weakref import WeakKeyDictionary

from polyrhythm.io.link import Link
from polyrhythm.runtime.net.peers import Peers
from polyrhythm.wire import messages as m

_MOST_UNREAD = 8


class Beats:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._sent: WeakKeyDictionary[Link, int] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[Link, int] = WeakKeyDictionary()

    def send(self, message: m.Alive) -> None:
        """To every peer; on the pacemaker's thread, whatever other threads are at."""
        for link in self._peers.all():
            sent, read = self._sent.get(link, 0), self._read.get(link)
            if read is None or sent - read < _MOST_UNREAD:
                self._sent[link] = sent + 1
                link.send(message)

    def confirm(self, link: Link, message: m.Alive) -> None:
        """The peer's own heartbeat says how many it has read."""
        self._read[link] = message.sequence
