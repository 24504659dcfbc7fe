"""All mutants."""

from tests.mutants.access_faults import ACCESS
from tests.mutants.checkpoint_faults import CHECKPOINTS
from tests.mutants.cluster_faults import CLUSTER
from tests.mutants.core_faults import CORE
from tests.mutants.device_faults import DEVICES
from tests.mutants.device_model_faults import DEVICE_MODELS
from tests.mutants.learn_faults import LEARN
from tests.mutants.manifest_faults import MANIFESTS
from tests.mutants.migration_faults import MIGRATION
from tests.mutants.model_faults import MODEL
from tests.mutants.moving_faults import MOVING
from tests.mutants.mutant import Mutant
from tests.mutants.outer_faults import OUTER
from tests.mutants.paper_faults import PAPERS
from tests.mutants.placement_faults import PLACEMENT
from tests.mutants.push_faults import PUSHES
from tests.mutants.runtime_faults import RUNTIME
from tests.mutants.statistics_faults import STATISTICS
from tests.mutants.store_faults import STORE
from tests.mutants.terminal_faults import TERMINAL

MUTANTS: tuple[Mutant, ...] = (
    *CORE,
    *MOVING,
    *PLACEMENT,
    *RUNTIME,
    *LEARN,
    *PAPERS,
    *ACCESS,
    *STORE,
    *MODEL,
    *CHECKPOINTS,
    *OUTER,
    *PUSHES,
    *STATISTICS,
    *DEVICES,
    *DEVICE_MODELS,
    *MIGRATION,
    *TERMINAL,
    *MANIFESTS,
    *CLUSTER,
)
