"""Starts, watches, restarts and stops the processes of one job, on any host of processes
(`engines/host.py`). `core/supervision.py` has the rules of restarting.

After a request (Ctrl-C, SIGTERM or `polyrhythm stop`), the lead ends the job when every worker has
left. After a failure, the lead ends the job at once. Processes that still run after a grace period
are killed.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from polyrhythm.core.lead.progress.progress import STOPPED
from polyrhythm.core.machine import Reason
from polyrhythm.core.supervision import (
    LOSSES,
    Died,
    ProcessLoss,
    Respawn,
    Started,
    Trained,
    loss_of,
)
from polyrhythm.engines.engine import EngineRun, EngineWatch, Wanted
from polyrhythm.engines.exits import name_of
from polyrhythm.engines.host import (
    Exited,
    HostEvent,
    HostLost,
    MustLeave,
    Noticed,
    Printed,
    ProcessHost,
    ProcessReported,
)
from polyrhythm.engines.notices import (
    FailureLines,
    Reports,
    failure_lines,
    first_line,
)
from polyrhythm.engines.records import Records
from polyrhythm.engines.requests import ChildRequest, ReportLine, Told
from polyrhythm.errors import JobFailed, PolyrhythmError
from polyrhythm.io.limits import none_left, too_few
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import JOURNAL, FolderWatch, Members
from polyrhythm.wire.messages import Address

_TICK_S = 0.2
_LAST_WORD_S = 2.0
"""How long the lead may take to report how the job ended, after the last worker has ended."""
_FAILED_S = 0.4
"""Replaces `_LAST_WORD_S` if workers failed. It is short, so that one line reports both the reasons
and the end of the job."""
_SERVER_END_S = 1.0
"""How long the supervisor waits for the report that a server has died, when a worker has lost a
link."""
_LEAD_LOST_S = 1.0
"""Once the first process gives up a silent lead, the others have this long to do the same."""
_STOPPING = (
    "the job waits until every worker has run its code after the training loop; press Ctrl-C {times}"
    " to end at once"
)
_GRACE_S = 5.0
"""Processes that have not ended this long after the end of the job are killed."""
_HURRY_S = 1.0
"""Workers that have not ended after this time get another signal, and leave at once."""


class _EndAtOnce(Exception):
    """A signal (Ctrl-C or SIGTERM) arrived a second time, or before all processes were started."""


@dataclass(slots=True)
class JobProcess:
    """One server or worker, and what it has reported so far."""

    request: ChildRequest
    status: int | None = None
    """The exit status, or the negative number of the signal that killed the process; None while it
    runs."""
    ending: str = ""
    """How the process ended, as its host says."""
    failure: str | None = None
    """The failure that the process has reported."""
    orphaned: bool = False
    lead_lost: bool = False
    reported: bool = False
    """Whether this server has reported its address."""
    over: bool = False
    """Whether the process was told that the job has ended. If so, its exit is not a failure."""
    leaves: bool = False
    """Whether the process was told to leave, because its machine will be removed."""
    missed: bool = False
    """Whether this server has died and the lead continues without it."""
    signals: set[int] = field(default_factory=set)
    """The signals that the supervisor has sent to the process."""

    @property
    def alive(self) -> bool:
        return self.status is None

    @property
    def was_ended(self) -> bool:
        """Whether the process ended because of the end of the job: it was told so, or a signal of
        the supervisor killed it."""
        return self.over or (self.status is not None and -self.status in self.signals)

    @property
    def how(self) -> str:
        """How the process ended: its own message, or what its host says."""
        return self.ending if self.failure is None else self.failure

    def exit(self, exited: Exited) -> None:
        unknown = 0 if self.failure is None else 1
        self.status = unknown if exited.status is None else exited.status
        self.ending = exited.how


class Processes:
    """The processes of a job by name, except those that were replaced after their end."""

    def __init__(self, host: ProcessHost, records: Records) -> None:
        self._host = host
        self._records = records
        self._processes: dict[str, JobProcess] = {}

    def __getitem__(self, name: str) -> JobProcess:
        return self._processes[name]

    @property
    def all(self) -> list[JobProcess]:
        return list(self._processes.values())

    @property
    def workers(self) -> list[JobProcess]:
        return [process for process in self.all if process.request.role == "worker"]

    @property
    def servers(self) -> list[JobProcess]:
        return [process for process in self.all if process.request.role == "server"]

    @property
    def lead(self) -> JobProcess | None:
        """The process in which the lead runs, if it is alive."""
        leads = (each for each in self.all if each.request.leads and each.alive)
        return next(leads, None)

    def start(self, request: ChildRequest) -> None:
        self._processes[request.name] = JobProcess(request)
        self._host.start(request)

    def tell(self, process: JobProcess, told: Told) -> None:
        self._host.tell(process.request.name, told)

    def record(self, what: str, fields: Mapping[str, Any]) -> None:
        """Add a line to the journal. The lead's process writes it. If that process has ended, the
        line is written here, unless the process wrote the journal itself."""
        lead = self.lead
        if lead is None:
            self._records.note(what, fields)
        else:
            self.tell(lead, Told(note=ReportLine(what, dict(fields))))

    def signal(self, process: JobProcess, number: signal.Signals) -> None:
        if process.alive:
            process.signals.add(number)
            self._host.signal(process.request.name, number)


class Respawning:
    """Starts processes that have died again. `core/supervision.py` decides whether and when."""

    def __init__(
        self,
        processes: Processes,
        run: EngineRun,
        say: Callable[[str], None],
        start: Callable[[ChildRequest], object],
        prepare: Callable[[str], object],
    ) -> None:
        """`start` is called with the request of every process that must be started. `prepare` is
        called before, with the name of a process that has ended."""
        self._processes = processes
        self._run = run
        self._say = say
        self._start = start
        self._prepare = prepare
        self._respawn = Respawn()
        self._due: dict[str, tuple[int, ChildRequest]] = {}
        """Per name of a process, its request and the time at which to start it again."""

    def __bool__(self) -> bool:
        """Whether any process is planned to be started again."""
        return bool(self._due)

    def on_started(self, name: str) -> None:
        self._respawn.on(Started(name), time.monotonic_ns())

    def on_contributed(self, name: str) -> None:
        self._respawn.on(Trained(name), time.monotonic_ns())

    def plan(self, process: JobProcess) -> Reason | None:
        """Plan to start this process again. If it has died too often, give it up and return the
        reason."""
        name = process.request.name
        decision = self._respawn.on(Died(name, process.how), time.monotonic_ns())
        assert decision is not None
        reason = decision.reason
        self._processes.record(reason.code, reason.fields)
        if decision.at_ns is None:
            return reason
        self._say(in_words(reason))
        self._due[name] = (decision.at_ns, process.request)
        self._prepare(name)
        return None

    def cancel(self) -> None:
        self._due.clear()

    def start_due(self) -> None:
        """Start the processes whose time has come."""
        now_ns = time.monotonic_ns()
        for name, (at_ns, request) in list(self._due.items()):
            if at_ns <= now_ns:
                del self._due[name]
                self._start(request)
                self._run.respawned[name] = self._run.respawned.get(name, 0) + 1
                self._run.worker_failures.pop(name, None)
                self._processes.record("respawned", {"name": name})
                self._say(f"{name} was started again")


class ProcessStop:
    """Ends the processes of a job, on request or after a failure."""

    def __init__(self, processes: Processes, run: EngineRun) -> None:
        self._processes = processes
        self._run = run
        self._since_s: float | None = None
        """When the supervisor began to end the processes; None if they should not end yet."""
        self._before_end = False
        """Whether the job is stopped before it reached a goal."""
        self.waits_for_workers = False
        """Whether the job is being shut down cleanly: the lead ends it when the last worker has
        left."""
        self.saving = False
        """Whether the lead has reported that it is saving the model. The lead ends the job when the
        model is saved."""
        self._hurried = False

    @property
    def begun(self) -> bool:
        """Whether all processes should end now."""
        return self._since_s is not None

    @property
    def is_ending(self) -> bool:
        """Whether the job has ended or is being stopped. Processes that exit then are not started
        again."""
        return self._before_end or self.begun or self._run.ended is not None

    @property
    def waits_for_model(self) -> bool:
        """Whether the lead's process is still writing the model. There is no time limit for
        that."""
        return self.saving and self._run.ended is None and self._processes.lead is not None

    def stop(self, failed: str = "") -> None:
        """End the job at once. `failed`: why it has failed; empty if it has not. Processes that do
        not end by themselves are killed later."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            self._before_end = True
            lead = self._lead()
            if lead is not None:
                # tell only the lead, which ends the other processes
                self._processes.tell(lead, Told(stop=True, failed=first_line(failed) or None))
                return
            for process in self._processes.all:
                # the other servers ignore SIGTERM, because the lead would end them
                ignores = process.request.role == "server" and not process.request.leads
                self._processes.signal(process, signal.SIGKILL if ignores else signal.SIGTERM)

    def stop_in_order(self) -> None:
        """Ask the lead to end the job cleanly: it does so when every worker has left. Without a
        lead, stop all processes."""
        if self.begun or self._run.ended is not None:
            return
        self._before_end = True
        lead = self._lead()
        if lead is None:
            self.stop()
            return
        self.waits_for_workers = True
        self._processes.tell(lead, Told(stop=True, in_order=True))

    def lead_stops(self) -> None:
        """Note that the lead stops the job because an operator requested a stop."""
        self._before_end = True
        self.waits_for_workers = True

    def _lead(self) -> JobProcess | None:
        """The process of the lead, if it is ready for an order to stop."""
        lead = self._processes.lead
        return lead if lead is not None and lead.reported else None

    def pursue(self) -> None:
        """End processes that do not end by themselves. Call this a few times a second."""
        if self._run.ended is not None and self._since_s is None:
            self._since_s = time.monotonic()
        if self._since_s is None:
            return
        stopping_s = time.monotonic() - self._since_s
        if stopping_s > _GRACE_S and not self.waits_for_model:
            for process in self._processes.all:
                self._processes.signal(process, signal.SIGKILL)
        elif not self._hurried and self._workers_must_leave(stopping_s):
            self._hurried = True
            for process in self._processes.workers:
                self._processes.signal(process, signal.SIGTERM)

    def _workers_must_leave(self, stopping_s: float) -> bool:
        """Whether to send a signal to the workers: the lead has ended a stopped job, or takes too
        long to end it. Workers that leave after an earlier signal would count as lost."""
        if self._run.ended is not None:
            return self._before_end
        return stopping_s > _HURRY_S


