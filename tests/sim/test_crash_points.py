"""A process crashes after its n-th effect, for every n and every process but the lead's.

The job has 2 workers, 3 servers, 3 rounds and one replica. *Whichever effect is the last one, the
job reaches its goal, and the books balance* (`tests/sim/ledger.py`).
"""

from collections.abc import Callable

import pytest

from polyrhythm.sim.process import Process
from polyrhythm.sim.server.node import ServerProcess
from polyrhythm.sim.worker.node import WorkerProcess
from tests.sim.ledger import Books, bookkeeping, settle
from tests.sim.staged_run import Run

VICTIMS = ["s1", "s2", "worker-0", "worker-1"]
AHEAD = "asp --read-ahead"
SYNCS = ["bsp", "ssp:2", "asp", AHEAD]


def text(sync: str) -> str:
    return f"""
        [job]
        sync = "{sync.partition(" ")[0]}"
        read_ahead = {str(sync == AHEAD).lower()}
        servers = 3
        replicas = 1
        rounds = 3
        model = "384B"
        slice = "64B"
        heartbeat = "50ms"
        start_timeout = "200ms"
        limit = "20s"
        [link]
        delay = "1ms"
        bandwidth = "1Mbit"
        [[workers]]
        count = 2
        step = "4ms"
        step_noise = 0.3
    """


class Reaper:
    """Kills a process after its n-th effect."""

    def __init__(self, victim: str, after: int) -> None:
        self.done = 0
        self._victim, self._after = victim, after

    def watch(self, kind: type[Process]) -> dict[type, Callable[[Process, object], None]]:
        return {
            effect: self._counted(perform)  # type: ignore[arg-type]
            for effect, perform in kind.EFFECTS.items()
        }

    def _counted(self, perform: Callable[[Process, object], None]) -> Callable[..., None]:
        def performed(process: WorkerProcess | ServerProcess, effect: object) -> None:
            if not process.alive:
                return
            perform(process, effect)
            if process.name == self._victim:
                self.done += 1
                if self.done == self._after:
                    process.crash()

        return performed


def run(sync: str, victim: str, after: int) -> tuple[Run, Books, Reaper]:
    reaper = Reaper(victim, after)
    with bookkeeping(after, repeated=0.0) as books, pytest.MonkeyPatch.context() as patch:
        for kind in (ServerProcess, WorkerProcess):
            patch.setattr(kind, "EFFECTS", reaper.watch(kind))
        made = Run(text(sync), seed=1, check=False)
    settle(made, books)
    return made, books, reaper


@pytest.mark.guarantee("worst-moment", k=(1,))
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_crash_after_every_effect(sync: str, victim: str) -> None:
    after, crashes = 0, 0
    while True:
        after += 1
        try:
            made, _, reaper = run(sync, victim, after)
        except Exception as error:
            raise AssertionError(f"{victim} crashes after effect {after}: {error}") from error
        if reaper.done < after:
            break  # the process has fewer effects than this, so all of its effects were tried
        assert made.end.reason.code == "goal", f"{victim}, effect {after}: {made.end.reason}"
        crashes += 1
    assert crashes > 10
