"""Flags that several commands share, so that their help texts are the same."""

from pathlib import Path
from typing import Annotated

import typer

from polyrhythm.core.model import RUNS_FOLDER

Connect = Annotated[
    str, typer.Option(help="HOST:PORT of the job, as 'polyrhythm train' prints it at its start.")
]
JobId = Annotated[
    str,
    typer.Option(
        "--job", help="Join only the job with this id. The run's job.json contains the id."
    ),
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
    str,
    typer.Option(help="How processes are linked: auto (shared memory where possible), or tcp."),
]
Digest = Annotated[
    str,
    typer.Option(help="The digest (checksum) of frames: auto, xxh3, sha1, blake2b or none."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads that torch uses in a worker; default: its share of the usable cores, and no"
        " more than OMP_NUM_THREADS."
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        help="Devices of the workers on this machine: auto (the CUDA devices in turn, or cpu if there"
        " is none), cpu, cuda, or a list such as cuda:0,cuda:1. The list is repeated as needed:"
        " cuda:0,cpu,cpu,cpu,cpu gives five workers one GPU and four CPUs. worker.device is the"
        " device of a worker."
    ),
]
DeviceFromOutside = Annotated[
    str,
    typer.Option(
        "--devices",
        help="Device of this worker: auto (a CUDA device, or cpu if there is none), cpu, or cuda:1."
        " If you give a list, a process of torchrun, Slurm or MPI takes the item with its number on"
        " this machine.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="End when a metric that workers report has this value (repeatable): val_loss=0.3,"
        " accuracy=0.95. A loss or error must fall to the value, other metrics must rise to it;"
        " 'f1>=0.9' and 'time<=2' state the direction.",
    ),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        help="How often a checkpoint is made: a time such as 60s, or a number of rounds such as"
        " 100rounds."
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Where checkpoints are kept: a folder, s3://BUCKET/PATH, gs://BUCKET/PATH or"
        " az://CONTAINER/PATH; default: the run's folder.",
    ),
]
RunOrAddress = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's name or folder, or HOST:PORT of the job.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress on stderr.")]
JsonAtEnd = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout at the end.")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        help="End with a longer summary: all workers, how time was spent, how to load the model.",
    ),
]
Check = Annotated[
    bool, typer.Option("--check", help="Check the invariants of all machines after every event.")
]
Trace = Annotated[
    bool, typer.Option("--trace", help="Record every event and effect in the run's folder.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow a --host that other machines can reach.")
]
Port = Annotated[int, typer.Option(help="Port of the first server; 0 for any free port.")]
Host = Annotated[str, typer.Option(help="Address that servers listen on.")]
RUNS = Path(RUNS_FOLDER)
RunsDir = Annotated[Path, typer.Option(help="The folder in which every run has its own folder.")]
NewRunName = Annotated[
    str | None, typer.Option(help="The name of the run, and of its folder in runs/.")
]
Links = Annotated[
    str, typer.Option(help="How processes are linked: auto, tcp, or local (shared memory).")
]
