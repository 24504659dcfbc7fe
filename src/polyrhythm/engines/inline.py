"""The whole job in this process: the same machines and nodes over memory links, a thread per
worker.

For debugging a job, for notebooks, and for tests.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.core.effects import End
from polyrhythm.core.peers import SEAT
from polyrhythm.errors import JobFailed, PolyrhythmError
from polyrhythm.io.memory import MemoryLink, memory_pair
from polyrhythm.learn.worker import Worker
from polyrhythm.observe.journal import MemoryJournal
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import Address, JobSpec

_END_TIMEOUT_S = 10.0
_TICK_S = 0.2


class Hub:
    """Memory links by address: the port is the server's number."""

    shared = False

    def __init__(self) -> None:
        self.servers: list[ServerNode] = []

    def address(self, server: int) -> Address:
        return Address("memory", server, "", "")

    def dial(self, address: Address, peer: str) -> MemoryLink:
        mine, theirs = memory_pair("stranger", peer)
        self.servers[address.port].welcome(theirs)
        return mine


@dataclass(slots=True)
class InlineRun:
    """What came of an inline job."""

    outcome: End | None
    journal: list[dict[str, Any]]
    errors: dict[str, BaseException] = field(default_factory=dict)


def run_inline(
    job: JobSpec,
    main: Callable[[Worker], None],
    *,
    options: NodeOptions | None = None,
    timeout_s: float = 600.0,
) -> InlineRun:
    """Run `main` on `job.workers` workers; raises the first worker's error if any failed."""
    options = options or NodeOptions(check=True)
    hub, journal = Hub(), MemoryJournal()
    for server in range(job.servers):
        node = ServerNode(
            server,
            job,
            hub.address(server),
            lead=server == SEAT.server,
            options=options,
            journal=journal if server == SEAT.server else None,
            shared=False,
        )
        hub.servers.append(node)
    run = InlineRun(None, journal.lines)
    try:
        lead = hub.servers[SEAT.server]
        for node in hub.servers:
            if node is not lead:
                node.reach_lead(hub, hub.address(SEAT.server))
        threads = [
            threading.Thread(
                target=_work, args=(f"worker-{index}", job, hub, main, options, run), daemon=True
            )
            for index in range(job.workers)
        ]
        for thread in threads:
            thread.start()
        _await_end(lead, threads, run, timeout_s)
        for thread in threads:
            thread.join(_END_TIMEOUT_S)
        run.outcome = lead.outcome
    finally:
        for node in hub.servers:
            node.close()
    _raise_first(run)
    return run


def _await_end(
    lead: ServerNode, threads: list[threading.Thread], run: InlineRun, timeout_s: float
) -> None:
    """The job ends by itself, or when every worker failed before it could begin."""
    until_s = time.monotonic() + timeout_s
    while not lead.ended.wait(_TICK_S):
        if time.monotonic() > until_s:
            raise JobFailed(f"the job did not end within {timeout_s:.0f} s")
        if len(run.errors) == len(threads):
            lead.stop("no worker is left", at_once=True)


def _work(
    name: str,
    job: JobSpec,
    hub: Hub,
    main: Callable[[Worker], None],
    options: NodeOptions,
    run: InlineRun,
) -> None:
    node = WorkerNode(name, job.job, hub, options)
    reason = ""
    try:
        main(Worker(node, node.join(hub.address(SEAT.server))))
    except Exception as error:  # handed to the caller of run_inline, which raises it
        run.errors[name] = error
        reason = f"it failed: {error}"
    finally:
        node.leave(reason)
        node.close()


def _raise_first(run: InlineRun) -> None:
    """The error of a worker that failed by itself, rather than of one that was stopped by it."""
    errors = sorted(run.errors.values(), key=lambda error: isinstance(error, PolyrhythmError))
    if errors:
        raise errors[0]
    if run.outcome is not None and run.outcome.failed:
        raise JobFailed(str(run.outcome.reason))
