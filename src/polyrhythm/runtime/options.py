"""How a node is run; what the job is stands in its JobSpec."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """`check`: machines assert their invariants after every event. `trace_dir`: record traces.
    `fold_pause_s`: staging, a fold takes so much longer."""

    digest: str = "auto"
    link: str = "auto"
    check: bool = False
    trace_dir: Path | None = None
    fold_pause_s: float = 0.0
