"""The files of all models of a job, written together. A job with one model has one file."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from polyrhythm.core.model import SUFFIX, files_of
from polyrhythm.core.placement.slices import Layout
from polyrhythm.errors import StoreError
from polyrhythm.store.model_file import ModelFile
from polyrhythm.store.objects import Store
from polyrhythm.wire.messages import ModelSpec, StateName


def spec_of(spec: ModelSpec, name: str) -> ModelSpec:
    """The spec that saves only this one of several models, under the names of the model's own
    `state_dict`. The other tensors stay in the spec, because slices are numbered for all models."""
    prefix = f"{name}."
    state = tuple(
        StateName(entry.name.removeprefix(prefix), entry.tensor)
        for entry in spec.saved
        if entry.name.startswith(prefix)
    )
    return replace(spec, state=state)


class ModelFiles:
    """The files that are being written. Not safe for several threads."""

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        layout: Layout,
        about: Mapping[str, str] | None = None,
        store: Store | None = None,
    ) -> None:
        """`path`: the file of a job with one model. With several models, each has a file whose name
        has the model's name too. `store`: write objects of these names to this store instead."""
        names = [part.name for part in spec.parts]
        best = path.name == files_of((), best=True)
        shown = path.with_name(files_of(names, best=best)) if names else path
        self.path = str(shown) if store is None else store.url_of(shown.name)
        """With several models, a text that stands for all their files."""
        self._files: list[ModelFile] = []
        try:
            if not names:
                self._files.append(ModelFile(path, spec, layout, about, store))
            for name in names:
                file = path.with_name(f"{path.name.removesuffix(SUFFIX)}-{name}{SUFFIX}")
                known = {**(about or {}), "model": name}
                self._files.append(ModelFile(file, spec_of(spec, name), layout, known, store))
        except StoreError:
            self.discard()
            raise

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self._files)

    def write(self, slice_: int, data: memoryview) -> None:
        for file in self._files:
            file.write(slice_, data)

    def commit(self) -> None:
        for file in self._files:
            file.commit()

    def discard(self) -> None:
        for file in self._files:
            with suppress(OSError):
                file.discard()
