"""The file of a model contains every tensor of the state_dict under its own name, and plain torch
and safetensors load it. The file gets its name only when it is complete."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from polyrhythm.core.placement.slices import Layout, lay_out
from polyrhythm.errors import StoreError
from polyrhythm.learn.models import describe
from polyrhythm.store import model_file
from polyrhythm.store.model_file import ModelFile
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages import ModelSpec


class Tied(nn.Module):
    """A model with an embedding whose weight is also that of the last layer, and with a buffer that
    is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scratch", torch.ones(3), persistent=False)
        self.register_buffer("steps", torch.tensor(7))


def mixed() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2).bfloat16(), nn.Linear(2, 2).double())
    model.register_buffer("mask", torch.tensor([True, False, True]))
    model.register_buffer("empty", torch.empty(0, 4))
    return model


def channels_last() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


class TiedConvolutions(nn.Module):
    """Two convolutions with one weight, whose elements are not in the order of its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
        self.second.weight = self.first.weight
        self.to(memory_format=torch.channels_last)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20))
    model[0].requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "mixed": mixed,
    "channels_last": channels_last,
    "tied channels_last": TiedConvolutions,
    "frozen": frozen,
}


def laid_out(
    model: nn.Module, slice_nbytes: int = 256
) -> tuple[ModelSpec, Layout, list[memoryview]]:
    """Return the model's spec, its layout for three servers, and the bytes of each slice."""
    trained = [p for p in model.parameters() if p.requires_grad]
    spec, tensors = describe(model, torch.optim.SGD(trained, lr=0.1), "gradient")
    layout = lay_out(spec, 3, slice_nbytes)
    flat = FlatModel(layout, tensors, "same")
    data = [flat.seed(s).view(torch.uint8).numpy().data for s in layout.slices]
    return spec, layout, data


@pytest.mark.parametrize("name", MODELS)
def test_a_fresh_model_loads_the_file_strictly_and_is_equal(tmp_path: Path, name: str) -> None:
    torch.manual_seed(1)
    model = MODELS[name]()
    spec, layout, data = laid_out(model)
    assert len(layout.slices) > 2
    file = ModelFile(tmp_path / "model.safetensors", spec, layout, {"rounds": "3"})
    for slice_ in reversed(range(len(data))):
        file.write(slice_, data[slice_])
    file.commit()
    saved = load_file(tmp_path / "model.safetensors")
    expected = model.state_dict()
    assert saved.keys() == expected.keys()
    torch.manual_seed(2)
    fresh = MODELS[name]()
    fresh.load_state_dict(saved, strict=True)
    for key, value in fresh.state_dict().items():
        assert torch.equal(value, expected[key]) and value.dtype == expected[key].dtype, key
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").stat().st_size == file.nbytes


def test_a_tied_weight_that_is_copied_in_pieces_is_equal_under_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "_CHUNK_NBYTES", 100)
    model = Tied()
    spec, layout, data = laid_out(model)
    file = ModelFile(tmp_path / "model.safetensors", spec, layout)
    for slice_, piece in enumerate(data):
        file.write(slice_, piece)
    file.commit()
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.equal(saved["embedding.weight"], model.embedding.weight)
    assert torch.equal(saved["head.weight"], model.embedding.weight)


def test_the_former_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")
    spec, layout, data = laid_out(nn.Linear(100, 10))
    file = ModelFile(path, spec, layout)
    for slice_, piece in enumerate(data):
        file.write(slice_, piece)
        assert path.read_bytes() == b"before"
    file.commit()
    assert len(load_file(path)) == 2


def test_a_discarded_file_leaves_nothing(tmp_path: Path) -> None:
    spec, layout, data = laid_out(nn.Linear(100, 10))
    file = ModelFile(tmp_path / "model.safetensors", spec, layout)
    file.write(0, data[0])
    file.discard()
    assert not list(tmp_path.iterdir())


def test_a_deleted_folder_is_made_again(tmp_path: Path) -> None:
    spec, layout, data = laid_out(nn.Linear(100, 10))
    file = ModelFile(tmp_path / "gone" / "model.safetensors", spec, layout)
    for slice_, piece in enumerate(data):
        file.write(slice_, piece)
    file.commit()
    assert load_file(tmp_path / "gone" / "model.safetensors")


def test_a_folder_that_is_deleted_while_the_file_is_written_gives_one_line(tmp_path: Path) -> None:
    spec, layout, data = laid_out(nn.Linear(100, 10))
    path = tmp_path / "run" / "model.safetensors"
    file = ModelFile(path, spec, layout)
    for slice_, piece in enumerate(data):
        file.write(slice_, piece)
    (tmp_path / "run" / "model.safetensors.part").unlink()
    (tmp_path / "run").rmdir()
    with pytest.raises(StoreError, match=f"cannot write {path}: No such file or directory"):
        file.commit()


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    spec, layout, _ = laid_out(nn.Linear(100, 10))
    with pytest.raises(StoreError, match="No space left on device"):
        ModelFile(tmp_path / "model.safetensors", spec, layout)
    assert not list(tmp_path.iterdir())
