"""Writes the model of a checkpoint to a file, a few slices at a time."""

from collections.abc import Callable
from pathlib import Path

import torch

from polyrhythm.core.model import choose, file_of
from polyrhythm.store import checkpoints
from polyrhythm.store.model_file import ModelFile
from polyrhythm.store.model_files import spec_of
from polyrhythm.store.objects import open_store
from polyrhythm.tensors.dtypes import DTYPES

_AT_ONCE = 16


def export_checkpoint(
    url: str,
    number: int | None,
    path: Path,
    tell: Callable[[str], None],
    model: str | None = None,
) -> None:
    """Write the parameters and buffers of checkpoint `number` in the store `url` to the file
    `path`. If `number` is None, take the newest checkpoint that is whole; `tell` then gets one line
    for each newer one that is damaged or incomplete. `model`: which model, if the job has several.
    Every byte that is read is verified."""
    store = open_store(url)
    checkpoint = (
        checkpoints.newest(store, tell) if number is None else checkpoints.load(store, number)
    )
    layout, manifest = checkpoint.layout, checkpoint.manifest
    about = {"job": manifest.job.name, "rounds": str(manifest.round)}
    spec = manifest.model
    choose(model, [file_of(part.name) for part in spec.parts])
    file = ModelFile(path, spec if model is None else spec_of(spec, model), layout, about)
    try:
        for first in range(0, len(layout.slices), _AT_ONCE):
            some = layout.slices[first : first + _AT_ONCE]
            for slice_, tensors in checkpoints.read_slices(store, checkpoint, some).items():
                dtype = DTYPES[layout.spaces[layout.slices[slice_].space].dtype]
                flat = tensors[checkpoints.PARAMETERS].to(dtype).contiguous().reshape(-1)
                file.write(slice_, flat.view(torch.uint8).numpy().data)
        file.commit()
    finally:
        file.discard()  # this removes an unfinished file, and does nothing after `commit`
