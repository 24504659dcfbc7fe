"""Flags that several commands have, said in the same words."""

from pathlib import Path
from typing import Annotated

import typer

Connect = Annotated[
    str, typer.Option(help="HOST:PORT of the job, as 'polyrhythm train' says at its start.")
]
JobId = Annotated[
    str, typer.Option("--job", help="Come to this job only: its id, as job.json has it.")
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        help="A copy of the file 'secret' of the run's folder. Not needed for a job of your own on"
        " this machine. $POLYRHYTHM_SECRET may hold its text instead.",
    ),
]
LinkFromOutside = Annotated[
    str, typer.Option(help="Links: auto (shared memory where it can), or tcp.")
]
Digest = Annotated[str, typer.Option(help="Digest of frames: auto, xxh3, sha1, blake2b, none.")]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads of torch in a worker; default: its share of the cores that may be used."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
