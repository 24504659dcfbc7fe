"""Runs a job: writes the files of its folder, starts its processes, shows the progress, and returns
the result."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from polyrhythm.api.checks import continued
from polyrhythm.api.code import Remote
from polyrhythm.api.folders import discarded_if_not_started, next_run_dir, writing
from polyrhythm.api.hosts import Here, ProcessOptions, child_requests
from polyrhythm.api.result import Result, result_of_run
from polyrhythm.api.saying import tell
from polyrhythm.api.secret import SECRET, given_secret
from polyrhythm.core.supervision import Loss, NewestCheckpoint, Resuming
from polyrhythm.engines.choice import INLINE, LOCAL, RAY, choose_engine
from polyrhythm.engines.engine import ClusterOptions, EngineRun, EngineWatch, Wanted
from polyrhythm.engines.exits import name_of
from polyrhythm.engines.requests import listening_fields
from polyrhythm.errors import Interrupted, JobFailed, StoreError
from polyrhythm.io.limits import check_limit, raise_limit
from polyrhythm.io.secretfile import create_secret
from polyrhythm.observe.join_hint import JoinHint
from polyrhythm.observe.progress import ProgressDisplay
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import (
    JOURNAL,
    RESULT,
    load_run,
    write_job,
    write_process,
    write_result,
)
from polyrhythm.observe.state import RunState, last_metrics
from polyrhythm.observe.summary import described
from polyrhythm.observe.summary import result as result_of_state
from polyrhythm.store.checkpoints import newest
from polyrhythm.store.objects import open_store
from polyrhythm.wire.messages import Address, JobSpec


class _NoRemote:
    def listening(self, address: str, run_dir: Path) -> None:
        pass

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        pass

    def wanted(self) -> Wanted:
        return Wanted.GO_ON


def run_job(
    spec: JobSpec,
    here: Here,
    run_dir: Path,
    options: ProcessOptions,
    *,
    quiet: bool,
    engine: str = LOCAL,
    cluster: ClusterOptions | None = None,
    remote: Remote | None = None,
) -> Result:
    """Run the job in its folder, show its progress, and return its result. If the job loses
    parameters, it may continue from a checkpoint in another folder. `options`: of its processes.
    `cluster`: how the engine `ray` uses a cluster. Raises JobFailed if the job did not reach its
    goal, and Interrupted if a second signal ended it at once. Both have the result. A job that is
    detached returns its result so far, when it has begun."""
    if cluster is not None and cluster.detach:
        return _run_detached(spec, here, run_dir, options, quiet=quiet, cluster=cluster)
    remote = _NoRemote() if remote is None else remote
    resuming, first_dir = Resuming(spec), run_dir
    while True:
        with discarded_if_not_started(run_dir):
            run, progress = _run(spec, here, run_dir, options, quiet, engine, cluster, remote)
        summary = summary_of(run, spec, progress.state)
        try:
            write_result(run_dir, summary)
        except OSError as error:
            fault = f"{run_dir / RESULT} cannot be written: {error.strerror}"
            summary["unrecorded"].append(fault)
        again = _resumed(resuming, spec, run, progress)
        if again is None:
            break
        spec, here = again, _remaining(here, spec, again)
        run_dir = next_run_dir(first_dir)
        progress.say(f"the job continues as run {run_dir.name}")
    said = frozenset(run.worker_failures)
    result = Result(run_dir, summary, progress.state, spec, run.interrupted, said=said)
    if run.at_once:
        raise Interrupted(result)
    if not run.interrupted and result.failed is not None:
        raise JobFailed(result.failed, result)
    return result


class _Begins(_NoRemote):
    """Reports that the lead of a detached job listens."""

    def __init__(self, begun: Callable[[], None]) -> None:
        self._begun = begun

    def listening(self, address: str, run_dir: Path) -> None:
        self._begun()


def _run_detached(
    spec: JobSpec,
    here: Here,
    run_dir: Path,
    options: ProcessOptions,
    *,
    quiet: bool,
    cluster: ClusterOptions,
) -> Result:
    """Let the job run in a process of the cluster that goes on when this one ends."""
    from polyrhythm.engines.ray_detached import detach

    run_dir = run_dir.resolve()
    attached = replace(cluster, detach=False, address=None)
    job = partial(_run_on, spec, here, run_dir, options, quiet, attached)
    with discarded_if_not_started(run_dir):
        detach(job, run_dir, cluster.address)
    return result_of_run(load_run(run_dir))


def _run_on(
    spec: JobSpec,
    here: Here,
    run_dir: Path,
    options: ProcessOptions,
    quiet: bool,
    cluster: ClusterOptions,
    begun: Callable[[], None],
) -> None:
    """Run a detached job until it ends, in the process that runs it, and print its result."""
    remote = _Begins(begun)
    result = run_job(
        spec, here, run_dir, options, quiet=quiet, engine=RAY, cluster=cluster, remote=remote
    )
    tell(result.text())


def _run(
    spec: JobSpec,
    here: Here,
    run_dir: Path,
    options: ProcessOptions,
    quiet: bool,
    engine: str,
    cluster: ClusterOptions | None,
    remote: Remote,
) -> tuple[EngineRun, ProgressDisplay]:
    """Run the job once, until it ends or parameters are lost."""
    raise_limit()
    check_limit(spec.workers, spec.servers)
    with writing(run_dir):
        write_process(run_dir)
        write_job(run_dir, spec)
        create_secret(run_dir / SECRET, given_secret())
    requests = child_requests(spec, run_dir, options, here=here, secret_file=run_dir / SECRET)
    # The inline engine runs the job in this process, where a debugger of the user may need the
    # terminal: print no table there.
    table = engine != INLINE
    local = frozenset(each.name for each in requests if each.role == "worker")

    def evaluated(line: Mapping[str, Any]) -> None:
        far = {name: line[name] for name in ("round", "passes", "points") if name in line}
        remote.evaluated({**far, **last_metrics(progress.state)})

    progress = ProgressDisplay(
        run_dir / JOURNAL,
        quiet=quiet,
        job=spec,
        table=table,
        local=local,
        evaluated=evaluated,
    )

    def invite(address: Address) -> None:
        hint = JoinHint.of(listening_fields(requests[0], address))
        for line in () if quiet else here.invitation(spec, hint):
            progress.say(line)
        remote.listening(hint.address, run_dir)

    with progress:
        watch = EngineWatch(
            say=progress.say,
            tick=progress.tick,
            listening=invite,
            record=progress.record,
            wanted=remote.wanted,
            hand=progress.hand,
        )
        run = choose_engine(engine, cluster).run(requests, watch)
        progress.tick()
        progress.end(brief=bool(run.interrupted))
    return run, progress


def _resumed(
    resuming: Resuming, spec: JobSpec, run: EngineRun, progress: ProgressDisplay
) -> JobSpec | None:
    """The job that continues after a loss of parameters; None if the job does not continue."""
    ended = progress.state.ended
    if run.interrupted or run.failed is None or (ended is None and not run.lead_lost):
        return None
    reason = None if run.lead_lost or ended is None else ended.reason.code
    lost = None if reason is None or ended is None else ended.reason.fields.get("server")
    server = lost if isinstance(lost, int) else None
    loss = Loss(reason, run.lost, progress.state.round, server)
    if not resuming.applies(loss):
        return None
    progress.say(run.failed)
    try:
        found = newest(open_store(spec.store), progress.say)
    except StoreError as error:
        progress.say(f"the job cannot be resumed: {error}")
        return None
    at = NewestCheckpoint(found.number, found.manifest.round)
    again, why = resuming.decide(loss, at, spec)
    progress.say(in_words(why))
    return None if again is None else continued(again, spec.store, found)


def _remaining(here: Here, before: JobSpec, now: JobSpec) -> Here:
    return Here(max(1, here.servers - (before.servers - now.servers)), here.workers)


def summary_of(run: EngineRun, spec: JobSpec, state: RunState) -> dict[str, Any]:
    """The result that `--json` prints: the state of the run according to its journal, and how its
    processes ended."""
    return {
        **described(spec),
        **result_of_state(state, spec),
        "failed": _failure(run),
        "stopped_by": name_of(run.interrupted) if run.interrupted else None,
        "worker_failures": {**state.failed_workers, **run.worker_failures},
        "respawned": run.respawned,
        "unrecorded": _unrecorded(run, state),
    }


def _failure(run: EngineRun) -> str | None:
    """Why the job failed; None if it did not. If a signal ends a job before the lead can report
    anything, the job counts as stopped."""
    if run.failed is None and run.ended is None and not run.interrupted:
        return "the job ended before its goal, and no process reported why"
    return run.failed


def _unrecorded(run: EngineRun, state: RunState) -> list[str]:
    """What the folder of the run lacks because it could not be written, one line each."""
    lines = [] if run.unrecorded is None else [f"the journal is not complete: {run.unrecorded}"]
    if state.model_in_store:
        lines.append(f"the model is in the store: {state.model}")
    return lines
