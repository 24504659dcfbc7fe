"""Reads the links of a server: one polling thread for most links, and a thread each for links that
carry large tensors as bytes."""

import threading
from collections.abc import Callable
from typing import Protocol

from polyrhythm.io.link import Link, Payload, PollableLink
from polyrhythm.io.poll import Poller
from polyrhythm.runtime.net.boundary import fault_of
from polyrhythm.tensors.threads import work_with
from polyrhythm.wire import messages as m

FRAMES_PER_TURN = 64
"""*At most this many frames of a link are read at a time, before the others get their turn. So a
flood of frames from one member delays those of others by at most one turn.* A link with its own
thread that sends as many frames in a row without a payload waits until the machines have handled
them."""


class Take(Protocol):
    """Called with each message. `wait`: the payload's memory is reused after the call, so it must
    have been used when the call returns."""

    def __call__(
        self, link: Link, message: m.Message, payload: Payload | None, wait: bool
    ) -> None: ...


class LinkReaders:
    def __init__(
        self,
        take: Take,
        run: Callable[[], None],
        catch_up: Callable[[], None],
        end_link: Callable[[Link, Exception], None],
        needs_thread: Callable[[Link], bool],
    ) -> None:
        """`take` is called with each message. `run` is called when all received messages are taken,
        and `catch_up` when a link has had its turn and more of its messages are there; it returns
        when all of them are handled. `end_link` is called when a link has ended. `needs_thread`:
        whether a link needs a thread, because it carries large tensors as bytes; small messages and
        references are faster under the poller."""
        self._take = take
        self._run = run
        self._catch_up = catch_up
        self._end_link = end_link
        self._needs_thread = needs_thread
        self._poller = Poller()
        self._closing = False
        self._thread = threading.Thread(target=self._poll, name="poll", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def polls(self) -> bool:
        """Whether the calling thread is the polling thread."""
        return threading.current_thread() is self._thread

    def begin(self, link: Link) -> None:
        """Read a link from now on: under the poller, or on another thread."""
        if not self._read_by_poller(link):
            self.begin_apart(link)

    def read(self, link: Link) -> None:
        """Read a link to its end: under the poller, or on this thread."""
        if self._read_by_poller(link):
            return
        work_with(1)
        small = 0
        while (received := self._take_next(link)) is not None:
            small = small + 1 if received[1] is None else 0
            if small < FRAMES_PER_TURN:
                self._run()
            else:
                small = 0
                self._catch_up()

    def _take_next(self, link: Link) -> tuple[m.Message, Payload | None] | None:
        """Take the next message; None if that ended the link."""
        try:
            message, payload = link.receive()
            self._take(link, message, payload, wait=True)
        except Exception as error:
            self._end_link(link, fault_of(link.peer, error))
            return None
        return message, payload

    def forget(self, link: Link) -> None:
        if (pollable := link.pollable) is not None:
            self._poller.remove(pollable)

    def begin_apart(self, link: Link) -> None:
        """Read a link from now on, without using anything that has come on this thread."""
        name = f"read-{link.peer}"
        threading.Thread(target=self.read, args=(link,), name=name, daemon=True).start()

    def _read_by_poller(self, link: Link) -> bool:
        pollable = link.pollable
        if pollable is None or self._needs_thread(link):
            return False
        try:
            for message, payload in pollable.take_buffered():
                self._take(link, message, payload, wait=False)
        except Exception as error:
            self._end_link(link, fault_of(link.peer, error))
            return True
        self._run()
        self._poller.add(pollable, lambda: self._ready(pollable))
        return True

    def _poll(self) -> None:
        work_with(1)
        while not self._closing:
            if self._poller.poll(1.0):
                self._catch_up()
            else:
                self._run()

    def _ready(self, link: PollableLink) -> bool:
        """Take the messages of one turn; True if more may be there."""
        if self._needs_thread(link):
            self._poller.remove(link)
            self.begin_apart(link)
            return False
        try:
            for message, payload in link.receive_ready(most=FRAMES_PER_TURN):
                self._take(link, message, payload, wait=False)
        except Exception as error:
            self._poller.remove(link)
            self._end_link(link, fault_of(link.peer, error))
            return False
        return link.unfinished

    def stop(self) -> None:
        self._closing = True
        self._poller.wake()
        self._thread.join()

    def close(self) -> None:
        self._poller.close()
