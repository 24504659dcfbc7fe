"""Options of one node. The settings of the job are in its JobSpec."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.core.devices import CPU
from polyrhythm.core.effects import Note
from polyrhythm.wire.proof import Secret

Report = Callable[[Note], None]


def report_nothing(note: Note) -> None:
    """The default of `report`: ignore the notes of a node."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options of a node.

    - `check`: machines check their invariants after every event.
    - `trace_dir`: the folder of traces; None if no traces are written.
    - `fold_pause_s`: every fold takes this much longer, for experiments.
    - `report`: called, on any thread, with the notes of a node that keeps no journal.
    - `secret`: the job's secret; None if the node has no TCP links.
    - `model_dir`: the folder into which the lead's process writes the model.
    - `code`: this machine's copy of the job's file, if that is elsewhere.
    - `run_dir`: the folder of the run, on the machine that has it.
    - `saving`: called when the lead's process begins to write the model.
    - `deliver`: called with the files of a complete model, and with the place that the journal should
      name. It returns another place if it takes the files there.
    - `contributed`: called when the first contribution of a worker has been acknowledged.
    - `device`: the device on which a worker computes.
    - `share_data`: a worker of a job with private data may send its points to other workers.
    """

    digest: str = "auto"
    link: str = "auto"
    check: bool = False
    trace_dir: Path | None = None
    fold_pause_s: float = 0.0
    report: Report = report_nothing
    secret: Secret | None = None
    model_dir: Path | None = None
    run_dir: str = ""
    code: str = ""
    saving: Callable[[], None] = lambda: None
    deliver: Callable[[Sequence[Path], str], str] = lambda files, place: place
    contributed: Callable[[], None] = lambda: None
    device: str = CPU
    share_data: bool = False
