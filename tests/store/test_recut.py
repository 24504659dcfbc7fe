"""The tensors of a slice, put together from a checkpoint that divides the model into other slices."""

import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.store.checkpoints import Tensors, assembled, overlapping

THERE = [Slice(0, 0, 0, 0, 6), Slice(1, 0, 0, 6, 4), Slice(2, 1, 0, 0, 10)]


def read(*slices: int, **more: dict[int, torch.Tensor]) -> dict[int, Tensors]:
    found: dict[int, Tensors] = {}
    for number in slices:
        known = THERE[number]
        first = float(known.offset)
        found[number] = {"parameters": torch.arange(first, first + known.length)}
    for name, tensors in more.items():
        for number, tensor in tensors.items():
            found[number][name] = tensor
    return found


def test_a_slice_takes_its_elements_from_all_slices_that_cover_it() -> None:
    wanted = Slice(0, 0, 0, 4, 5)
    sources = overlapping(THERE, wanted)
    assert [source.id for source in sources] == [0, 1]
    found = assembled(wanted, sources, read(0, 1))
    assert found["parameters"].tolist() == [4.0, 5.0, 6.0, 7.0, 8.0]


def test_a_count_of_steps_is_the_largest_one_of_the_sources() -> None:
    """Slices that have made unequal numbers of steps, as under asp: Adam's bias correction must not
    begin again."""
    counts = {0: torch.tensor(3.0), 1: torch.tensor(7.0)}
    wanted = Slice(0, 0, 0, 4, 5)
    found = assembled(wanted, overlapping(THERE, wanted), read(0, 1, step=counts))
    assert found["step"].item() == 7.0


def test_a_source_without_a_step_gives_zeros() -> None:
    wanted = Slice(0, 0, 0, 4, 5)
    moments = {1: torch.full((4,), 2.0)}
    found = assembled(wanted, overlapping(THERE, wanted), read(0, 1, exp_avg=moments))
    assert found["exp_avg"].tolist() == [0.0, 0.0, 2.0, 2.0, 2.0]
