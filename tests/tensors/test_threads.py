"""Each thread of a process keeps the number of torch threads that it has set for itself."""

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from polyrhythm.tensors.threads import work_with, working_with

Result = TypeVar("Result")


def on_another_thread(work: Callable[[], Result]) -> Result:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_another_thread_may_use_more_cores() -> None:
    """The other thread sets its number of torch threads before this thread has run any parallel
    operation of torch."""

    def lane() -> int:
        work_with(1)
        on_another_thread(lambda: work_with(2))
        return torch.get_num_threads()

    before = torch.get_num_threads()
    try:
        assert on_another_thread(lane) == 1
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_is_restored_after_an_exception() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="within"), working_with(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ValueError("within")
    assert torch.get_num_threads() == before
