"""How a node is run; what the job is stands in its JobSpec."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.core.effects import Note
from polyrhythm.wire.proof import Secret

Report = Callable[[Note], None]


def report_nothing(note: Note) -> None:
    """Nobody asked for this node's reports."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """`check`: machines assert their invariants after every event. `trace_dir`: record traces.
    `fold_pause_s`: staging, a fold takes so much longer. `report` is handed what a node that keeps no
    journal has to say, on any thread. `secret`: the job's; without it there are no TCP links."""

    digest: str = "auto"
    link: str = "auto"
    check: bool = False
    trace_dir: Path | None = None
    fold_pause_s: float = 0.0
    report: Report = report_nothing
    secret: Secret | None = None
