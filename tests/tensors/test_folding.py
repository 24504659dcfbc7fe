"""Which thread folds, how many torch threads it uses, and when a server has adder threads."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.runtime.server.adding import OnArrivalAdding, RoundsAdding, needs_adders

CORES = 2
SMALL, MIDDLE, LARGE = 1000, 4 * 2**20, 9 * 2**20


class Stage:
    """The folding of a server whose slices have `nbytes` bytes, without the rest of the server.
    `polls`: the polling thread starts the fold."""

    def __init__(
        self, nbytes: int, *, rounds: bool = True, polls: bool = True, cores: int = CORES
    ) -> None:
        self.folded: list[tuple[threading.Thread, int]] = []
        self._done = threading.Event()
        store = SimpleNamespace(primary=SimpleNamespace(nbytes=nbytes), fold=self._fold)
        driver = SimpleNamespace(post=lambda name, event: self._done.set())
        adding = RoundsAdding if rounds else OnArrivalAdding
        self.folding = adding(
            "s0",
            lambda: store,
            driver,
            pause_s=0.0,
            polls=lambda: polls,
            cores=cores,
        )
        self.folding.make_adders(store)

    def _fold(
        self, round_: int, slot: int, fill: int, share: float, rows: tuple[object, ...]
    ) -> float:
        self.folded.append((threading.current_thread(), torch.get_num_threads()))
        return 1.0

    def fold(self) -> tuple[bool, int]:
        """Fold once. Return whether the calling thread did it, and the number of torch threads that
        were used."""
        self.folding.start(fx.StartFold(1, 0, 1))
        assert self._done.wait(10)
        (thread, threads) = self.folded[-1]
        return thread is threading.current_thread(), threads


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def make(nbytes: int, **flags: int) -> Stage:
        stages.append(Stage(nbytes, **flags))
        return stages[-1]

    yield make
    for one in stages:
        one.folding.close()
    torch.set_num_threads(before)


def test_a_small_model_is_folded_by_the_calling_thread(stage: Callable[..., Stage]) -> None:
    assert stage(SMALL).fold() == (True, 1)
    assert stage(SMALL, polls=False).fold() == (True, 1)


def test_the_polling_thread_folds_with_all_cores_for_a_while(stage: Callable[..., Stage]) -> None:
    assert stage(MIDDLE).fold() == (True, CORES)
    assert torch.get_num_threads() == 1


def test_threads_that_do_not_poll_hand_the_fold_over(stage: Callable[..., Stage]) -> None:
    """Each thread that folds in parallel keeps its own pool of torch threads. If the thread of
    every link folded, there would be too many pools."""
    assert stage(MIDDLE, polls=False).fold() == (False, CORES)


def test_a_large_model_is_folded_by_a_thread_of_its_own(stage: Callable[..., Stage]) -> None:
    assert stage(LARGE).fold() == (False, CORES)


@pytest.mark.parametrize(
    ("nbytes", "cores", "adders"),
    [
        (2**20, 1, False),
        (4 * 2**20, 2, False),
        (9 * 2**20, 2, True),
        (2**20, 16, False),
        (2 * 2**20, 3, False),
        (2 * 2**20 + 1, 3, True),
        (4 * 2**20, 16, True),
    ],
)
def test_adders_are_for_large_models_or_spare_cores(nbytes: int, cores: int, adders: bool) -> None:
    assert needs_adders(nbytes, cores) is adders


@pytest.mark.parametrize(("cores", "adders"), [(1, 1), (4, 4), (16, 8)])
def test_there_are_as_many_adders_as_cores_but_not_too_many(
    stage: Callable[..., Stage], cores: int, adders: int
) -> None:
    before = {thread for thread in threading.enumerate() if thread.name.startswith("adder-")}
    stage(LARGE, cores=cores)
    now = {thread for thread in threading.enumerate() if thread.name.startswith("adder-")}
    assert len(now - before) == adders + 1, "and the one that folds"
