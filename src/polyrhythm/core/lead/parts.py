"""The parts of the lead, each with a rule of its own, and how they are connected."""

from dataclasses import dataclass

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.lead.data.moves import Migration
from polyrhythm.core.lead.data.sharing import Sharing
from polyrhythm.core.lead.ending import Ending, Stopping
from polyrhythm.core.lead.members.evaluator import Evaluator
from polyrhythm.core.lead.members.joining import Admission, Opening, Steps
from polyrhythm.core.lead.members.leaving import Removals
from polyrhythm.core.lead.members.view import View
from polyrhythm.core.lead.operators import Operators
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.progress.progress import JobProgress
from polyrhythm.core.lead.rounds.contributions import Contributions
from polyrhythm.core.lead.rounds.folds import Folds, Rounds
from polyrhythm.core.lead.saving import KeepBest, Saving
from polyrhythm.core.lead.servers.broken_links import BrokenLinks
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.lead.servers.servers import Servers
from polyrhythm.core.liveness import link_timeout_s
from polyrhythm.core.migration import BLOCKING, DELIVERING, OFF, choose_migration
from polyrhythm.core.seat import Seat
from polyrhythm.core.sync.policy import SyncPolicy
from polyrhythm.core.sync.registry import choose_policy
from polyrhythm.wire.messages import JobSpec


@dataclass(frozen=True, slots=True)
class Parts:
    """The basic parts of the lead. None of them calls the mode (`rounds/modes.py`), the lifecycle of
    members (`members/lifecycle.py`), the counting of contributions (`rounds/counting.py`) or the
    machine."""

    job: JobSpec
    policy: SyncPolicy
    view: View
    admission: Admission
    opening: Opening
    routing: RoutingTable
    contributions: Contributions
    steps: Steps
    rounds: Rounds
    removals: Removals
    sharing: Sharing
    outbox: LeadOutbox
    operators: Operators
    servers: Servers
    broken: BrokenLinks
    progress: JobProgress
    saving: Saving
    best: KeepBest
    ending: Ending
    stopping: Stopping
    folds: Folds
    evaluator: Evaluator


def connect(job: JobSpec, seat: Seat) -> Parts:
    policy, view, rounds = choose_policy(job), View(), Rounds()
    admission = Admission(job.job)
    routing = RoutingTable(job.servers, job.slice_nbytes, job.replicas, restores=bool(job.resume))
    grace_s = job.start_timeout_s if job.respawn else 0.0
    removals = Removals(grace_s, link_timeout_s(job.lead_timeout_s))
    rows = keeps_rows(job.kind)
    chosen = choose_migration(job, policy.traits)
    mode, migration = chosen.mode, None
    if mode in DELIVERING:
        migration = Migration(job.migrate_memory, blocking=mode == BLOCKING, rows=rows)
    sharing = Sharing(
        job.seed,
        job.epochs,
        job.min_batch,
        whole_chunks=rows,
        balances=mode != OFF,
        migration=migration,
        private=job.data_private,
        timed=policy.traits.timed,
        chosen=chosen,
    )
    outbox = LeadOutbox(view, routing, seat)
    operators = Operators(outbox)
    progress = JobProgress(job, sharing, outbox)
    contributions = Contributions()
    named = contributions if rows and policy.traits.rounds else None
    saving = Saving(routing, outbox, has_store=bool(job.store))
    best = KeepBest(job, routing, rounds, outbox)
    return Parts(
        job=job,
        policy=policy,
        view=view,
        admission=admission,
        opening=Opening(job.workers, job.start_timeout_s),
        routing=routing,
        contributions=contributions,
        steps=Steps(routing),
        rounds=rounds,
        removals=removals,
        sharing=sharing,
        outbox=outbox,
        operators=operators,
        servers=Servers(job, routing, rounds, outbox),
        broken=BrokenLinks(job, view, routing, seat),
        progress=progress,
        saving=saving,
        best=best,
        ending=Ending(
            admission, rounds, progress, operators, outbox, saving, best, saves=job.save_model
        ),
        stopping=Stopping(),
        folds=Folds(policy, view, routing, removals, rounds, outbox, progress, named),
        evaluator=Evaluator(view, outbox),
    )
