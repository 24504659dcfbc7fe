"""Tests of models on a device. Each runs twice: with a device in host memory, whose copies happen as
late as they may (`DeferredCopies`), and on a GPU (marked `gpu`, skipped where there is none)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from polyrhythm.tensors.copies import SWITCH, Copies, DeferredCopies


def has_gpu() -> bool:
    """Count the GPUs without initialising CUDA where that is possible: commands of the tests are
    forks."""
    return torch.backends.cuda.is_built() and torch.cuda.device_count() > 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if has_gpu():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@dataclass(frozen=True)
class Place:
    """Where the models of a test are. `device`: the name that torch knows it by."""

    device: str
    made: list[Copies] = field(default_factory=list)

    def copies(self, *, pins: bool = True) -> Copies:
        """`pins`: whether memory that exists already can be pinned."""
        self.made.append(self._copies(pins=pins))
        return self.made[-1]

    def _copies(self, *, pins: bool) -> Copies:
        if self.device == "cpu":
            return DeferredCopies(pins=pins)
        from polyrhythm.tensors.cuda_copies import CudaCopies

        copies = CudaCopies(torch.device(self.device))
        if not pins:
            copies.pin = lambda memory: False  # type: ignore[method-assign]
        return copies


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "cpu":
        monkeypatch.setenv(SWITCH, "1")
    place = Place(request.param)
    yield place
    for copies in place.made:
        copies.close()


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    torch.set_num_threads(1)
