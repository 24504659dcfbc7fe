"""Makes a scenario from a recorded run, to predict the speed of another policy.

The journal gives the time per point on each worker, the batch size, and the cost of an exchange.

**Transfers.** If all links are within a host, the time of transferring is that of the worker's
copying; otherwise it is the link's time. Every message wakes a waiting worker, which makes its
copying slower. So in the scenario no worker copies for longer than the worker that waited least.

**Round-trip time.** It is the wait of a worker that waits for no other worker: under asp of every
worker, with rounds of the last worker to arrive, under other policies of the worker that waited
least. Under psp workers do not wait, and the round-trip time is unknown.

A journal has only means, so all steps of a worker take equally long. In the scenario, workers that
joined late or left early are present from the beginning to the end, and there is no limit on the
data. A run with `--read-ahead` shows little of the round-trip time, so a prediction from it makes
the waits of other policies too short.
"""

from polyrhythm.core.kinds import BY_POINTS, OFF, ON_SERVERS, steps_on_servers
from polyrhythm.core.link_kinds import find_link_kind
from polyrhythm.core.placement.division import LOCAL_NBYTES
from polyrhythm.core.sync.registry import AUTO, choose_policy, traits_of
from polyrhythm.errors import UsageError
from polyrhythm.observe.state import RunState
from polyrhythm.observe.work import ObservedWorker
from polyrhythm.sim.scenario import JobTable, Scenario
from polyrhythm.sim.tables import Duration, LinkSettings, Rate, Size, WorkersTable
from polyrhythm.wire.messages import JobSpec

_LEAST_ROUNDS = 20
_TWO_WAYS = 2
"""An exchange crosses the link twice: once in each direction."""


def _is_within_host(link: str) -> bool:
    kind = find_link_kind(link)
    return kind is not None and kind.is_within_host


def scenario_of(state: RunState, job: JobSpec, sync: str) -> Scenario:
    """The scenario of the recorded run under the policy `sync`. Raises UsageError if the run has no
    contributions."""
    workers = [worker for worker in state.workers.values() if worker.totals.points]
    if not workers or not any(state.slices.values()):
        raise UsageError("the run has no contributions to learn from")
    batch = state.batch or _usual_points(workers, job)
    slices = state.slices.values()
    carried = 0.0
    if not all(map(_is_within_host, state.links.values())):
        carried = (state.nbytes + _pushed_nbytes(state)) / _TWO_WAYS * max(slices) / sum(slices)
    together, near = traits_of(job.sync).asks_before_steps, not carried
    waits_s, transfers_s = _exchanges(workers, state.rtt_s, together=together, near=near)
    other = sync != job.sync
    scenario = Scenario(
        job=JobTable(
            sync=sync,
            timer=job.timer,
            optimizer_on=ON_SERVERS if other else job.optimizer_on,
            kind=AUTO if other and steps_on_servers(job.kind) else job.kind,
            outer=job.outer if traits_of(sync).rounds else OFF,
            weights=job.weights if traits_of(sync).rounds else BY_POINTS,
            push=job.push,
            local_steps=1 if traits_of(sync).plans_steps else job.local_steps,
            servers=job.servers,
            rounds=max(_LEAST_ROUNDS, state.round, _batches(workers, batch)),
            batch=batch,
            model=Size(max(4, state.nbytes)),
            slice=Size(job.slice_nbytes or state.slice_nbytes or LOCAL_NBYTES),
            heartbeat=Duration(job.heartbeat_s * 1e9),
            interval=job.interval,
            coordination=job.coordination,
            abandon="off" if other else job.abandon,
            migrate="auto" if other else job.migrate,
            most_steps=job.most_steps,
        ),
        workers=tuple(
            _table(worker, batch, wait_s, transfer_s, carried)
            for worker, wait_s, transfer_s in zip(workers, waits_s, transfers_s, strict=True)
        ),
    )
    choose_policy(scenario.job_spec(job.name))
    return scenario


def _pushed_nbytes(state: RunState) -> float:
    """The mean size of a contribution in bytes."""
    return state.pushed.nbytes(state.contributions, state.nbytes) / max(1, state.contributions)


def _exchanges(
    workers: list[ObservedWorker], rtt_s: float | None, *, together: bool, near: bool
) -> tuple[list[float], list[float]]:
    """Per worker, two times of one exchange in seconds: the round-trip time and the time of
    transferring. `rtt_s`: the round-trip time that rounds have measured, if any. `together`:
    workers waited for each other. `near`: all links are within a host."""
    waits_s = [worker.totals.wait_s / max(1, _exchanged(worker)) for worker in workers]
    transfers_s = [worker.totals.transfer_s / max(1, _exchanged(worker)) for worker in workers]
    if together:
        every = list(zip(waits_s, transfers_s, strict=True))
        told = [cost for worker, cost in zip(workers, every, strict=True) if _exchanged(worker)]
        told = told or every
        least_s = min(told)[0]
        if near:
            most_s = max(transfer_s for wait_s, transfer_s in told if wait_s == least_s)
            transfers_s = [min(transfer_s, most_s) for transfer_s in transfers_s]
        waits_s = [least_s if rtt_s is None else rtt_s] * len(workers)
    return waits_s, transfers_s


def _exchanged(worker: ObservedWorker) -> int:
    """The number of exchanges that a worker has reported. The first contribution after each join
    reports none."""
    return max(0, worker.totals.contributions - worker.joins)


def _batches(workers: list[ObservedWorker], batch: int) -> int:
    """How many batches each worker visited on average. It is used as the number of rounds, because
    a round may have several batches in the recorded run and one under the other policy."""
    points = sum(worker.totals.points for worker in workers)
    return points // (batch * len(workers))


def _usual_points(workers: list[ObservedWorker], job: JobSpec) -> int:
    """The points of a step, for a journal without the batch size. The function assumes that a
    contribution has `--local-steps` steps."""
    contributions = sum(worker.totals.contributions for worker in workers)
    points = sum(worker.totals.points for worker in workers)
    return max(1, round(points / contributions / max(1, job.local_steps)))


def _table(
    worker: ObservedWorker, batch: int, wait_s: float, transfer_s: float, carried: float
) -> WorkersTable:
    """`carried`: how many bytes the busiest link carries per exchange, as the mean of its two
    directions. It is 0 if all links are within a host."""
    totals = worker.totals
    delay = Duration(wait_s / _TWO_WAYS * 1e9)
    link = LinkSettings(delay=delay)
    if carried and transfer_s > 0:
        link = LinkSettings(delay=delay, bandwidth=Rate(max(1, _TWO_WAYS * carried / transfer_s)))
    return WorkersTable(
        name=worker.name,
        step=Duration(max(1, totals.compute_s * 1e9 / totals.points * batch)),
        handling=Duration(0 if carried else transfer_s * 1e9),
        link=link,
    )
