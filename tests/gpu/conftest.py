"""Tests of models on a device. Each test runs twice: with a simulated device in host memory, which
makes every copy as late as is allowed (`DeferredCopies`), and on a GPU (marked `gpu`, skipped
without a GPU)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from polyrhythm.tensors.copies import SWITCH, Copies, DeferredCopies


def has_gpu() -> bool:
    """Count the GPUs, if possible without initialising CUDA, because the commands of the tests are
    forked processes."""
    return torch.backends.cuda.is_built() and torch.cuda.device_count() > 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if has_gpu():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@dataclass(frozen=True)
class Place:
    """The device of the models of a test. `device`: its name in torch."""

    device: str
    made: list[Copies] = field(default_factory=list)

    def copies(self, *, pins: bool = True) -> Copies:
        """`pins`: whether memory that exists already can be pinned."""
        self.made.append(self._copies(pins=pins))
        return self.made[-1]

    def _copies(self, *, pins: bool) -> Copies:
        if self.device == "cpu":
            return DeferredCopies(pins=pins)
        from polyrhythm.tensors.copies import CudaCopies

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
