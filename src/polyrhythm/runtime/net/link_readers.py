"""Reads the links of a server. One polling thread reads most links; a link that carries large
tensors as bytes has its own thread."""

import threading
from collections.abc import Callable
from typing import Protocol

from polyrhythm.io.link import Link, Payload, PollableLink
from polyrhythm.io.poll import Poller
from polyrhythm.runtime.net.boundary import fault_of
from polyrhythm.tensors.threads import work_with
from polyrhythm.wire import messages as m

FRAMES_PER_TURN = 64
"""*The polling thread reads at most this many frames of a link before it reads the other links. So
a flood of frames from one member delays the frames of others by at most one turn.* A thread that
reads a single link pauses after this many consecutive frames without a payload, until the machines
have handled them."""


class Take(Protocol):
    """Called with each message. `wait`: the memory of the payload is reused after the call, so the
    call must return only when the payload is no longer needed."""

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
        """`take` is called with each message. `run` is called after `take` has received all
        messages that have arrived. `catch_up` is called instead if a link has used up its turn and
        has more messages; it returns when the machines have handled all messages so far. `end_link`
        is called when a link has ended. `needs_thread`: whether a link needs a separate thread,
        because it carries large tensors as bytes. The poller is faster for small messages and
        references."""
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
        """Read a link from now on, by the poller or on a new thread."""
        if not self._read_by_poller(link):
            self.begin_apart(link)

    def read(self, link: Link) -> None:
        """Let the poller read a link, if it can. Otherwise read the link on the calling thread
        until the link ends."""
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
        """Receive and handle the next message. Returns None if the link has ended."""
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
        """Read a link from now on. The calling thread handles none of its messages, not even those
        that have already arrived."""
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
        """Handle the messages of one turn. Returns True if more may have arrived."""
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
