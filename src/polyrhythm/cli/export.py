"""`polyrhythm export`: writes the model of a run or of a checkpoint to a file."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from polyrhythm.api import flags
from polyrhythm.api.flags import RUNS, RunsDir
from polyrhythm.api.stores import url_of
from polyrhythm.core.model import MODEL, choose
from polyrhythm.errors import StoreError, UsageError
from polyrhythm.observe.runs import find_run
from polyrhythm.store.model_open import check_readable

_PICKLED = (".pt", ".pth")


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run's name or folder, or the URL of a store with checkpoints."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="The file to write: .safetensors, or .pt and .pth for torch.load."
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Export this checkpoint: its number, or last."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The name of the model to export, if the job has several models."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Export the best model (train --keep-best).")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    runs_dir: RunsDir = RUNS,
    debug: flags.Debug = False,
) -> None:
    """Write the model of a run, or of a checkpoint, to a file.

    Without --checkpoint this is the model with which the run ended. OUT contains parameters and
    buffers under the names of the model's own state_dict.

    Examples:

      polyrhythm export mine mine.safetensors

      polyrhythm export mine mine.pt --best

      polyrhythm export mine critic.safetensors --model critic

      polyrhythm export s3://bucket/mine mine.safetensors --checkpoint last
    """
    if best and checkpoint is not None:
        raise UsageError("--best and --checkpoint exclude each other")
    if out.suffix not in (".safetensors", *_PICKLED):
        raise UsageError(f"{out} must end in .safetensors, .pt or .pth")
    if out.exists() and not force:
        raise UsageError(f"{out} exists already: give another name, or --force")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {out.absolute().parent}")
    if checkpoint is None and "://" in run:
        checkpoint = "last"
    if checkpoint is not None and checkpoint != "last" and not _is_number(checkpoint):
        raise UsageError(f"--checkpoint {checkpoint!r} is not understood: give a number, or last")
    try:
        with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".export-") as folder:
            found = Path(folder) / MODEL
            if checkpoint is None:
                _copy_of_run(find_run(runs_dir, run), found, model, best=best)
            else:
                _of_checkpoint(url_of(run, runs_dir), checkpoint, found, model)
            if out.suffix in _PICKLED:
                found = _pickled(found)
            found.replace(out)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}") from None
    typer.echo(str(out))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _copy_of_run(run_dir: Path, target: Path, name: str | None, *, best: bool) -> None:
    files = [each.name for each in run_dir.iterdir()]
    model = run_dir / choose(name, files, best=best)
    if not model.exists():
        if best:
            raise UsageError(
                f"{run_dir} has no best model: train with --keep-best METRIC, such as accuracy"
            )
        raise UsageError(
            f"{run_dir} has no model: the run has not ended, or lost it; --checkpoint last exports"
            " its last checkpoint, if it has one"
        )
    check_readable(model)
    shutil.copyfile(model, target)


def _of_checkpoint(url: str, wanted: str, target: Path, model: str | None) -> None:
    from polyrhythm.store.model_file import export_checkpoint  # imports torch

    number = None if wanted == "last" else int(wanted)
    export_checkpoint(url, number, target, lambda line: typer.echo(line, err=True), model)


def _pickled(model: Path) -> Path:
    """Write the model in the format of torch.load, to a file in the same folder. Returns that
    file."""
    import torch
    from safetensors.torch import load_file

    path = model.with_suffix(".pt")
    # `torch.save` raises an OSError for a full disk only if it gets an open file
    with path.open("wb") as file:
        torch.save(load_file(model), file)
    return path
