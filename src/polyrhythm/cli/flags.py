"""Flags that several commands have, said in the same words."""

from typing import Annotated

import typer

Connect = Annotated[
    str, typer.Option(help="HOST:PORT of the job, as 'polyrhythm train' says at its start.")
]
JobId = Annotated[
    str, typer.Option("--job", help="Come to this job only: its id, as job.json has it.")
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
