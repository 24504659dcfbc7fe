"""Servers and workers as processes of this host: started, supervised and cleaned up."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.core.supervision import Died, ProcessLoss, Respawn, Started, loss_of
from polyrhythm.engines.environment import environment
from polyrhythm.engines.exits import Exits, ending
from polyrhythm.engines.reports import Reports
from polyrhythm.engines.requests import ChildRequest, Exit, ReportLine, Told, pack_line
from polyrhythm.errors import PolyrhythmError
from polyrhythm.observe.members import Members
from polyrhythm.observe.runs import FolderWatch
from polyrhythm.wire.messages import Address

_GRACE_S = 5.0
_HURRY_S = 1.0
"""Who is still in its step by then is told a second time, and leaves at once."""
_LAST_WORD_S = 2.0
"""For the lead to say how the job ended, after the last worker went."""
_FAILED_S = 0.4
"""The same, where workers failed: their reasons are said in one line with the end."""
_TICK_S = 0.2
_GATHER_S = 0.5
_LEAD_LOST_S = 1.0
"""For the other processes to give up a silent lead too, after the first."""


@dataclass(slots=True)
class Child:
    request: ChildRequest
    pid: int
    control: socket.socket
    unread: bytes = b""
    status: int | None = None
    failure: str | None = None
    orphaned: bool = False
    lead_lost: bool = False
    reported: bool = False
    """A server that has told where it can be reached."""
    over: bool = False
    """It was told that the job has ended: no fault of its own."""

    @property
    def alive(self) -> bool:
        return self.status is None


@dataclass(slots=True)
class LocalRun:
    """How a job of processes went."""

    ended: str | None = None
    failed: str | None = None
    worker_failures: dict[str, str] = field(default_factory=dict)
    respawned: dict[str, int] = field(default_factory=dict)
    """How often workers were started again."""
    interrupted: int = 0
    """The number of the signal that ended it, if one did."""


class _EndAtOnce(Exception):
    """Ctrl-C or SIGTERM came a second time, or before all processes were there."""


_STOPPING = (
    "stopping: the job waits until every worker has run its code after the training loop;"
    " press Ctrl-C again to end at once"
)


class LocalEngine:
    """Runs one job. `say` is handed one line for each thing the user should know at once;
    `tick` is called a few times a second while the job runs; `listening` is told where the lead
    can be reached. `respawn`: workers that die, and servers whose slices others hold, are started
    again. `awaits_others`: workers come from elsewhere too, so the lead judges a job without any.
    `end_on_error`: a worker that fails ends the job."""

    def __init__(
        self,
        requests: list[ChildRequest],
        *,
        say: Callable[[str], None],
        tick: Callable[[], None] = lambda: None,
        preload: str = "",
        respawn: bool = False,
        listening: Callable[[Address], None] = lambda address: None,
        awaits_others: bool = False,
        end_on_error: bool = False,
    ) -> None:
        self._servers = [request for request in requests if request.role == "server"]
        self._workers = [request for request in requests if request.role == "worker"]
        self._say = say
        self._tick = tick
        self._preload = preload
        self._respawn = Respawn()
        self._respawns = respawn
        self._listening = listening
        self._awaits_others = awaits_others
        self._end_on_error = end_on_error
        self._due: dict[str, tuple[int, Child]] = {}
        """Who died: when to start it again."""
        self._lead: Address | None = None
        run_dir = Path(self._servers[0].run_dir)
        self._members = Members(run_dir / "journal.jsonl")
        self._reports = Reports(run_dir, say)
        self._run_dir = run_dir
        self._folder: FolderWatch | None = FolderWatch(run_dir)
        self._lead_lost: str | None = None
        self._lead_lost_since = 0.0
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._run = LocalRun()
        self._stopping_since: float | None = None
        self._stops = False
        """The job is being stopped before its end."""
        self._waits_for_workers = False
        """It is stopped in order: the lead ends it when the last worker has left."""
        self._said_stopping = False
        self._cleaning = False
        self._hurried = False
        self._over_since = 0.0
        self._starting = True
        self._unsaid: dict[str, str] = {}
        self._unsaid_since = 0.0
        self._nursery: subprocess.Popen[bytes] | None = None
        self._fates: Exits | None = None

    def run(self) -> LocalRun:
        with self._signals():
            try:
                self._start_nursery()
                for request in self._servers:
                    self._start(request)
                self._await_lead()
                self._starting = False
                self._supervise()
            except _EndAtOnce:
                pass  # cleaning up ends what was started
            finally:
                self._starting = False
                self._cleaning = True
                self._clean_up()
        return self._run

    # -- starting ------------------------------------------------------------------------------

    def _start_nursery(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "polyrhythm.engines.fork_server", str(theirs.fileno())]
        threads = [request.threads for request in self._workers]
        self._nursery = subprocess.Popen(
            [*command, self._preload] if self._preload else command,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
            env={**environment(threads), "PYTHONUNBUFFERED": "1"},
        )
        theirs.close()
        self._fates = Exits(ours, self._nursery_end)
        self._selector.register(ours, selectors.EVENT_READ, None)
        if self._run.interrupted:
            raise _EndAtOnce

    def _nursery_end(self) -> str:
        """How the nursery ended, which has just closed its socket."""
        assert self._nursery is not None
        try:
            return ending(self._nursery.wait(_HURRY_S))
        except subprocess.TimeoutExpired:
            return "it closed its socket"

    def _start(self, request: ChildRequest) -> Child:
        ours, theirs = socket.socketpair()
        assert self._fates is not None
        body = msgspec.json.encode(request)
        socket.send_fds(self._fates.nursery, [body], [theirs.fileno()])
        theirs.close()
        while (fate := self._fates.next()).started is None:
            self._note_exit(fate)
        child = Child(request, fate.started, ours)
        self._children[fate.started] = child
        self._selector.register(ours, selectors.EVENT_READ, child)
        self._respawn.on(Started(request.name), time.monotonic_ns())
        if request.role == "server" and not request.leads and self._lead is not None:
            self._tell(child, Told(lead=self._lead))
        return child

    def _await_lead(self) -> None:
        """Until the lead can be reached, and workers are started, or the job has failed."""
        while self._lead is None and self._run.failed is None:
            self._turn()
        if self._lead is None:
            raise PolyrhythmError(self._run.failed or "")

    def _meet_lead(self, address: Address) -> None:
        """The lead can be reached: tell the other servers where, and start the workers."""
        self._lead = address
        self._listening(address)
        for child in list(self._children.values()):
            if child.request.role == "server" and not child.request.leads:
                self._tell(child, Told(lead=address))
        self._workers = [msgspec.structs.replace(w, lead=address) for w in self._workers]
        for request in self._workers:
            self._start(request)

    def _tell(self, child: Child, told: Told) -> None:
        with contextlib.suppress(OSError):  # it has died, which the nursery is about to say
            child.control.sendall(pack_line(told))

    # -- supervising ---------------------------------------------------------------------------

    def _supervise(self) -> None:
        while self._due or any(child.alive for child in self._children.values()):
            self._turn()
        if self._run.failed is not None and self._unsaid and not self._run.interrupted:
            self._run.failed += ": " + "; ".join(_in_words(self._unsaid))
            self._unsaid.clear()
        self._say_failures()
        self._reports.show(now=True)

    def _turn(self) -> None:
        """Take what came within a moment, and act on it."""
        assert self._fates is not None
        for key, _ in self._selector.select(_TICK_S):
            if key.data is None:
                for fate in self._fates.read():
                    self._note_exit(fate)
            elif key.data.control in self._selector.get_map():  # it was not replaced meanwhile
                self._heed(key.data)
        for fate in self._fates.at_hand():  # that came while another process was started
            self._note_exit(fate)
        self._tick()
        self._start_again()
        self._look_around()

    def _hear(self, child: Child) -> Iterator[Told]:
        try:
            part = child.control.recv(65536)
        except ConnectionResetError:  # it died before it had read what it was told
            part = b""
        if not part:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.control)
            return
        *lines, child.unread = (child.unread + part).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=Told)

    def _heed(self, child: Child) -> None:
        for told in self._hear(child):
            if told.address is not None:
                child.reported = True
                if child.request.leads:
                    self._meet_lead(told.address)
            if told.ended is not None:
                self._run.ended = told.ended
            child.over = child.over or told.whole_job
            child.orphaned = child.orphaned or told.orphaned
            if told.note is not None:
                self._reports.take(child.request.name, told.note)
            if told.lead_lost:
                self._lose_lead(child, told.failed or "")
            if told.failed is not None and not told.whole_job:
                child.failure = told.failed
            elif told.failed is not None and child.request.role == "server":
                self._run.failed = self._run.failed or told.failed

    def _lose_lead(self, child: Child, failed: str) -> None:
        """A process of this host heard nothing for so long: no process can go on without the lead."""
        child.lead_lost = True
        if self._lead_lost is None:
            self._lead_lost = failed
            self._lead_lost_since = time.monotonic()

    def _note_exit(self, fate: Exit) -> None:
        child = self._children.get(fate.exited or -1)
        if child is None:
            return
        self._heed_rest(child)
        child.status = fate.status
        name = child.request.name
        if child.lead_lost:
            return  # `_end_without_lead` says why the job ends; `why` names the lead until then
        self._reports.ended(name)
        over = self._is_ending()
        if not child.status or (child.failure is None and (over or child.over)):
            return
        if child.request.role == "server":
            self._note_server_exit(child, over=over)
        else:
            self._run.worker_failures[name] = _how(child)
            if self._respawns and not over:
                self._plan_again(child)
            elif self._end_on_error and not over:
                self._run.failed = f"{name} failed, and with it the job: {_how(child)}"
                self._stop()
            else:
                self._unsaid[name] = _how(child)
                self._unsaid_since = time.monotonic()

    def _note_server_exit(self, child: Child, *, over: bool) -> None:
        """Say that it died; whether the job goes on without it is the lead's to say."""
        request, how = child.request, _how(child)
        died = f"server {request.name} died ({how})"
        gathered = self._members.gathered(request.job.servers)
        replicas = request.job.replicas
        loss = loss_of(
            request.number, reported=child.reported, gathered=gathered, replicas=replicas
        )
        if loss is ProcessLoss.LEAD:
            self._run.failed = f"{died}; the job ends: the lead ran in it"
            self._stop()
        elif child.orphaned:  # the lead's end, or its refusal, is said when it is known
            if self._respawns and not over:
                self._plan_again(child)
        elif loss is ProcessLoss.NOTHING and not over:
            if child.failure is not None and not child.reported:
                self._run.failed = child.failure  # it says itself why it cannot start
                self._stop()
            else:
                self._plan_again(child, needed=True)
        elif loss is ProcessLoss.SLICES:
            self._run.failed = f"{died}; the job ends: its slices are lost"
            self._stop()
        elif not over:
            if self._respawns:
                self._plan_again(child)
            else:
                self._say(died)

    def _plan_again(self, child: Child, *, needed: bool = False) -> None:
        """`needed`: without it the job cannot begin."""
        name = child.request.name
        verdict = self._respawn.on(Died(name, _how(child)), time.monotonic_ns())
        assert verdict is not None
        reason = verdict.reason
        self._record(reason.code, reason.fields)
        if verdict.at_ns is not None:
            self._say(str(reason))
            self._due[name] = (verdict.at_ns, child)
        elif needed:
            self._run.failed = str(Reason("no-start", reason.fields))
            self._stop()
        else:
            self._say(str(reason))

    def _record(self, what: str, fields: dict[str, Any]) -> None:
        """A line for the journal, which the lead's process writes."""
        for child in self._children.values():
            if child.request.leads and child.alive:
                self._tell(child, Told(note=ReportLine(what, fields)))

    def _start_again(self) -> None:
        if self._is_ending():
            self._due.clear()
        now_ns = time.monotonic_ns()
        for name, (at_ns, child) in list(self._due.items()):
            if at_ns <= now_ns:
                del self._due[name]
                self._forget(child)
                self._start(child.request)
                self._run.respawned[name] = self._run.respawned.get(name, 0) + 1
                self._record("respawned", {"name": name})
                self._say(f"{name} was started again")

    def _forget(self, child: Child) -> None:
        """It is replaced: its socket and its place are needed no more."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.control)
        child.control.close()
        self._children.pop(child.pid, None)

    def _heed_rest(self, child: Child) -> None:
        """What a child said just before it went is still in its socket."""
        child.control.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while child.control in self._selector.get_map():
                self._heed(child)

    def _is_ending(self) -> bool:
        """The job has ended or is being stopped: processes that end now are not replaced."""
        return self._stops or self._stopping_since is not None or self._run.ended is not None

    def _look_around(self) -> None:
        """Nobody left to work, or somebody who does not end: help it along."""
        if self._waits_for_workers and not self._said_stopping:
            self._said_stopping = True  # not by the handler, which may interrupt a line
            if self._run.ended is None:
                self._say(_STOPPING)
        self._reports.show()
        self._end_without_lead()
        if self._folder is not None and self._folder.gone():
            self._folder = None  # said once
            self._say(
                f"the folder of this run, {self._run_dir}, or the journal in it was deleted or moved:"
                " nothing is recorded any more, and status, why and story do not know this run; the"
                " job goes on"
            )
        workers = [c for c in self._children.values() if c.request.role == "worker"]
        servers = [c for c in self._children.values() if c.request.role == "server"]
        others = bool(self._due) or self._awaits_others
        begun = self._lead is not None
        over = begun and not others and not any(child.alive for child in workers)
        if not over or self._members.present():
            self._over_since = time.monotonic()
        failures = {child.request.name: _how(child) for child in workers if child.status}
        patience_s = _FAILED_S if failures else _LAST_WORD_S
        unsaid = time.monotonic() > self._over_since + patience_s
        if over and unsaid and self._run.ended is None and self._stopping_since is None:
            if self._waits_for_workers:
                pass  # the lead has nobody left to wait for, and does not end
            elif failures:
                self._run.failed = f"no worker is left: {'; '.join(_in_words(failures))}"
                self._unsaid.clear()
            elif self._respawns:  # the lead would wait for others, who do not come
                self._run.failed = "every worker left before the goal"
            else:
                self._run.failed = "every worker ended before round 1 had opened"
            self._stop()
        if self._run.failed is None and time.monotonic() > self._unsaid_since + _GATHER_S:
            self._say_failures()
        if self._run.ended is not None and self._stopping_since is None:
            self._stopping_since = time.monotonic()
        if self._stopping_since is None:
            return
        stopping_s = time.monotonic() - self._stopping_since
        if stopping_s > _GRACE_S:
            for child in (*workers, *servers):
                self._signal(child, signal.SIGKILL)
        elif not self._hurried and self._are_to_be_told(stopping_s):
            self._hurried = True
            for child in workers:
                self._signal(child, signal.SIGTERM)

    def _end_without_lead(self) -> None:
        if self._lead_lost is None or self._stopping_since is not None:
            return
        if time.monotonic() > self._lead_lost_since + _LEAD_LOST_S:
            self._run.failed = self._run.failed or f"{self._lead_lost}: the job ends"
            self._stop()

    def _are_to_be_told(self, stopping_s: float) -> bool:
        """Workers that are still there: when the lead has ended the job on request, and not before,
        or they would seem to desert it; or when it takes too long to."""
        if self._run.ended is not None:
            return self._stops
        return stopping_s > _HURRY_S

    def _say_failures(self) -> None:
        """Workers that fail for the same reason at about the same time get one line together."""
        for line in _in_words(self._unsaid):
            self._say(line)
        self._unsaid.clear()

    def _stop(self) -> None:
        """The job has failed: end it, if need be by force."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._stops = True
            for child in self._leads():
                self._tell(child, Told(stop=True))  # the lead stops the others
            if not self._leads():
                for child in self._children.values():
                    self._signal(child, signal.SIGTERM)

    def _stop_in_order(self) -> None:
        """Somebody wants the job to end: the lead ends it when every worker has left."""
        if self._stopping_since is not None or self._run.ended is not None:
            return
        self._stops = True
        if not self._leads():
            self._stop()
            return
        self._waits_for_workers = True
        for child in self._leads():
            self._signal(child, signal.SIGTERM)

    def _leads(self) -> list[Child]:
        """The process of the lead, if it can be told to stop."""
        children = self._children.values()
        return [c for c in children if c.request.leads and c.alive and c.reported]

    def _signal(self, child: Child, number: signal.Signals) -> None:
        if child.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the job in order; a second one ends it at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._cleaning:
                return  # it ends already
            if self._run.interrupted:
                raise _EndAtOnce
            self._run.interrupted = number
            if self._nursery is None:
                return  # it is being started, and looks at `interrupted` when it is there
            if self._starting:
                raise _EndAtOnce  # there is nobody yet who could end in order
            self._stop_in_order()

        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _clean_up(self) -> None:
        """The nursery kills every child that is left when its socket closes."""
        if self._fates is not None:
            self._fates.close()
        for child in self._children.values():
            child.control.close()
        if self._nursery is not None:
            if not self._children:
                self._nursery.kill()  # it may still be importing, deaf to its socket
            try:
                self._nursery.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._nursery.kill()
                self._nursery.wait()
        self._selector.close()


def _in_words(failures: dict[str, str]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for name, how in sorted(failures.items()):
        reasons.setdefault(how, []).append(name)
    return [f"{', '.join(names)} failed: {how}" for how, names in reasons.items()]


def _how(child: Child) -> str:
    if child.failure is not None:
        return child.failure
    assert child.status is not None
    return ending(child.status)
