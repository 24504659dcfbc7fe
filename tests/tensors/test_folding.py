"""Which thread folds, how many torch threads it uses, and when a server has adder threads."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core.server.threads import adders_for, threads_for
from polyrhythm.runtime.server.adding import OnArrivalAdding, RoundsAdding
from tests.commands.start import Process, start_script

CORES = 2
SMALL, MIDDLE, LARGE = 1000, 4 * 2**20, 9 * 2**20


class Stage:
    """The folding of a server whose slices have `nbytes` bytes, without the rest of the server.
    `polls`: the polling thread starts the fold."""

    def __init__(
        self,
        nbytes: int,
        *,
        rounds: bool = True,
        polls: bool = True,
        cores: int = CORES,
        limit: int = 64,
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
            limit=limit,
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


def test_a_fold_uses_no_more_threads_than_the_limit(stage: Callable[..., Stage]) -> None:
    assert stage(LARGE, limit=1).fold() == (False, 1)


MB = 2**20


@pytest.mark.parametrize(
    ("nbytes", "cores", "limit", "threads"),
    [
        (0, 16, 16, 1),
        (400_000, 16, 16, 1),
        (2 * MB - 1, 16, 16, 1),
        (2 * MB, 16, 16, 2),
        (4 * MB, 16, 16, 4),
        (102 * MB, 16, 16, 8),
        (102 * MB, 2, 16, 2),
        (102 * MB, 16, 1, 1),
        (102 * MB, 16, 3, 3),
    ],
)
def test_threads_are_added_while_each_has_enough_bytes(
    nbytes: int, cores: int, limit: int, threads: int
) -> None:
    assert threads_for(nbytes, cores, limit) == threads


@pytest.mark.parametrize(
    ("nbytes", "cores", "limit", "adders"),
    [
        (2**20, 1, 1, 0),
        (4 * 2**20, 2, 2, 0),
        (9 * 2**20, 2, 2, 2),
        (2**20, 16, 16, 0),
        (2 * 2**20, 3, 3, 0),
        (2 * 2**20 + 1, 3, 3, 3),
        (4 * 2**20, 16, 16, 8),
        (4 * 2**20, 16, 1, 1),
    ],
)
def test_adders_are_for_large_models_or_spare_cores(
    nbytes: int, cores: int, limit: int, adders: int
) -> None:
    assert adders_for(nbytes, cores, limit) == adders


@pytest.mark.parametrize(("cores", "adders"), [(1, 1), (4, 4), (16, 8)])
def test_there_are_as_many_adders_as_cores_but_not_too_many(
    stage: Callable[..., Stage], cores: int, adders: int
) -> None:
    before = {thread for thread in threading.enumerate() if thread.name.startswith("adder-")}
    stage(LARGE, cores=cores)
    now = {thread for thread in threading.enumerate() if thread.name.startswith("adder-")}
    assert len(now - before) == adders + 1, "and the one that folds"


PROGRAM = """
import json, sys
from unittest import mock
import torch
import polyrhythm as pr
from polyrhythm.engines.inline import run_inline
from polyrhythm.runtime.server import node
from polyrhythm.tensors.updaters import Optimizer
from polyrhythm.wire.messages import JobSpec

size, wanted, syncs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
seen, fold = set(), Optimizer.fold

def main(worker: pr.Worker) -> None:
    model = torch.nn.Linear(size, 1)
    optimizer = worker.attach(model, torch.optim.AdamW(model.parameters()))
    for _ in range(3):
        model(torch.ones(1, size)).sum().backward()
        optimizer.step(points=1)

def folding(self, *parts):
    seen.add(torch.get_num_threads())
    return fold(self, *parts)

if wanted:
    torch.set_num_threads(wanted)
for sync in syncs:
    seen.clear()
    job = JobSpec(job="threads", servers=1, workers=1, rounds=3, sync=sync)
    with (
        mock.patch.object(Optimizer, "fold", folding),
        mock.patch.object(node, "usable_cores", lambda: 16),
    ):
        run_inline(job, main, timeout_s=120)
    print(json.dumps(sorted(seen)))
"""


@pytest.mark.parametrize(
    ("nbytes", "torch_threads", "omp", "syncs"),
    [
        pytest.param(400_000, 0, "", ["asp"], id="few bytes"),
        pytest.param(4 * MB, 1, "", ["asp"], id="torch.set_num_threads"),
        pytest.param(4 * MB, 0, "1", ["asp", "bsp"], id="OMP_NUM_THREADS"),
    ],
)
def test_a_server_uses_the_threads_that_pay_and_are_allowed(
    tmp_path: Path, nbytes: int, torch_threads: int, omp: str, syncs: list[str]
) -> None:
    """The process believes that it has 16 cores. OpenMP reads its variable when torch is loaded, so
    the process with this variable is executed."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = [str(nbytes // 4), str(torch_threads), *syncs]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    process: Process
    if omp:
        command = [sys.executable, str(program), *arguments]
        process = subprocess.Popen(command, env={**env, "OMP_NUM_THREADS": omp}, text=True, **pipes)
    else:
        process = start_script(program, *arguments, cwd=tmp_path, env=env, **pipes)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert out is not None and [json.loads(line) for line in out.splitlines()] == [[1]] * len(syncs)
