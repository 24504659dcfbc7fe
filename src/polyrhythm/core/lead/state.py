"""The state of the lead, as one struct: everything that it remembers from one event to the next.

*The state is plain data, which msgpack can encode. A part of the lead that needs no other part is a
struct, and its fields are its state. Every other part keeps its state in a separate struct; its
other attributes never change, or its constructor computes them from the state.* So a restored lead
can connect its parts to the state, and then decides like the lead from which the state came.

Effects are not part of the state, because the outbox is empty between two events.
"""

from typing import Generic, TypeVar

import msgspec

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.lead.cuts import CutsState
from polyrhythm.core.lead.data.balance.balancing import Balancing, BalancingState
from polyrhythm.core.lead.data.enrolment import Enrolment, EnrolmentState
from polyrhythm.core.lead.data.migration import Migration, MigrationState
from polyrhythm.core.lead.data.plan import DataPlan, PlanState
from polyrhythm.core.lead.data.private import PrivateData, PrivateState
from polyrhythm.core.lead.ending import Ending, EndingState, Stopping
from polyrhythm.core.lead.members.evaluator import Chosen, Evaluator
from polyrhythm.core.lead.members.joining import Admission, Opening, Steps
from polyrhythm.core.lead.members.leaving import Removals
from polyrhythm.core.lead.members.lifecycle import LifecycleState
from polyrhythm.core.lead.members.view import View
from polyrhythm.core.lead.operators import Operator, Operators
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.progress.progress import JobProgress, ProgressState
from polyrhythm.core.lead.rounds.contributions import Contributions
from polyrhythm.core.lead.rounds.counting import CountingState
from polyrhythm.core.lead.rounds.folds import Folds, Rounds
from polyrhythm.core.lead.rounds.modes import ModeState, begin_mode
from polyrhythm.core.lead.rounds.sharing import Sharing, SharingState
from polyrhythm.core.lead.saving import BestState, KeepBest, Saving, SavingState
from polyrhythm.core.lead.servers.broken_links import BrokenLinks, BrokenLinksState
from polyrhythm.core.lead.servers.link_report import LinkReport, LinkReportState
from polyrhythm.core.lead.servers.placement import Placement, PlacementState
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.lead.servers.servers import UNKNOWN_FACTOR, Servers, ServersState
from polyrhythm.core.lead.waiting import WaitReportState
from polyrhythm.core.liveness import PauseDetector, Suspicion, link_timeout_s
from polyrhythm.core.migration import choose_migration
from polyrhythm.core.placement.division import given_division
from polyrhythm.core.placement.network import Network
from polyrhythm.core.seat import Seat
from polyrhythm.core.sync.policy import SyncPolicy
from polyrhythm.core.sync.registry import choose_policy
from polyrhythm.wire.messages import JobSpec

Policy = TypeVar("Policy", bound=SyncPolicy)


class LeadState(msgspec.Struct, Generic[Policy], kw_only=True):
    policy: Policy
    mode: ModeState
    view: View = msgspec.field(default_factory=View)
    admission: Admission
    opening: Opening
    routing: RoutingTable
    contributions: Contributions = msgspec.field(default_factory=Contributions)
    steps: Steps = msgspec.field(default_factory=Steps)
    rounds: Rounds = msgspec.field(default_factory=Rounds)
    plan: PlanState
    private: PrivateState = msgspec.field(default_factory=PrivateState)
    migration: MigrationState = msgspec.field(default_factory=MigrationState)
    balancing: BalancingState = msgspec.field(default_factory=BalancingState)
    enrolment: EnrolmentState = msgspec.field(default_factory=EnrolmentState)
    removals: Removals
    stopping: Stopping = msgspec.field(default_factory=Stopping)
    evaluator: Chosen = msgspec.field(default_factory=Chosen)
    sharing: SharingState
    operators: dict[str, Operator] = {}
    """The operators by the names of their links."""
    network: Network = msgspec.field(default_factory=Network)
    servers: ServersState
    placement: PlacementState = msgspec.field(default_factory=PlacementState)
    link_report: LinkReportState = msgspec.field(default_factory=LinkReportState)
    broken: BrokenLinksState = msgspec.field(default_factory=BrokenLinksState)
    progress: ProgressState
    saving: SavingState = msgspec.field(default_factory=SavingState)
    best: BestState
    ending: EndingState
    lifecycle: LifecycleState
    counting: CountingState = msgspec.field(default_factory=CountingState)
    cuts: CutsState
    waiting: WaitReportState = msgspec.field(default_factory=WaitReportState)
    pauses: PauseDetector


