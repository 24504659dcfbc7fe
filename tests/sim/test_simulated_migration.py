"""Points travel from worker to worker: every pass visits every point exactly once while workers fail.

The tests try 200 seeds. With POLYRHYTHM_TORTURE=N and N > 1 they try 10,000 seeds.
"""

import os
import random
from typing import Any

import pytest

from polyrhythm.core.lead.chunks import Holder
from polyrhythm.core.lead.data import DataPlan
from polyrhythm.sim.worker.deliveries import SimDeliveries
from polyrhythm.wire.messages import ChunkPart
from tests.sim.staged_run import Run
from tests.sim.test_simulated_balance import Visits

TORTURE = int(os.environ.get("POLYRHYTHM_TORTURE", "1"))
SEEDS = range(200) if TORTURE == 1 else range(10_000)


class Places:
    """Which incarnation of a worker has received the points of which chunk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received: dict[int, set[int]] = {}
        """Per number of a delivery that has arrived, the chunk."""
        self.moved = 0
        receive, complete = SimDeliveries.receive, DataPlan._complete

        def watch_receive(deliveries: SimDeliveries, part: ChunkPart) -> None:
            receive(deliveries, part)
            if part.chunk in deliveries.received:
                self.received.setdefault(part.number, set()).add(part.chunk)

        def watch_complete(plan: DataPlan, chunks: Any) -> set[Holder]:
            before = {index: plan.chunks[index].delivery for index in plan.moving}
            changed: set[Holder] = complete(plan, chunks)
            for index, number in before.items():
                if number and index not in plan.moving:
                    assert index in self.received.get(number, ()), "the points have not arrived"
                    self.moved += 1
            return changed

        monkeypatch.setattr(SimDeliveries, "receive", watch_receive)
        monkeypatch.setattr(DataPlan, "_complete", watch_complete)


def storm(seed: int) -> str:
    """A job with a slow worker whose points move over slow links, while workers die, stop, leave,
    join and change their speed."""
    rng = random.Random(seed)
    sync = rng.choice(["fsp", "fsp", "fsp", "psp", "bsp"])
    points = rng.choice([60, 500, 2000])
    kind = "gradient" if sync == "bsp" else "local"
    text = f"""
        [job]
        sync = "{sync}"
        kind = "{kind}"
        migrate = "{rng.choice(["full", "full", "full", "blocking"])}"
        {f'migrate_memory = "{rng.choice([1, 10, 100])}kB"' if rng.random() < 0.5 else ""}
        point = "{rng.choice(["10B", "1kB", "20kB"])}"
        interval = "{rng.choice(["20ms", "100ms"])}"
        epochs = {rng.choice([2, 4])}
        points = {points}
        batch = 8
        model = "10kB"
        servers = {rng.choice([1, 2])}
        heartbeat = "100ms"
        limit = "2000s"
        [link]
        delay = "1ms"
        bandwidth = "{rng.choice(["1MB", "20MB"])}"
        [[workers]]
        count = 3
        step = "4ms"
        step_noise = 0.1
        {f"memory = {points // 50}" if rng.random() < 0.3 else ""}
        [[workers]]
        step = "{rng.choice([16, 40])}ms"
    """
    names = [f"worker-{number}" for number in range(4)]
    slow_at = rng.uniform(0.5, 2)
    for _ in range(rng.randint(0, 4)):
        at, name = rng.uniform(0.1, 4), rng.choice(names[1:])
        what = rng.choice(["crash", "leave", "stop", "slow"])
        event = f'[[events]]\nat = "{at:.3f}s"\nwhat = "{what}"\nworker = "{name}"\n'
        text += event + (f"factor = {rng.choice([0.2, 1, 4])}\n" if what == "slow" else "")
        if what == "stop":
            again = f'[[events]]\nat = "{at + rng.uniform(0.1, 5):.3f}s"\nwhat = "continue"\n'
            text += again + f'worker = "{name}"\n'
        elif what in ("crash", "leave") and rng.random() < 0.6:
            again = f'[[events]]\nat = "{at + slow_at:.3f}s"\nwhat = "join"\nworker = "{name}"\n'
            text += again
    return text


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pass_visits_every_point_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = Visits(monkeypatch)
    Places(monkeypatch)
    run = Run(storm(seed), seed=seed)
    assert not run.end.failed, run.end.reason
    visits.check()
