"""The scripts of `examples/` that are compared with plain torch, each with its measure and its
tolerance."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import readme

FOLDER = readme.ROOT / "examples"
POLICIES = ("bsp", "asp", "ssp:4", "psp", "fsp")
WORKERS = 3
SERVERS = 2


@dataclass(frozen=True)
class Example:
    file: str
    measure: str
    """The name under which the script reports how good its model is."""
    tolerance: float
    """How much worse than plain torch a run may be."""
    lower: bool = False
    """Whether a lower measure is better."""
    flags: tuple[str, ...] = ()
    """Flags of `polyrhythm train` that the script needs under every policy."""
    policy_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each policy that needs them, further flags of `polyrhythm train`."""

    @property
    def path(self) -> Path:
        return FOLDER / self.file

    @property
    def name(self) -> str:
        return self.path.stem

    def words(self, policy: str) -> tuple[str, ...]:
        """The flags of `polyrhythm train` with which this script is run under this policy."""
        return ("--sync", policy, *self.flags, *self.policy_flags.get(policy, ()))

    def deficit(self, value: float, plain: float) -> float:
        """How much worse a run is than plain torch; negative if it is better."""
        return value - plain if self.lower else plain - value


EXAMPLES = {
    each.name: each
    for each in (
        Example("tabular.py", "explained", 0.02),
        Example("batchnorm_cnn.py", "accuracy", 0.03),
        Example("lenet_like.py", "accuracy", 0.05),
        Example("loader.py", "accuracy", 0.05),
        Example("transformer.py", "accuracy", 0.05),
        Example("gan.py", "distance", 0.05, lower=True),
        Example("lbfgs.py", "accuracy", 0.03, flags=("--kind", "local")),
        Example("sparse_embeddings.py", "explained", 0.05),
        Example("contrastive.py", "accuracy", 0.05),
        Example("notebook.ipynb", "accuracy", 0.03),
    )
}
"""The tolerances were chosen before results of the policies were known. `docs/examples.md` names the
scripts that were changed afterwards."""
