"""A saved model is copied into a model that has the same tensors. Otherwise the error names the
first difference."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from polyrhythm.core.placement.slices import lay_out
from polyrhythm.errors import DamagedCheckpoint, StoreError, UsageError
from polyrhythm.store.model_file import export_checkpoint, load_into
from polyrhythm.store.model_open import check_readable
from polyrhythm.store.objects import open_store
from tests.store.samples import MODEL, spaces, write_checkpoint


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def saved(tmp_path: Path, **changes: torch.Tensor | None) -> Path:
    """Save `model()` to a file, with these tensors replaced or, for the value None, left out."""
    state = {**model().state_dict()}
    for name, tensor in changes.items():
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor
    path = tmp_path / "model.safetensors"
    save_file(state, path)
    return path


def test_a_file_of_the_same_model_is_copied_in_place(tmp_path: Path) -> None:
    path, fresh = saved(tmp_path), model()
    weight = fresh.get_parameter("0.weight")
    load_into(fresh, path)
    assert fresh.get_parameter("0.weight") is weight
    for name, tensor in load_file(path).items():
        assert torch.equal(fresh.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"0.bias": None}, "it has no '0.bias'"),
        (
            {"0.weight": torch.ones(2, 4)},
            "'0.weight' has shape [2, 4], but shape [2, 3] in the model",
        ),
        ({"0.bias": torch.ones(2).double()}, "'0.bias' is float64, but float32 in the model"),
        ({"2.bias": torch.ones(2)}, "the model has no '2.bias'"),
        ({"a": torch.ones(2), "b": torch.ones(2)}, "the model has no 'a' and 1 more"),
    ],
)
def test_a_file_of_another_model_changes_nothing_and_names_the_difference(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], fault: str
) -> None:
    path, fresh = saved(tmp_path, **changes), model()
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    with pytest.raises(UsageError) as raised:
        load_into(fresh, path)
    assert str(raised.value) == f"{path} is not of this model: {fault}"
    assert all(torch.equal(before[name], t) for name, t in fresh.state_dict().items())


def test_a_file_that_is_missing_or_not_whole_is_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path)
    check_readable(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="is not a whole safetensors file"):
        check_readable(path)
    path.write_bytes(b"something else")
    with pytest.raises(StoreError, match="is not a whole safetensors file"):
        check_readable(path)
    with pytest.raises(StoreError, match="cannot read .*: No such file or directory"):
        check_readable(tmp_path / "none")
    with pytest.raises(StoreError, match="cannot read .*: Is a directory"):
        check_readable(tmp_path)


def test_the_model_of_a_checkpoint_is_exported(tmp_path: Path) -> None:
    write_checkpoint(open_store(str(tmp_path)), 1, seed=1)
    write_checkpoint(open_store(str(tmp_path)), 2, seed=2)
    for number, seed in ((None, 2), (1, 1)):
        out = tmp_path / "out.safetensors"
        export_checkpoint(str(tmp_path), number, out, lambda line: pytest.fail(line))
        state, layout = load_file(out), lay_out(MODEL, 3, 1024)
        flat = spaces(layout, seed)["parameters"]
        assert state.keys() == {tensor.name for tensor in MODEL.tensors}
        for place in layout.places:
            expected = flat[place.space][place.offset : place.offset + place.length]
            found = state[place.tensor.name]
            assert tuple(found.shape) == place.tensor.shape
            assert torch.equal(found.reshape(-1), expected)


def test_a_damaged_checkpoint_is_never_exported(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write_checkpoint(store, 1, seed=1)
    checkpoint = write_checkpoint(store, 2, seed=2)
    file = tmp_path / "checkpoints" / "00000002" / checkpoint.manifest.files[0].name
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    out, told = tmp_path / "out.safetensors", list[str]()
    with pytest.raises(DamagedCheckpoint):
        export_checkpoint(str(tmp_path), 2, out, told.append)
    assert not list(tmp_path.glob("out*"))
    export_checkpoint(str(tmp_path), None, out, told.append)
    assert len(told) == 1 and "checkpoint 2 is not used" in told[0]
    assert out.exists()
