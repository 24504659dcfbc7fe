"""`polyrhythm manifest`: writes the file with which a launcher runs a job. It has the options of
`polyrhythm train`."""

import os
import stat
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from polyrhythm import __version__
from polyrhythm.api.options import Group, Option
from polyrhythm.api.saying import say
from polyrhythm.api.training import train as run_train
from polyrhythm.api.values import one_of
from polyrhythm.cli.config import given_of
from polyrhythm.cli.keywords import flags_from
from polyrhythm.cli.train import Config
from polyrhythm.errors import UsageError
from polyrhythm.manifests.compose import NAME as COMPOSE
from polyrhythm.manifests.compose import compose
from polyrhythm.manifests.kubernetes import NAME as KUBERNETES
from polyrhythm.manifests.kubernetes import kubernetes
from polyrhythm.manifests.slurm import NAME as SLURM
from polyrhythm.manifests.slurm import slurm
from polyrhythm.manifests.systemd import JOB, ROLES, systemd
from polyrhythm.manifests.systemd import NAME as SYSTEMD

LAUNCHERS = {KUBERNETES: kubernetes, SLURM: slurm, SYSTEMD: systemd, COMPOSE: compose}
"""The function that writes the manifest of each launcher. The last argument is --image, or --role
for systemd."""


@flags_from(run_train)
def manifest(
    ctx: typer.Context,
    launcher: Annotated[
        str, typer.Argument(metavar="LAUNCHER", help=f"One of: {', '.join(LAUNCHERS)}.")
    ],
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="A FILE.py with main(worker), or a job's name.")
    ],
    *,
    image: Annotated[
        str,
        Option(
            "The image of the containers. The Dockerfile of polyrhythm's repository makes one.",
            metavar="IMAGE",
            group=Group.PROCESSES,
            common=True,
        ),
    ] = f"polyrhythm:{__version__}",
    role: Annotated[
        str,
        Option(
            "systemd: the role of the unit. job: the whole job. worker, server: a process that"
            " joins the job, from this or another machine.",
            metavar="job|worker|server",
            group=Group.PROCESSES,
            common=True,
            check=one_of(ROLES),
        ),
    ] = JOB,
    config: Config = None,
    **options: Any,
) -> None:
    """Write a job for Kubernetes or another launcher.

    The file goes to standard output.

    The options are those of 'polyrhythm train', whose help describes them. Those that make no sense
    under a launcher are refused. --resources-per-worker and --resources-per-server say what each
    process asks for, as with --engine ray. The settings may also come from the environment and from
    polyrhythm.toml.

    Examples:

      polyrhythm manifest kubernetes mine.py --workers 8 --servers 2 --epochs 5 > mine.yaml

      polyrhythm manifest slurm mine.py --workers 8 --checkpoint-every 60s > mine.sbatch

      polyrhythm manifest compose mine.py --workers 4 --epochs 5 > compose.yaml

      polyrhythm manifest systemd mine.py --checkpoint-every 60s > polyrhythm-mine.service
    """
    one_of(tuple(LAUNCHERS))("LAUNCHER", launcher)
    one_of(ROLES)("--role", role)
    for flag, launchers in (("image", (KUBERNETES, COMPOSE)), ("role", (SYSTEMD,))):
        if given_of(ctx, {flag: None}) and launcher not in launchers:
            raise UsageError(f"--{flag} is for {' and '.join(launchers)}: leave it out")
    how = role if launcher == SYSTEMD else image
    plan, text = LAUNCHERS[launcher](job, given_of(ctx, options), how)
    for hint in plan.hints:
        say(f"polyrhythm: {hint}")
    sys.stdout.write(text)
    sys.stdout.flush()
    if plan.secret.text in text:
        _warn_of_readers()


def _warn_of_readers() -> None:
    """Standard output goes to a file that contains the secret. Warn the user if other users can
    read this file."""
    try:
        status = os.fstat(sys.stdout.fileno())
        readable = stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_IRGRP | stat.S_IROTH)
        path = Path("/proc/self/fd", str(sys.stdout.fileno())).resolve()
    except (OSError, ValueError):
        return  # standard output is no file
    if readable:
        say(
            f"polyrhythm: {path.name} contains the secret of the job, and other users can read it: run"
            f" chmod 600 {path.name}"
        )
