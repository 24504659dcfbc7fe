"""The lead's record: the part of a checkpoint that only the lead knows, in addition to the slices.

*All values are those at the moment of the cut: a contribution that is not in the slices of the cut
is not in the record either. The record contains the view epoch and the routing epoch, so that no
incarnation is used again after a resume.*
"""

import msgspec


class RecordedChunk(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of the data set: its range of points, its progress, and the name of the worker that
    held the chunk (empty if no worker did)."""

    first: int
    last: int
    passes: int
    cursor: int
    holder: str = ""


class RecordedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is or was a member. `clock`: how many of its contributions have counted."""

    name: str
    number: int
    clock: int = 0
    points: int = 0


class RecordedMean(msgspec.Struct, frozen=True, array_like=True):
    """A mean loss over this many points."""

    value: float
    points: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """The number of the checkpoint."""
    round: int
    """How many rounds (without rounds: round equivalents, see `RoundEquivalents`) are in the
    parameters."""
    part: float = 0.0
    """Without rounds: the completed fraction of the next round equivalent."""
    view: int = 0
    routing: int = 0
    seed: int = 0
    points: int = 0
    """The number of points in the data set; 0 if no worker had enrolled one."""
    passes: int = 0
    chunks: tuple[RecordedChunk, ...] = ()
    workers: tuple[RecordedWorker, ...] = ()
    best: float | None = None
    """With `--keep-best`: the best value that was reported; None if no value was reported."""
    steps: float = -1.0
    """How many steps the job had made (`core/worker/job_steps.py`); -1 in checkpoints of earlier
    versions."""
    step_workers: int = 0
    """How many workers the job had when it first began. A step of the job is one batch of each of
    them."""
    first: RecordedMean | None = None
    """The objective of the first round, before training; None if it is not known."""

    @property
    def counted(self) -> int:
        """How many points of all workers have counted, since the job first began."""
        visited = sum(each.passes * (each.last - each.first) + each.cursor for each in self.chunks)
        return visited or sum(worker.points for worker in self.workers)
