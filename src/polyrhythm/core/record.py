"""The lead's record: what a checkpoint needs beside the slices, and only the lead knows.

*Everything in it is as of the cut: a contribution that is not in the slices of the cut is not in the
record either. View and routing epochs are kept so that no incarnation repeats after a resume.*
"""

import msgspec


class RecordedChunk(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of the data set: its points, how far they were visited, and the name of the worker that
    held it (empty if no worker did)."""

    first: int
    last: int
    passes: int
    cursor: int
    holder: str = ""


class RecordedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is or was a member. `clock`: how many of its contributions were counted."""

    name: str
    number: int
    clock: int = 0
    points: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """The number of the checkpoint."""
    round: int
    """How many rounds, or their equivalent, are in the parameters."""
    part: float = 0.0
    """Without rounds: the part of the next equivalent that is done."""
    view: int = 0
    routing: int = 0
    seed: int = 0
    points: int = 0
    """The length of the data set; 0 if no worker had enrolled one."""
    passes: int = 0
    chunks: tuple[RecordedChunk, ...] = ()
    workers: tuple[RecordedWorker, ...] = ()
