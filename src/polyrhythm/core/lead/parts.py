"""The parts of the lead. Each part follows one rule; `state.py` connects them."""

import msgspec

from polyrhythm.core.lead.data.balance.balancing import Balancing
from polyrhythm.core.lead.data.enrolment import Enrolment
from polyrhythm.core.lead.data.migration import Migration
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.lead.data.private import PrivateData
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
from polyrhythm.core.lead.rounds.sharing import Sharing
from polyrhythm.core.lead.saving import KeepBest, Saving
from polyrhythm.core.lead.servers.broken_links import BrokenLinks
from polyrhythm.core.lead.servers.link_report import LinkReport
from polyrhythm.core.lead.servers.placement import Placement
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.lead.servers.servers import Servers
from polyrhythm.core.placement.network import Network
from polyrhythm.core.sync.policy import SyncPolicy
from polyrhythm.wire.messages import JobSpec


class Parts(msgspec.Struct, frozen=True):
    """The basic parts of the lead. None of them calls these other parts: the mode
    (`rounds/modes.py`), the lifecycle of members (`members/lifecycle.py`), the counting of
    contributions (`rounds/counting.py`) or the machine."""

    job: JobSpec
    policy: SyncPolicy
    view: View
    admission: Admission
    opening: Opening
    routing: RoutingTable
    network: Network
    contributions: Contributions
    steps: Steps
    rounds: Rounds
    removals: Removals
    plan: DataPlan
    private: PrivateData | None
    """The data sets of single members; None if all members have the same data set."""
    migration: Migration
    balancing: Balancing | None
    """None if the lead does not balance passes."""
    enrolment: Enrolment
    outbox: LeadOutbox
    operators: Operators
    servers: Servers
    placement: Placement
    link_report: LinkReport
    broken: BrokenLinks
    progress: JobProgress
    saving: Saving
    best: KeepBest
    ending: Ending
    stopping: Stopping
    folds: Folds
    sharing: Sharing
    evaluator: Evaluator