class Supervisor:
    """Runs one job on a host of processes. If there are fewer requests than the job has workers,
    more workers join by `polyrhythm worker`. In that case the lead decides what happens to a job
    without workers."""

    def __init__(
        self, requests: Sequence[ChildRequest], host: ProcessHost, watch: EngineWatch
    ) -> None:
        self._servers = [request for request in requests if request.role == "server"]
        self._workers = [request for request in requests if request.role == "worker"]
        self._job = self._servers[0].job
        self._host = host
        self._watch = watch
        self._say = watch.say
        self._lead: Address | None = None
        self._run_dir = Path(self._servers[0].run_dir)
        self._records = Records(self._run_dir, watch.say)
        self._members = Members(self._run_dir / JOURNAL)
        self._reports = Reports(self._run_dir, watch.say)
        self._failures = FailureLines(watch.say)
        self._folder: FolderWatch | None = FolderWatch(self._run_dir)
        self._lead_lost: str | None = None
        self._lead_lost_since = 0.0
        self._over_since = 0.0
        self._run = EngineRun()
        self._processes = Processes(host, self._records)
        self._respawning = Respawning(
            self._processes, self._run, watch.say, self._start, host.prepare
        )
        self._stopping = ProcessStop(self._processes, self._run)
        self._said_stopping = False
        self._orphans: list[tuple[float, JobProcess]] = []
        """Workers that have lost a link and ended, each with the time at which it counts as
        failed."""
        self._deaths: list[JobProcess] = []
        """Dead servers about which the lead has not decided yet whether the job continues without
        them."""
        self._opened = False
        self._starting = True
        self._cleaning = False

    def run(self) -> EngineRun:
        with self._signals():
            try:
                self._host.open()
                self._opened = True
                if self._run.interrupted:
                    raise _EndAtOnce
                for request in self._servers:
                    self._start(request)
                self._await_lead()
                self._supervise()
            except _EndAtOnce:
                pass  # the `finally` clause ends all processes that were started
            except (JobFailed, OSError) as error:
                # the host cannot start processes any more, or no descriptor is left
                if isinstance(error, OSError) and not none_left(error):
                    raise
                failed = too_few() if isinstance(error, OSError) else str(error)
                if self._lead is None:
                    raise JobFailed(failed) from None
                self._run.failed = self._run.failed or failed
            except SystemExit:
                # the process that watches the job ends this process, and the lead has no time to
                # write this
                self._records.note("ended", {**STOPPED.noted(), "failed": False})
                raise
            finally:
                self._starting = False
                self._cleaning = True
                self._host.close()
                self._members.close()
                self._run.unrecorded = self._records.close() or self._run.unrecorded
        return self._run

    # -- starting ------------------------------------------------------------------------------

    def _start(self, request: ChildRequest) -> None:
        self._processes.start(request)
        self._respawning.on_started(request.name)
        if request.role == "server" and not request.leads and self._lead is not None:
            self._processes.tell(self._processes[request.name], Told(lead=self._lead))

    def _await_lead(self) -> None:
        """Wait until the lead has reported its address. Raises PolyrhythmError if the job fails
        before that."""
        while self._lead is None and self._run.failed is None:
            self._turn()
        if self._lead is None:
            raise PolyrhythmError(self._run.failed or "")

    def _meet_lead(self, address: Address) -> None:
        """Tell the other servers the lead's address, now that the lead listens, and start the
        workers."""
        self._lead = address
        self._watch.listening(address)
        for process in self._processes.servers:
            if not process.request.leads:
                self._processes.tell(process, Told(lead=address))
        self._workers = [msgspec.structs.replace(w, lead=address) for w in self._workers]
        for request in self._workers:
            self._start(request)
        # from now on a signal shuts the job down cleanly, because workers may be training
        self._starting = False

    # -- supervising ---------------------------------------------------------------------------

    def _supervise(self) -> None:
        while self._respawning or any(process.alive for process in self._processes.all):
            self._turn()
        self._judge_orphans(now=True)
        self._name_lost_server()
        if self._run.failed is not None and not self._run.interrupted:
            failed = self._run.failed
            self._run.failed = ": ".join(
                filter(None, (failed, "; ".join(self._failures.take(said=failed))))
            )
        self._failures.say(now=True)
        self._reports.show(now=True)

    def _turn(self) -> None:
        """Handle messages and exits for a moment, then react to the state of the job."""
        for event in self._host.wait(_TICK_S):
            self._on_event(event)
        self._watch.tick()
        self._obey(self._watch.wanted())
        if self._stopping.is_ending:
            self._respawning.cancel()
        self._respawning.start_due()
        self._look_around()

    def _obey(self, wanted: Wanted) -> None:
        """Stop the job if the command that runs it wants to stop it. Signals are handled separately
        (`_signals`)."""
        if wanted is Wanted.GO_ON:
            return
        if self._starting:
            self._run.interrupted = self._run.interrupted or signal.SIGINT
            # processes that are still starting cannot leave the job in the normal way
            raise _EndAtOnce
        if wanted is Wanted.STOP_NOW:
            self._stopping.stop()
        elif not self._stopping.waits_for_workers:
            self._stopping.stop_in_order()

    def _on_event(self, event: HostEvent) -> None:
        match event:
            case ProcessReported():
                self._on_message(self._processes[event.name], event.told)
            case Printed():
                self._records.print(event.name, event.data)
            case Exited():
                process = self._processes[event.name]
                process.exit(event)
                self._on_exit(process)
            case Noticed():
                self._processes.record(event.reason.code, event.reason.fields)
                if event.said:
                    self._say(in_words(event.reason))
            case MustLeave():
                for name in event.names:
                    self._let_leave(self._processes[name])
            case HostLost() if self._lead is None:
                raise JobFailed(event.how)
            case HostLost() if self._run.failed is None:
                # The other processes are unaffected, so the lead ends the job and saves the model.
                self._fail(event.how)

    def _let_leave(self, process: JobProcess) -> None:
        """Let a process leave the job. A server leaves when its slices are on other servers."""
        process.leaves = True
        if process.request.role == "worker":
            self._processes.signal(process, signal.SIGTERM)
        else:
            self._processes.tell(process, Told(leave=True))

    def _on_message(self, process: JobProcess, told: Told) -> None:
        if told.address is not None:
            process.reported = True
            if process.request.leads:
                self._meet_lead(told.address)
        if told.saving:
            self._stopping.saving = True
        if told.contributed:
            self._respawning.on_contributed(process.request.name)
        if told.journal is not None:
            if told.journal.at is None:
                self._records.write_lines(told.journal.lines)
            self._members.hand(told.journal)
            self._watch.hand(told.journal)
        if told.file is not None:
            self._records.write_file(told.file)
        if told.ended is not None:
            self._run.ended = told.ended
            self._run.unrecorded = told.unrecorded
        process.over = process.over or told.whole_job
        process.orphaned = process.orphaned or told.orphaned
        if told.note is not None:
            self._reports.take(process.request.name, told.note)
        if told.lead_lost:
            self._lose_lead(process, told.failed or "")
        if told.failed is not None and not told.whole_job:
            process.failure = told.failed
        elif told.failed is not None and process.request.role == "server":
            self._run.failed = self._run.failed or told.failed

    def _lose_lead(self, process: JobProcess, failed: str) -> None:
        """Note that a process has given up the silent lead. The job ends a moment later, because no
        process can continue without the lead."""
        process.lead_lost = True
        if self._lead_lost is None:
            self._lead_lost = failed
            self._lead_lost_since = time.monotonic()

    def _on_exit(self, process: JobProcess) -> None:
        name = process.request.name
        if process.failure is not None:
            self._watch.record(name, process.failure)
        if process.lead_lost:
            return  # `_end_without_lead` reports that the lead is silent
        self._reports.on_ended(name)
        if not self._said_stopping:
            # mention an operator who has stopped the job
            self._say_stopping()
        over = self._stopping.is_ending
        if process.request.leads and self._stopping.waits_for_workers and self._run.ended is None:
            # The job ends later: workers may still run the code after their training loops.
            self._run.failed = f"server {name} died ({process.how}): the lead ran in it"
        # the end of the job does not excuse a worker: its death may have ended the job
        expected = process.was_ended or (over and process.request.role == "server")
        if process.leaves and not process.status and not over:
            self._on_left(process)
        if not process.status or (process.failure is None and expected):
            return
        if process.request.role == "server":
            self._on_server_exit(process, over=over)
            return
        if process.orphaned:
            # the server at the other end of the link may have died; the host will report it in a
            # moment
            self._orphans.append((time.monotonic() + _SERVER_END_S, process))
        else:
            self._on_worker_failure(process)

    def _on_left(self, process: JobProcess) -> None:
        """Handle a process that has left because its machine will be removed. Start it again if the
        job restarts processes, or cannot begin without it."""
        gathered = self._members.gathered(self._job.servers)
        needed = process.request.role == "server" and not gathered
        process.ending = "its machine will be removed"
        if self._job.respawn or needed:
            self._restart(process, needed=needed)

    def _on_worker_failure(self, process: JobProcess) -> None:
        name, over = process.request.name, self._stopping.is_ending
        self._run.worker_failures[name] = process.how
        if self._job.respawn and not over:
            self._restart(process)
        elif self._job.on_error == "end" and not over:
            self._fail(f"{name} failed, so the job has failed: {process.how}")
        else:
            self._failures.note(name, process.how)

    def _judge_orphans(self, *, now: bool = False) -> None:
        """Decide whether workers that have lost a link have failed. They have not if a dead server
        ends the job."""
        ended_by = self._members.ended_by()
        if self._run.lead_lost or (ended_by is not None and ended_by.code in LOSSES):
            self._orphans.clear()
        at_s = math.inf if now else time.monotonic()
        due = [process for until_s, process in self._orphans if until_s <= at_s]
        self._orphans = [(until_s, each) for until_s, each in self._orphans if until_s > at_s]
        for process in due:
            self._on_worker_failure(process)

    def _on_server_exit(self, process: JobProcess, *, over: bool) -> None:
        """Act on the death of a server. If all servers of the job had joined, the lead decides
        whether the job goes on."""
        request = process.request
        gathered = self._members.gathered(self._job.servers)
        loss = loss_of(request.number, reported=process.reported, gathered=gathered)
        # a server of the job that ends because the lead has ended is not dead: it may do so before
        # the lead's process says that the job is over
        follows = process.orphaned and self._members.has_server(request.number)
        if loss is not ProcessLoss.NOTHING and not (over or follows or self._job.respawn):
            self._run.lost += 1
        if loss is ProcessLoss.LEAD:
            self._run.lead_lost = True
            self._fail(f"{_died(process)}; the job ends: the lead ran in it")
        # Another message says that the lead is lost, or that it has removed this server.
        elif process.orphaned:
            if self._job.respawn and not over:
                self._restart(process)
        elif loss is ProcessLoss.NOTHING and not over:
            if process.failure is not None and not process.reported:
                self._fail(process.failure)  # the message of the server says why it cannot start
            else:
                self._restart(process, needed=True)
        elif not over:
            self._deaths.append(process)

    def _judge_deaths(self) -> None:
        """Report dead servers without which the lead continues, or start them again."""
        for process in self._deaths:
            process.missed = not self._members.has_server(process.request.number)
        missed = [process for process in self._deaths if process.missed]
        self._deaths = [process for process in self._deaths if not process.missed]
        for process in missed:
            if self._stopping.is_ending:
                continue  # the message about the end of the job is more important
            if self._job.respawn:
                self._restart(process)
            else:
                self._say(_died(process))

    def _name_lost_server(self) -> None:
        """If the lead has ended the job because a server of this command died with its slices,
        report how that server died. The lead knows only that the link has ended."""
        ended_by = self._members.ended_by()
        if ended_by is None or ended_by.code != "server-died" or self._run.failed is None:
            return
        for process in self._processes.servers:
            lost = process.request.number == ended_by.fields["server"] and not process.missed
            if lost and process.status:
                self._run.failed = f"{_died(process)}; the job ends: its slices are lost"

    def _restart(self, process: JobProcess, *, needed: bool = False) -> None:
        """Start a process again. If it died too often, report that it is given up. `needed`: the
        job cannot begin without this process, so the job fails if the process is given up."""
        given_up = self._respawning.plan(process)
        if given_up is None:
            name, how = process.request.name, first_line(process.how)
            self._watch.record(name, f"polyrhythm: {name} ended ({how}) and is started again")
            return
        if needed:
            self._fail(in_words(Reason("no-start", given_up.fields)))
        else:
            self._say(in_words(given_up))

    def _fail(self, reason: str) -> None:
        self._run.failed = reason
        self._stopping.stop(reason)

    # -- conditions that no process reports ----------------------------------------------------

    def _look_around(self) -> None:
        """React to conditions that no process reports: waits that are too long, a deleted folder,
        missing processes."""
        if not self._said_stopping:
            self._say_stopping()
        self._reports.show()
        self._end_without_lead()
        self._records.retry()
        self._watch_folder()
        self._judge_deaths()
        self._judge_orphans()
        self._end_without_workers()
        if self._run.failed is None:
            self._failures.say()
        self._stopping.pursue()

    def _say_stopping(self) -> None:
        """Report once that the job shuts down cleanly. The signal handler cannot do it, because it
        may run in the middle of another line of output."""
        by = self._members.stopping_for()
        if by is not None:
            self._stopping.lead_stops()
        self._said_stopping = self._stopping.waits_for_workers
        if self._said_stopping and self._run.ended is None and self._members.ended_by() is None:
            begins = "stopping" if by is None else f"stopping on request of {by}"
            if self._run.interrupted:
                begins = f"stopping after {name_of(self._run.interrupted)}"
            again = "again" if self._run.interrupted else "twice"
            self._say(f"{begins}: {_STOPPING.format(times=again)}")

    def _end_without_lead(self) -> None:
        if self._lead_lost is None or self._stopping.begun:
            return
        if time.monotonic() > self._lead_lost_since + _LEAD_LOST_S:
            self._run.lead_lost = True
            self._fail(self._run.failed or f"{self._lead_lost}: the job ends")

    def _watch_folder(self) -> None:
        if self._folder is not None and self._folder.gone():
            self._folder = None  # do not report the missing folder again
            self._say(
                f"the folder of this run, {self._run_dir}, or the journal in it was deleted or moved:"
                " nothing is recorded any more, so status, why and story will not find this run after"
                " its end; the job goes on, and saves its model in that folder"
            )

    def _end_without_workers(self) -> None:
        """End the job if all workers have ended and the lead does not end it."""
        workers = self._processes.workers
        others = bool(self._respawning) or len(self._workers) < self._job.workers
        over = self._lead is not None and not others and not any(w.alive for w in workers)
        if not over or self._members.present():
            self._over_since = time.monotonic()
        failures = {process.request.name: process.how for process in workers if process.status}
        patience_s = _FAILED_S if failures else _LAST_WORD_S
        waited = time.monotonic() > self._over_since + patience_s and not self._orphans
        if not (over and waited) or self._run.ended is not None or self._stopping.begun:
            return
        if self._stopping.waits_for_model:
            return
        if self._stopping.waits_for_workers:
            # The lead waits for workers to leave, and no worker is left. So the
            # supervisor ends the job.
            self._stopping.stop()
        elif failures:
            self._failures.take()
            self._fail(f"no worker is left: {'; '.join(failure_lines(failures))}")
        elif self._job.respawn:  # with `--respawn`, the lead would wait for new workers forever
            self._fail("all workers left before the job reached its goal")
        else:
            self._fail("every worker ended before round 1 had opened")

    # -- signals -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals: Ctrl-C or SIGTERM shuts the job down cleanly, and a second one ends
        it at once. Python handles signals in its main thread only: a job that another thread runs
        ends by 'polyrhythm stop'."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            if self._cleaning:
                return  # all processes are already being ended
            if self._run.interrupted:
                self._run.at_once = True
                raise _EndAtOnce
            self._run.interrupted = number
            if not self._opened:
                return  # `run` checks `interrupted` when the host is open
            if self._starting:
                # processes that are still starting cannot leave the job in the normal way
                raise _EndAtOnce
            self._stopping.stop_in_order()

        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _died(process: JobProcess) -> str:
    return f"server {process.request.name} died ({process.how})"
