"""A real run whose seeder dies while it seeds. The job begins with the parameters of another
worker, in every slice, and the traces of the servers and of the lead can be replayed."""

from pathlib import Path

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import Refused
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.trace import replay
from polyrhythm.runtime.worker import host
from polyrhythm.wire.messages import JobSpec


@pytest.mark.parametrize("width", [16, 512], ids=["small", "large"])
def test_round_1_opens_on_the_parameters_of_one_worker(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = host._EFFECTS[fx.SeedSlices]
    victims: list[str] = []

    def die_after_one_server(self: host.MachineHost, effect: fx.SeedSlices) -> None:
        if not victims:
            seed(self, effect)
            victims.append(self.name)
            self._driver.post("worker", ev.LinkClosed("s0", "it was killed"))
        elif self.name not in victims:
            seed(self, effect)

    monkeypatch.setitem(host._EFFECTS, fx.SeedSlices, die_after_one_server)
    begun: dict[str, list[float]] = {}

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(width, width, bias=False)
        torch.nn.init.constant_(model.weight, 1.0 + int(worker.name[-1]))
        try:
            optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        except Refused:
            assert worker.name in victims
            return
        begun[worker.name] = model.weight.unique().tolist()
        model(torch.ones(width)).sum().backward()
        optimizer.step()

    job = JobSpec(
        job="j", workers=2, servers=2, rounds=1, start_timeout_s=0.5, slice_nbytes=16 * width
    )
    run = run_inline(job, main, options=NodeOptions(trace_dir=tmp_path, check=True), timeout_s=60)
    assert run.outcome is not None and not run.outcome.failed
    (survivor,) = {"worker-0", "worker-1"} - set(victims)
    assert begun == {survivor: [1.0 + int(survivor[-1])]}
    for path in tmp_path.glob("*.trace"):
        assert replay(path) > 5
