"""The flags that only some sync policies use."""

from typing import Annotated

import typer

from polyrhythm.core.kinds import EXAMPLE
from polyrhythm.core.values import parse_size
from polyrhythm.errors import UsageError

Interval = Annotated[
    str,
    typer.Option(
        help="fsp: how long a round lasts: auto (chosen by measuring), binary (chosen by halving), or a"
        " time such as 250ms."
    ),
]
Coordination = Annotated[
    str,
    typer.Option(
        help="fsp: who ends the interval of a round: semi (each worker, by its own timer), or central"
        " (the lead)."
    ),
]
Abandon = Annotated[
    str,
    typer.Option(
        help="fsp: how long a round waits after its interval for micro-batches that are not finished,"
        " such as 50ms. A micro-batch that takes longer is left out, and its points are visited again."
        " off: wait for all micro-batches."
    ),
]
Migrate = Annotated[
    str,
    typer.Option(
        help="Policies with rounds: how chunks of data move from slow workers to fast ones, so that"
        " all points are visited equally often. lease: only the right to visit a chunk moves, and the"
        " fast worker reads the points itself. full: the slow worker sends the points while both train."
        " blocking: as full, but both workers wait until the points have arrived. off: no chunks move."
        " auto: off, except under fsp. Under fsp it is lease if all workers can read the whole data set,"
        " otherwise full (as with --data-private and kind statistics)."
    ),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option(
        help="bsp: the number of points in each round, divided among the workers that are there. So"
        " this number stays the same when workers join and leave. A share that is larger than the"
        " batch size of the loop is visited in several batches."
    ),
]
DataPrivate = Annotated[
    bool,
    typer.Option(
        help="Every worker has a data set of its own: worker.batches gets different points on each"
        " worker, and may get a different number of them. While a worker is gone, passes do not include"
        " its points."
    ),
]
ShareData = Annotated[
    bool,
    typer.Option(
        help="With --data-private: points of the workers that this command starts may be sent to other"
        " workers of the job, so that all points are visited equally often. Without this flag the points"
        " never leave their worker. A worker that joins from elsewhere has its own --share-data."
    ),
]
MigrateMemory = Annotated[
    str,
    typer.Option(
        help="--migrate full and blocking: each worker keeps up to this many bytes, such as 500MB or"
        " 2GiB, of the chunks that it gave away, so that they can come back without being sent. auto: as"
        " many bytes as its first share has."
    ),
]


def memory_of(text: str) -> int | None:
    """The value of --migrate-memory in bytes; None for auto."""
    if text == "auto":
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"--migrate-memory {error}") from None


MostSteps = Annotated[
    int, typer.Option(help="psp: the most steps that a worker makes between two barriers.")
]
ProbePoints = Annotated[
    int, typer.Option(help="fsp: the number of points on which the objective is measured.")
]
AsyncScale = Annotated[
    str,
    typer.Option(
        help="asp and ssp: how the learning rate of each contribution is scaled: members (1/members),"
        " root (1/sqrt(members)), none, or auto: members for SGD, none for Adagrad and"
        " SparseAdam, root for Adam"
        " and the other adaptive optimizers."
    ),
]
AsyncMomentum = Annotated[
    str,
    typer.Option(
        help="asp and ssp: when momentum (and Adam's first moment) decays. round: once per as many"
        " contributions as there are members, as under bsp. contribution: once per contribution;"
        " training then diverges at much lower learning rates."
    ),
]
Outer = Annotated[
    str,
    typer.Option(
        help="Kind local: the optimizer with which servers apply the averaged change of a round, such"
        f" as {EXAMPLE} (DiLoCo) or adam:lr=0.01. Its lr is the learning rate of that step."
        " Both sgd:lr=1 and off are plain averaging."
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        help="Policies with rounds: how a round weighs its contributions: points (by the points that"
        " each contains), or workers (all equally)."
    ),
]
ReadAhead = Annotated[
    bool,
    typer.Option(
        "--read-ahead",
        help="asp: begin the next step before the parameters that contain the last contribution"
        " have come. This hides the exchange, and often breaks training with momentum.",
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="bsp: a repetition of the job computes the same bits, if its code is deterministic."
        " Servers keep the contributions of a round and add them in the order of the workers'"
        " names, workers use one thread, and rounds wait for every worker.",
    ),
]
