"""The workers of a running job: the files in which they record their contributions, and faults that
hit them.

A fault is a generator that ends when the job has recovered from it, so several faults can be under
way at once. Each step of the generator observes the job; none sleeps. A worker writes its process
number to the file `NAME.pid`. In the file `NAME.book` it records which contributions it has sent,
and which of them were acknowledged.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from polyrhythm.observe.journal import JournalReader
from tests.cluster.cutting import cut
from tests.cluster.processes import LONGEST_WAIT_S, Command, wait_until

Fault = Iterator[None]
_WINDOW = 8
"""More contributions than one worker can have in flight."""


class Book:
    """The contributions that one worker has recorded, in all its incarnations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.sent: list[int] = []
        self.acknowledged: list[int] = []

    def look(self) -> None:
        if os.stat(self._path).st_size == self._read:
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            what, _, number = line.partition(" ")
            (self.sent if what == "sent" else self.acknowledged).append(int(number))


class JobWorkers:
    def __init__(self, command: Command, rng: random.Random) -> None:
        self.command = command
        self.books: dict[str, Book] = {}
        self.lines: list[dict[str, Any]] = []
        self.gone: set[str] = set()
        self._rng = rng
        self._journal = JournalReader(command.run_dir / "journal.jsonl")
        self._under_way: dict[str, Fault] = {}
        self.deadline_s = LONGEST_WAIT_S
        """How long each wait may take."""
        self._guests = 0

    # -- observing the job ---------------------------------------------------------------------

    def read(self) -> None:
        """Read the lines that were added to the journal and the books since the last call."""
        self.lines += self._journal.new_lines()
        for file in os.listdir(self.command.cwd):
            name = file.removesuffix(".book")
            if name != file and name not in self.books:
                self.books[name] = Book(self.command.cwd / file)
        for book in self.books.values():
            book.look()

    def look(self) -> None:
        """Read journal and books, and advance every fault that is under way."""
        self.command.assert_alive()
        self.read()
        for name, fault in list(self._under_way.items()):
            if next(fault, self) is self:
                del self._under_way[name]

    def until(self, done: Callable[[], Any], what: str) -> None:
        def looked() -> Any:
            self.look()
            return done()

        try:
            wait_until(
                looked, f"{what}; under way: {sorted(self._under_way)}", self.deadline_s, 0.02
            )
        except AssertionError as error:
            last = [str(line) for line in self.lines[-8:]]
            said = self.command.stderr().splitlines()[-8:]
            raise AssertionError("\n".join([str(error), *last, *said])) from None

    def until_calm(self) -> None:
        self.until(lambda: not self._under_way, "every fault has been recovered from")

    def until_progress(self, count: int) -> None:
        wanted = self.acknowledged() + count
        self.until(lambda: self.acknowledged() >= wanted, f"{count} more are acknowledged")

    def acknowledged(self) -> int:
        return sum(len(book.acknowledged) for book in self.books.values())

    def told(self, what: str, name: str) -> int:
        return sum(line["what"] == what and line.get("name") == name for line in self.lines)

    def pid_of(self, name: str) -> int:
        return int((self.command.cwd / f"{name}.pid").read_text() or 0)

    def present(self) -> list[str]:
        """Return the workers that train and have no fault under way."""
        return sorted(set(self.books) - self.gone - set(self._under_way))

    # -- faults --------------------------------------------------------------------------------

    def begin_fault(self, kind: str) -> None:
        """Begin a fault of this kind on a random worker. If fewer than three workers are without a
        fault, wait until the faults under way are over."""
        if kind == "join":
            name = f"guest-{3 + self._guests}"
            self._guests += 1
            self._under_way[name] = self._join(name)
            return
        if len(self.present()) < 3:
            self.until_calm()
        guests = [name for name in self.present() if name.startswith("guest")]
        name = self._rng.choice(guests if guests and kind == "leave" else self.present())
        begin = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "leave": self._leave,
            "cut": self._cut,
        }
        self.begin(name, begin[kind](name))

    def begin(self, name: str, fault: Fault) -> None:
        self._under_way[name] = fault
        if next(fault, self) is self:
            del self._under_way[name]

    @property
    def under_way(self) -> list[str]:
        return sorted(self._under_way)

    def _contributes(self, name: str) -> Fault:
        before = len(self.books[name].acknowledged)
        while len(self.books[name].acknowledged) <= before:
            yield

    def _kill(self, name: str) -> Fault:
        pid = self.pid_of(name)
        os.kill(pid, signal.SIGKILL)
        if name.startswith("guest"):
            # a guest was not started by the engine, so the engine does not restart it
            self.gone.add(name)
            return
        while self.pid_of(name) in (pid, 0):
            yield
        yield from self._contributes(name)

    def _stop(self, name: str) -> Fault:
        """Stop the worker with SIGSTOP until it is evicted, then let it rejoin."""
        before, pid = self.told("evicted", name), self.pid_of(name)
        os.kill(pid, signal.SIGSTOP)
        while self.told("evicted", name) == before:
            yield
        came = self.told("rejoined", name)
        os.kill(pid, signal.SIGCONT)
        while self.told("rejoined", name) == came:
            yield
        yield from self._contributes(name)

    def _pause(self, name: str) -> Fault:
        """Stop the worker with SIGSTOP, most likely for less than the suspicion time."""
        pid, until_s = self.pid_of(name), time.monotonic() + self._rng.uniform(0.02, 0.5)
        os.kill(pid, signal.SIGSTOP)
        while time.monotonic() < until_s:
            yield
        os.kill(pid, signal.SIGCONT)
        yield from self._contributes(name)

    def _cut(self, name: str) -> Fault:
        """Cut the worker's link to one server. The fault ends when the worker has rejoined. If routes
        change in time, the worker links again without rejoining. Then the fault ends when so many
        contributions were acknowledged that some of them must have been sent after the cut."""
        came, servers = self.told("rejoined", name), self.command.servers()
        # try the servers in a random order, because one of them may be restarting
        self._rng.shuffle(servers)
        linked = any(cut(self.pid_of(name), server) for server in servers)
        assert linked, "it is linked to every server that is there"
        # read the books now, so that contributions that were acknowledged before the cut are not
        # taken for later ones
        self.read()
        before = len(self.books[name].acknowledged)
        while self.told("rejoined", name) == came:
            if len(self.books[name].acknowledged) > before + _WINDOW:
                return
            yield
        yield from self._contributes(name)

    def _join(self, name: str) -> Fault:
        self.command.join("--name", name, "--link", self._rng.choice(["auto", "tcp"]))
        while name not in self.books:
            yield
        yield from self._contributes(name)

    def _leave(self, name: str) -> Fault:
        self.gone.add(name)
        os.kill(self.pid_of(name), signal.SIGTERM)
        while not self.told("left", name):
            yield
