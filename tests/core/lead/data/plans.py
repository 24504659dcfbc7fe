"""Makes data plans, and the parts around them, for tests."""

from collections.abc import Sequence

from polyrhythm.core.lead.data.migration import Migration, MigrationState
from polyrhythm.core.lead.data.plan import DataPlan, PlanState
from polyrhythm.core.lead.data.private import PrivateData, PrivateState
from polyrhythm.core.machine import Reason
from polyrhythm.core.migration import FULL, MigrationChoice


def plan_of(
    points: int,
    workers: int,
    seed: int = 0,
    epochs: int | None = None,
    least: int = 1,
    fewest: int = 1,
    groups: Sequence[int] = (),
    *,
    permuted: bool = False,
    forgets: bool = False,
) -> DataPlan:
    """A plan whose data set is cut into chunks, which no member holds yet."""
    plan = DataPlan(PlanState(seed), epochs, forgets=forgets)
    plan.begin(points, workers, least, fewest, groups, permuted=permuted)
    return plan


def private_plan(seed: int, epochs: int | None) -> tuple[DataPlan, PrivateData]:
    """A plan with private data, before the first data set is announced."""
    plan = DataPlan(PlanState(seed), epochs)
    plan.ownership = private = PrivateData(PrivateState(), plan)
    return plan, private


def migration_over(
    plan: DataPlan, mode: str = FULL, copies_nbytes: int | None = None, *, members: int = 1
) -> Migration:
    """`members`: the number of members for which the plan was made."""
    choice = MigrationChoice(mode, Reason("migrate-given", {"name": mode}))
    migration = Migration(MigrationState(), plan, choice, copies_nbytes)
    migration.bound_copies(members)
    return migration