def begin_state(job: JobSpec) -> LeadState[SyncPolicy]:
    """The state of a lead that has handled no event."""
    policy = choose_policy(job)
    grace_s = job.start_timeout_s if job.respawn else 0.0
    return LeadState(
        policy=policy,
        mode=begin_mode(job, policy.traits),
        admission=Admission(job.job),
        opening=Opening(job.workers, job.start_timeout_s),
        routing=RoutingTable.begin(
            job.servers,
            given_division(job),
            job.replicas,
            job.placement,
            slices_stay=job.in_place or (keeps_rows(job.kind) and not policy.traits.rounds),
            restores=bool(job.resume),
        ),
        plan=PlanState(job.seed),
        removals=Removals(grace_s, link_timeout_s(job.lead_timeout_s)),
        sharing=SharingState.begin(job),
        servers=ServersState(Suspicion(job.heartbeat_s, UNKNOWN_FACTOR)),
        progress=ProgressState.begin(job),
        best=BestState(SavingState(next=2)),
        ending=EndingState(saves=job.save_model),
        lifecycle=LifecycleState(Suspicion(job.heartbeat_s)),
        cuts=CutsState.begin(job),
        pauses=PauseDetector(job.heartbeat_s),
    )


def encode_state(state: LeadState[SyncPolicy]) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_state(job: JobSpec, encoded: bytes) -> LeadState[SyncPolicy]:
    """Decode the state that a job with these options has encoded."""
    policy = type(choose_policy(job))
    return msgspec.msgpack.decode(encoded, type=LeadState[policy])  # type: ignore[valid-type]


def connect(job: JobSpec, state: LeadState[SyncPolicy], seat: Seat) -> Parts:
    """Connect the parts of the lead to this state."""
    policy, view, rounds, routing = state.policy, state.view, state.rounds, state.routing
    outbox = LeadOutbox(view, routing, seat)
    operators = Operators(state.operators, outbox)
    plan = DataPlan(state.plan, job.epochs, forgets=keeps_rows(job.kind))
    private = PrivateData(state.private, plan) if job.data_private else None
    if private is not None:
        plan.ownership = private
    choice = choose_migration(job, policy.traits)
    migration = Migration(state.migration, plan, choice, job.migrate_memory)
    progress = JobProgress(state.progress, job, plan, migration, outbox)
    named = state.contributions if keeps_rows(job.kind) and policy.traits.rounds else None
    saving = Saving(state.saving, routing, outbox, has_store=bool(job.store))
    sharing = Sharing(state.sharing, view, routing, rounds, state.evaluator, outbox)
    best = KeepBest(state.best, job, routing, rounds, outbox, sharing)
    return Parts(
        job=job,
        policy=policy,
        view=view,
        admission=state.admission,
        opening=state.opening,
        routing=routing,
        network=state.network,
        contributions=state.contributions,
        steps=state.steps,
        rounds=rounds,
        removals=state.removals,
        plan=plan,
        private=private,
        migration=migration,
        balancing=Balancing(state.balancing, plan, migration) if migration.balances else None,
        enrolment=Enrolment(state.enrolment, job, view, plan, migration, private),
        outbox=outbox,
        operators=operators,
        servers=Servers(state.servers, job, routing, state.network, rounds, outbox, operators),
        placement=Placement(
            state.placement, job, policy.traits, view, routing, state.network, outbox
        ),
        link_report=LinkReport(
            state.link_report, job, policy.traits, view, routing, state.network, outbox
        ),
        broken=BrokenLinks(state.broken, job, view, routing, seat),
        progress=progress,
        saving=saving,
        best=best,
        ending=Ending(
            state.ending, state.admission, rounds, progress, operators, outbox, saving, best
        ),
        stopping=state.stopping,
        folds=Folds(policy, view, routing, rounds, outbox, progress, sharing.lacks, named),
        sharing=sharing,
        evaluator=Evaluator(state.evaluator, view, outbox),
    )
