"""Flags that several commands share, so that their help texts are the same."""

from pathlib import Path
from typing import Annotated

import typer

from polyrhythm.api.options import RESUMED, WORKERS_HERE, Group, Option
from polyrhythm.api.values import at_least, one_of, some_devices
from polyrhythm.core.model import RUNS_FOLDER
from polyrhythm.runtime.choices import DIGESTS

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
        help="A copy of the file 'secret' of the run's folder. Not needed for your own jobs on"
        " this machine. The variable POLYRHYTHM_SECRET may contain its text instead.",
    ),
]
Wait = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Wait this long, such as 60 (seconds) or 10min, until the job listens at its address.",
    ),
]
LinkFromOutside = Annotated[
    str,
    typer.Option(help="How processes are linked: auto (shared memory where possible), or tcp."),
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
RunOrAddress = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's name or folder, or HOST:PORT of the job."),
]

# -- options of `train` that other commands have too --------------------------------------------

RUNS = Path(RUNS_FOLDER)
RunsDir = Annotated[
    Path,
    Option(
        "The folder in which every run has its own folder.",
        metavar="FOLDER",
        group=Group.RESULTS,
        commands=RESUMED,
    ),
]
Quiet = Annotated[
    bool,
    Option(
        "Show no progress on stderr.",
        "--quiet",
        group=Group.RESULTS,
        common=True,
        commands=RESUMED,
    ),
]
Debug = Annotated[
    bool, Option("Show tracebacks.", "--debug", group=Group.RESULTS, commands=RESUMED)
]
Digest = Annotated[
    str,
    Option(
        "The digest (checksum) of frames: auto, xxh3, sha1, blake2b or none.",
        metavar="DIGEST",
        group=Group.NETWORK,
        check=one_of(DIGESTS),
        commands=RESUMED,
    ),
]
Threads = Annotated[
    int | None,
    Option(
        "Threads that torch uses in a worker. Default: its share of the usable cores, and no more"
        " than OMP_NUM_THREADS.",
        metavar="N",
        group=Group.PROCESSES,
        check=at_least(1),
        commands=WORKERS_HERE,
    ),
]
Devices = Annotated[
    str,
    Option(
        "Devices of the workers: auto, cpu, cuda, or a list such as cuda:0,cuda:1. Workers that join"
        " later choose their own. auto: the CUDA devices in turn, or cpu if there is none. A"
        " list is repeated as needed: cuda:0,cpu,cpu,cpu,cpu gives five workers one GPU and four CPUs."
        " worker.device is the device of a worker.",
        metavar="LIST",
        group=Group.PROCESSES,
        common=True,
        check=some_devices,
        commands=WORKERS_HERE,
    ),
]

# -- options of the commands that start a job, and not of the functions ------------------------

JsonAtEnd = Annotated[
    bool,
    Option(
        "Print one JSON object on stdout at the end.", "--json", group=Group.RESULTS, common=True
    ),
]
Verbose = Annotated[
    bool,
    Option(
        "End with a longer summary: all workers, how time was spent, how to load the model.",
        "--verbose",
        group=Group.RESULTS,
        common=True,
    ),
]
