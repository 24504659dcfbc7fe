"""A scenario made from a recorded run, to see what another policy would have made of it.

From the journal: what a point cost each worker, how many points a step had, and what an exchange
cost. *Who is waited for most waits least: what it waits itself is the way there and back.* Means are
all that a journal has, so steps are constant; workers that came or went are taken as there from the
beginning, and data never ends.
"""

from polyrhythm.core.sync.choose import choose_policy
from polyrhythm.errors import UsageError
from polyrhythm.observe.state import RunState
from polyrhythm.observe.worker import WorkerState
from polyrhythm.sim.quantities import Duration, Rate, Size
from polyrhythm.sim.scenario import JobTable, LinkTable, Scenario, WorkersTable
from polyrhythm.wire.messages import JobSpec

_LEAST_ROUNDS = 20
_TWO_WAYS = 2
"""An exchange carries the model there and back."""


def scenario_of(state: RunState, job: JobSpec, sync: str) -> Scenario:
    """What was recorded, under another policy; refused if nothing was."""
    workers = [worker for worker in state.workers.values() if worker.totals.points]
    if not workers or not any(state.slices.values()):
        raise UsageError("the run has no contributions to learn from")
    contributions = sum(worker.totals.contributions for worker in workers)
    points = sum(worker.totals.points for worker in workers)
    batch = max(1, round(points / contributions / max(1, job.local_steps)))
    waits_s = [worker.totals.wait_s / worker.totals.contributions for worker in workers]
    delay = Duration(min(waits_s) / _TWO_WAYS * 1e9)
    slices = state.slices.values()
    share = state.nbytes * max(slices) / sum(slices)
    scenario = Scenario(
        job=JobTable(
            sync=sync,
            timer=job.timer,
            kind="local" if sync == "psp" else job.kind,
            local_steps=1 if sync == "psp" else job.local_steps,
            servers=job.servers,
            rounds=max(_LEAST_ROUNDS, state.round),
            batch=batch,
            model=Size(max(4, state.nbytes)),
            slice=Size(job.slice_nbytes),
            heartbeat=Duration(job.heartbeat_s * 1e9),
            interval=job.interval,
            coordination=job.coordination,
            abandon=job.abandon if sync == job.sync else "off",
            most_steps=job.most_steps,
        ),
        workers=tuple(_table(worker, batch, delay, share) for worker in workers),
    )
    choose_policy(scenario.job_spec(job.name))
    return scenario


def _table(worker: WorkerState, batch: int, delay: Duration, nbytes: float) -> WorkersTable:
    """`nbytes`: what the busiest link carries in one direction."""
    totals = worker.totals
    step_ns = totals.compute_s * 1e9 / totals.points * batch
    transfer_s = totals.transfer_s / totals.contributions
    bandwidth = Rate(_TWO_WAYS * nbytes / transfer_s) if transfer_s > 0 else LinkTable().bandwidth
    return WorkersTable(
        name=worker.name,
        step=Duration(max(1, step_ns)),
        link=LinkTable(delay=delay, bandwidth=Rate(max(1, bandwidth))),
    )
