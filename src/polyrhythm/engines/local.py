"""The engine that runs servers and workers as processes of this host: it starts and supervises
them, and ends those that are left over."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from polyrhythm.core.devices import assign, may_use_cuda
from polyrhythm.core.machine import Reason
from polyrhythm.core.supervision import ProcessLoss, loss_of
from polyrhythm.engines.engine import EngineRun, EngineWatch, Wanted
from polyrhythm.engines.exits import name_of
from polyrhythm.engines.notices import (
    NEVER_ATTACHED,
    FailureLines,
    Logs,
    Reports,
    failure_lines,
    first_line,
)
from polyrhythm.engines.processes import Child, Processes
from polyrhythm.engines.requests import ChildRequest, Told
from polyrhythm.engines.respawning import Respawning
from polyrhythm.engines.stopping import ProcessStop
from polyrhythm.errors import JobFailed, PolyrhythmError
from polyrhythm.io.limits import none_left, too_few
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import FolderWatch, Members
from polyrhythm.wire.messages import Address

_TICK_S = 0.2
_LAST_WORD_S = 2.0
"""How long the lead may take to report how the job ended, after the last worker has ended."""
_FAILED_S = 0.4
"""Replaces `_LAST_WORD_S` if workers failed. It is short, so that one line reports the reasons and
the end of the job."""
_SERVER_END_S = 1.0
"""How long the engine waits for the report that a server has died, when a worker has lost a link."""
_LEAD_LOST_S = 1.0
"""When the first process gives up a silent lead, the other processes have this long to do so
too."""
_STOPPING = (
    "the job waits until every worker has run its code after the training loop; press Ctrl-C {times}"
    " to end at once"
)


class LocalEngine:
    """Runs every server and worker as a process of this host."""

    def run(self, requests: Sequence[ChildRequest], watch: EngineWatch) -> EngineRun:
        return LocalJob(requests, watch).run()


class _EndAtOnce(Exception):
    """A signal (Ctrl-C or SIGTERM) arrived a second time, or before all processes were started."""


class LocalJob:
    """One job and its processes on this host. If there are fewer requests than the job has workers,
    more workers join by `polyrhythm worker`. In that case the lead, and not the engine, decides
    what happens to a job without workers."""

    def __init__(self, requests: Sequence[ChildRequest], watch: EngineWatch) -> None:
        self._servers = [request for request in requests if request.role == "server"]
        self._workers = [request for request in requests if request.role == "worker"]
        self._job = self._servers[0].job
        self._watch = watch
        self._say = watch.say
        self._lead: Address | None = None
        self._run_dir = Path(self._servers[0].run_dir)
        self._members = Members(self._run_dir / "journal.jsonl")
        self._reports = Reports(self._run_dir, watch.say)
        self._failures = FailureLines(watch.say)
        self._folder: FolderWatch | None = FolderWatch(self._run_dir)
        self._lead_lost: str | None = None
        self._lead_lost_since = 0.0
        self._over_since = 0.0
        self._run = EngineRun()
        self._processes = Processes(self._handle, self._exited, self._obey_at_start)
        self._respawning = Respawning(self._processes, self._run, watch.say, self._start)
        self._stopping = ProcessStop(self._processes, self._run)
        self._logs = Logs(self._run_dir, self._processes)
        self._said_stopping = False
        self._orphans: list[tuple[float, Child]] = []
        """Workers that ended because they had lost a link, and when they count as failed."""
        self._starting = True
        self._cleaning = False

    def run(self) -> EngineRun:
        with self._signals():
            try:
                threads = [request.threads for request in self._workers]
                cuda = any(may_use_cuda(request.device) for request in self._workers)
                self._processes.begin(self._run_dir.name, self._job.name, threads, cuda=cuda)
                if self._run.interrupted:
                    raise _EndAtOnce
                if cuda:
                    self._assign_devices()
                for request in self._servers:
                    self._start(request)
                self._await_lead()
                self._supervise()
            except _EndAtOnce:
                pass  # the `finally` clause ends all processes that were started
            except (JobFailed, OSError) as error:
                # the fork server died while it started a process again, or no descriptor is left
                if isinstance(error, OSError) and not none_left(error):
                    raise
                failed = too_few() if isinstance(error, OSError) else str(error)
                if self._lead is None:
                    raise JobFailed(failed) from None
                self._run.failed = self._run.failed or failed
            finally:
                self._starting = False
                self._cleaning = True
                self._processes.close()
        return self._run

    # -- starting ------------------------------------------------------------------------------

    def _assign_devices(self) -> None:
        """Give every worker a device. A worker that is started again has the same request, and so
        the same device."""
        asked = [request.device for request in self._workers]
        assigned = assign(asked, self._processes.cuda_found())
        for note in assigned.notes:
            self._say(in_words(note, lambda number: self._workers[number].name))
        self._workers = [
            msgspec.structs.replace(request, device=device)
            for request, device in zip(self._workers, assigned.devices, strict=True)
        ]

    def _start(self, request: ChildRequest) -> None:
        child = self._processes.start(request)
        self._respawning.started(request.name)
        if request.role == "server" and not request.leads and self._lead is not None:
            self._processes.tell(child, Told(lead=self._lead))

    def _await_lead(self) -> None:
        """Wait until the lead has reported its address. Raises PolyrhythmError if the job fails
        before that."""
        while self._lead is None and self._run.failed is None:
            self._turn()
        if self._lead is None:
            raise PolyrhythmError(self._run.failed or "")

    def _meet_lead(self, address: Address) -> None:
        """The lead listens: tell its address to the other servers, and start the workers."""
        self._lead = address
        self._watch.listening(address)
        for child in self._processes.servers:
            if not child.request.leads:
                self._processes.tell(child, Told(lead=address))
        self._workers = [msgspec.structs.replace(w, lead=address) for w in self._workers]
        for request in self._workers:
            self._start(request)
        # from now on a signal ends the job in an orderly way, because workers may be training
        self._starting = False

    # -- supervising ---------------------------------------------------------------------------

    def _supervise(self) -> None:
        while self._respawning or any(child.alive for child in self._processes.all):
            self._turn()
        self._judge_orphans(now=True)
        if self._run.failed is not None and not self._run.interrupted:
            failed = self._run.failed
            self._run.failed = ": ".join(
                filter(None, (failed, "; ".join(self._failures.take(said=failed))))
            )
        self._failures.say(now=True)
        self._reports.show(now=True)

    def _turn(self) -> None:
        """Handle messages and exits for a moment. Then act on the state of the job."""
        self._processes.poll(_TICK_S)
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
            raise _EndAtOnce  # processes that are still starting cannot leave the job as others do
        if wanted is Wanted.STOP_NOW:
            self._stopping.stop()
        elif not self._stopping.waits_for_workers:
            self._stopping.stop_in_order()

    def _obey_at_start(self) -> None:
        """Stop the job while the fork server imports modules, if the command wants that."""
        if self._starting:
            self._obey(self._watch.wanted())

    def _handle(self, child: Child, told: Told) -> None:
        """Handle a message of a child."""
        if told.address is not None:
            child.reported = True
            if child.request.leads:
                self._meet_lead(told.address)
        if told.saving:
            self._stopping.saving = True
        if told.contributed:
            self._respawning.contributed(child.request.name)
        if told.journal is not None:
            self._members.hand(told.journal)
            self._watch.hand(told.journal)
        if told.ended is not None:
            self._run.ended = told.ended
            self._run.unrecorded = told.unrecorded
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
        """A process has given up the silent lead. The job ends a moment later, because no process
        can go on without the lead."""
        child.lead_lost = True
        if self._lead_lost is None:
            self._lead_lost = failed
            self._lead_lost_since = time.monotonic()

    def _exited(self, child: Child) -> None:
        """Act on the exit of a child."""
        name = child.request.name
        self._logs.ended(name)
        if child.failure is not None:
            self._watch.record(name, child.failure)
        if child.lead_lost:
            return  # `_end_without_lead` reports that the lead is silent
        self._reports.ended(name)
        if not self._said_stopping:
            # say so if an operator has stopped the job
            self._say_stopping()
        over = self._stopping.is_ending
        if child.request.leads and self._stopping.waits_for_workers and self._run.ended is None:
            # The job ends later: workers may still run the code after their training loops.
            self._run.failed = f"server {name} died ({child.how}): the lead ran in it"
        # the end of the job does not excuse a worker: its death may have ended the job
        expected = child.was_ended or (over and child.request.role == "server")
        if not child.status or (child.failure is None and expected):
            return
        if child.request.role == "server":
            self._server_exited(child, over=over)
            return
        if child.orphaned:
            # the server at the other end of the link may have died, which is reported in a moment
            self._orphans.append((time.monotonic() + _SERVER_END_S, child))
        else:
            self._worker_failed(child)

    def _worker_failed(self, child: Child) -> None:
        name, over = child.request.name, self._stopping.is_ending
        self._run.worker_failures[name] = child.how
        if self._job.respawn and not over:
            self._respawn(child)
        elif self._job.on_error == "end" and not over:
            self._fail(f"{name} failed, so the job has failed: {child.how}")
        else:
            self._failures.note(name, child.how)

    def _judge_orphans(self, *, now: bool = False) -> None:
        """Decide whether workers that have lost a link have failed. If the job ends because of a dead
        server, they have not."""
        if self._run.lead_lost or self._run.slices_lost:
            self._orphans.clear()
        at_s = math.inf if now else time.monotonic()
        due = [child for until_s, child in self._orphans if until_s <= at_s]
        self._orphans = [(until_s, child) for until_s, child in self._orphans if until_s > at_s]
        for child in due:
            self._worker_failed(child)

    def _server_exited(self, child: Child, *, over: bool) -> None:
        """Act on the death of a server. If the job has replicas, the lead decides whether the job
        goes on."""
        request = child.request
        died = f"server {request.name} died ({child.how})"
        gathered = self._members.gathered(self._job.servers)
        replicas = self._job.replicas
        loss = loss_of(
            request.number, reported=child.reported, gathered=gathered, replicas=replicas
        )
        if loss is not ProcessLoss.NOTHING and not over and not self._job.respawn:
            self._run.lost += 1
        if loss is ProcessLoss.LEAD:
            self._run.lead_lost = True
            self._fail(f"{died}; the job ends: the lead ran in it")
        # Another message says that the lead is lost, or that it has removed this server.
        elif child.orphaned:
            if self._job.respawn and not over:
                self._respawn(child)
        elif loss is ProcessLoss.NOTHING and not over:
            if child.failure is not None and not child.reported:
                self._fail(child.failure)  # the message of the server says why it cannot start
            else:
                self._respawn(child, needed=True)
        elif loss is ProcessLoss.SLICES:
            self._run.slices_lost = True
            self._fail(f"{died}; the job ends: its slices are lost")
        elif not over:
            if self._job.respawn:
                self._respawn(child)
            else:
                self._say(died)

    def _respawn(self, child: Child, *, needed: bool = False) -> None:
        """Start a process again. If it died too often, report that it is given up. `needed`: the
        job cannot begin without this process, so the job fails if the process is given up."""
        given_up = self._respawning.plan(child)
        if given_up is None:
            name, how = child.request.name, first_line(child.how)
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
        """Act on conditions that no process reports: waits that are too long, a deleted folder,
        missing processes."""
        if not self._said_stopping:
            self._say_stopping()
        self._reports.show()
        self._logs.limit()
        self._end_without_lead()
        self._end_without_fork_server()
        self._watch_folder()
        self._judge_orphans()
        self._end_without_workers()
        if self._run.failed is None:
            self._failures.say()
        self._stopping.pursue()

    def _say_stopping(self) -> None:
        """Say once that the job stops in an orderly way. The signal handler does not say it,
        because it may run in the middle of another line of output."""
        by = self._members.stopping_for()
        if by is not None:
            self._stopping.lead_stops()
        self._said_stopping = self._stopping.waits_for_workers
        if self._said_stopping and self._run.ended is None and not self._members.ended:
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

    def _end_without_fork_server(self) -> None:
        """End the job if the fork server has died: no process can be started any more, and exits are
        not reported. The other processes are well, so the lead ends the job and saves the model."""
        if self._processes.lost is not None and self._run.failed is None:
            self._fail(self._processes.lost)

    def _watch_folder(self) -> None:
        if self._folder is not None and self._folder.gone():
            self._folder = None  # do not report the missing folder again
            self._say(
                f"the folder of this run, {self._run_dir}, or the journal in it was deleted or moved:"
                " nothing is recorded any more, and status, why and story do not know this run; the"
                " job goes on, and saves its model there"
            )

    def _end_without_workers(self) -> None:
        """End the job if all workers have ended and the lead does not end it."""
        workers = self._processes.workers
        others = bool(self._respawning) or len(self._workers) < self._job.workers
        over = self._lead is not None and not others and not any(w.alive for w in workers)
        if not over or self._members.present():
            self._over_since = time.monotonic()
        failures = {child.request.name: child.how for child in workers if child.status}
        patience_s = _FAILED_S if failures else _LAST_WORD_S
        waited = time.monotonic() > self._over_since + patience_s and not self._orphans
        if not (over and waited) or self._run.ended is not None or self._stopping.begun:
            return
        if self._stopping.waits_for_model:
            return
        if self._stopping.waits_for_workers:
            # The lead waits for workers to leave, and no worker is left. So the engine ends the
            # job.
            self._stopping.stop()
        elif failures:
            self._failures.take()
            self._fail(f"no worker is left: {'; '.join(failure_lines(failures))}")
        elif self._job.respawn:  # with `--respawn`, the lead would wait for new workers forever
            self._fail("every worker left before the goal")
        elif self._members.attached:
            self._fail("every worker ended before round 1 had opened")
        else:
            self._fail(NEVER_ATTACHED)

    # -- signals -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals: Ctrl-C or SIGTERM ends the job in an orderly way, and a second one ends
        it at once. Python handles signals in its main thread only: a job that another thread runs
        ends by 'polyrhythm stop'."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            if self._cleaning:
                return  # all processes are being ended already
            if self._run.interrupted:
                self._run.at_once = True
                raise _EndAtOnce
            self._run.interrupted = number
            if not self._processes.begun:
                # no process runs yet: `run` looks at `interrupted` when the fork server has started
                return
            if self._starting:
                raise _EndAtOnce  # processes that are still starting cannot leave the job as others do
            self._stopping.stop_in_order()

        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
