"""Requests that do not come from members.

A signal or an operator can request a stop. An operator can also request a checkpoint, the job's
code or a page of its journal. An operator or a server can request that the server is drained.

*A stop shuts the job down cleanly: every worker leaves its loop with the final parameters. The stop
ends the job at once if the request asks for that, before round 1, or if no member is left. If the
engine requests the end because the job cannot continue, the job has failed, even after round 1 has
opened. If only the model is left to save and it cannot be written, a stop gives up the model.*
"""

from collections.abc import Callable
from typing import ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.lead.cuts import Cuts
from polyrhythm.core.lead.members.lifecycle import Lifecycle
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.progress.progress import stopped
from polyrhythm.core.lead.rounds.modes import Mode
from polyrhythm.core.machine import Reason
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.operator import CHECKPOINT, CODE, DRAIN, JOURNAL, STOP


class OperatorRequests:
    def __init__(self, parts: Parts, mode: Mode, lifecycle: Lifecycle, cuts: Cuts) -> None:
        self._mode = mode
        self._lifecycle = lifecycle
        self._cuts = cuts
        self._job = parts.job
        self._view = parts.view
        self._servers = parts.servers
        self._rounds = parts.rounds
        self._admission = parts.admission
        self._operators = parts.operators
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._outbox = parts.outbox

    # -- a stop --------------------------------------------------------------------------------

    def on_signal(self, event: ev.StopAsked, now_ns: int) -> None:
        if event.failed:
            failed = Reason("job-failed", {"detail": event.failed})
            self._ending.finish(failed, self._mode.done, now_ns, failed=True)
        else:
            self._stop("", now_ns, at_once=event.at_once)

    def _stop(self, by: str, now_ns: int, *, at_once: bool) -> None:
        """`by`: the operator that requested the stop; empty for a signal."""
        if self._ending.give_up_held():
            return
        if at_once or not self._rounds.open or not len(self._view):
            self._ending.finish(stopped(by), self._mode.done, now_ns, failed=False)
        elif not self._ending.begun and not self._stopping.asked:
            self._stopping.reason = stopped(by)
            self._outbox.note("stopping", **self._stopping.reason.fields)
            self._mode.stop(now_ns)

    # -- operators -----------------------------------------------------------------------------

    def on_hello(self, event: ev.OperatorHelloReceived) -> None:
        fault = self._admission.fault(event.hello)
        if fault is not None:
            self._outbox.refuse(event.link, fault)
        else:
            self._operators.join(event.link, event.hello)

    def on_request(self, event: ev.OperatorRequested, now_ns: int) -> None:
        """Carry out the request of an operator, or refuse it."""
        request = event.request
        if (name := self._operators.on_request(event.link, request)) is None:
            return
        perform = self._REQUESTS.get(request.what)
        if perform is None:
            self._operators.refuse(event.link, Reason("unknown-request", {"what": request.what}))
        else:
            perform(self, event, name, now_ns)

    def _stop_for(self, event: ev.OperatorRequested, name: str, now_ns: int) -> None:
        self._stop(name, now_ns, at_once=event.request.at_once)
        self._lifecycle.tell_operators()

    def _cut_for(self, event: ev.OperatorRequested, name: str, now_ns: int) -> None:
        if (fault := self._cuts.ask()) is not None:
            self._operators.done(CHECKPOINT, fault, failed=True)

    def _drain_for(self, event: ev.OperatorRequested, name: str, now_ns: int) -> None:
        server = event.request.server
        if (fault := self._drain(server, name, now_ns)) is not None:
            self._operators.done(DRAIN, fault, failed=True, server=server)

    def on_drain_asked(self, message: m.Drain, now_ns: int) -> None:
        """Drain the server that requests it. Before all servers have joined, the lead tells it to
        leave at once. A server must stay if its slices cannot move, or if the job is ending,
        because the model may not be saved yet. The server in which the lead runs must stay too, and
        takes a checkpoint."""
        if message.server == self._outbox.seat.server:
            self._cuts.ask()
            return
        if (fault := self._drain(message.server, "", now_ns)) is None:
            return
        if self._ending.begun or self._servers.slices_stay:
            term = self._outbox.seat.term
            self._outbox.tell_servers(m.Stays(term=term, reason=fault), (message.server,))
        else:
            self._outbox.stop_server(message.server, fault)

    def _drain(self, server: int, by: str, now_ns: int) -> Reason | None:
        """Drain a server. Returns why that is not possible; else None."""
        if self._ending.begun:
            return Reason("ending-already")
        return self._servers.drain(server, by, now_ns)

    def _send_code_for(self, event: ev.OperatorRequested, name: str, now_ns: int) -> None:
        """Send the job's code to this operator. Only a job that was started from a file has code to
        send."""
        if self._job.path and self._job.code_digest:
            self._operators.send_code()
        else:
            self._operators.done(CODE, Reason("code-none"), failed=True)

    def _send_journal_for(self, event: ev.OperatorRequested, name: str, now_ns: int) -> None:
        self._operators.send_journal(event.link, event.request.at)

    _REQUESTS: ClassVar[
        dict[str, Callable[["OperatorRequests", ev.OperatorRequested, str, int], None]]
    ] = {
        STOP: _stop_for,
        CHECKPOINT: _cut_for,
        DRAIN: _drain_for,
        CODE: _send_code_for,
        JOURNAL: _send_journal_for,
    }
    """The handler of each request of an operator; it gets the operator's name."""
