"""Flags that several commands share, so that their help texts are the same."""

from pathlib import Path
from typing import Annotated

import typer

Connect = Annotated[
    str, typer.Option(help="HOST:PORT of the job, as 'polyrhythm train' prints it at its start.")
]
JobId = Annotated[
    str,
    typer.Option("--job", help="Join only the job with this id, which is in the run's job.json."),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        help="A copy of the file 'secret' of the run's folder. Not needed for a job of your own on"
        " this machine. The variable POLYRHYTHM_SECRET may contain its text instead.",
    ),
]
LinkFromOutside = Annotated[
    str, typer.Option(help="Links: auto (shared memory where possible), or tcp.")
]
Digest = Annotated[str, typer.Option(help="Digest of frames: auto, xxh3, sha1, blake2b, none.")]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads that torch uses in a worker; default: its share of the usable cores."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(help="Make a checkpoint regularly: a time such as 60s, or 100rounds."),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Where checkpoints are kept: a folder, s3://BUCKET/PATH, gs://BUCKET/PATH or"
        " az://CONTAINER/PATH; default: the run's folder.",
    ),
]
