"""Sends the lead's heartbeats to workers and servers.

*A peer that does not read gets at most 8 heartbeats.* A worker reads nothing during a training
step, which may take an hour. Heartbeats that filled its link would delay other messages of the
lead, and a link whose peer reads nothing for a minute is ended. *While the job waits for its
servers, a peer sends no heartbeats, and so cannot confirm those of the lead. Such a peer gets every
heartbeat, because it reads all the time.*
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
        """Send a heartbeat to every peer. The pacemaker's own thread calls this, so that no other
        work of the process delays heartbeats."""
        for link in self._peers.all():
            sent, read = self._sent.get(link, 0), self._read.get(link)
            if read is None or sent - read < _MOST_UNREAD:
                self._sent[link] = sent + 1
                link.send(message)

    def confirm(self, link: Link, message: m.Alive) -> None:
        """Note how many heartbeats the peer has read. The peer says so in its own heartbeats."""
        self._read[link] = message.sequence
