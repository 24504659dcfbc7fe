"""The events of a trace, sent to new machines, give the effects that the trace has. A trace that
was changed is noticed."""

from pathlib import Path

import msgspec
import pytest
import torch

from polyrhythm.core.worker.pulls import Assembly
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import InvariantBroken
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.trace import Origin, Step, Trace, replay
from polyrhythm.wire.messages import JobSpec


def learn(worker: Worker) -> None:
    torch.manual_seed(worker.seed)
    model = torch.nn.Linear(6, 3)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    own = torch.Generator().manual_seed(
        worker.seed
    )  # workers are threads that share torch's generator
    points = torch.randn(48, 6, generator=own), torch.randint(0, 3, (48,), generator=own)
    for inputs, labels in worker.batches(points, batch_size=4):
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    worker.report(done=1.0)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    job = JobSpec(job="j", workers=3, servers=2, epochs=2, slice_nbytes=64)
    run = run_inline(job, learn, options=NodeOptions(trace_dir=folder, check=True), timeout_s=60)
    assert run.outcome is not None and not run.outcome.failed
    return sorted(folder.glob("*.trace"))


def records(path: Path) -> list[bytes]:
    data, parts, at = path.read_bytes(), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return parts


def write(path: Path, parts: list[bytes]) -> Path:
    path.write_bytes(b"".join(len(part).to_bytes(4, "little") + part for part in parts))
    return path


def test_every_machine_left_a_trace(traces: list[Path]) -> None:
    names = [path.stem for path in traces]
    assert names == ["s0", "s1", "worker-0", "worker-1", "worker-2"]


def test_replaying_gives_identical_effects(traces: list[Path]) -> None:
    for path in traces:
        assert replay(path) == len(records(path)) - 1 > 10, path.name


def test_a_lost_step_is_found(traces: list[Path], tmp_path: Path) -> None:
    origins, *steps = records(traces[0])
    with pytest.raises(InvariantBroken, match="but the trace has"):
        replay(write(tmp_path / "lost.trace", [origins, *steps[1:]]))


def test_a_changed_effect_is_found(traces: list[Path], tmp_path: Path) -> None:
    parts = records(traces[0])
    at = next(
        n for n, part in enumerate(parts) if n and msgspec.msgpack.decode(part, type=Step).effects
    )
    step = msgspec.msgpack.decode(parts[at], type=Step)
    parts[at] = msgspec.msgpack.encode(msgspec.structs.replace(step, effects=()))
    with pytest.raises(InvariantBroken, match=f"step {at - 1} of changed.trace"):
        replay(write(tmp_path / "changed.trace", parts))


def test_a_changed_machine_is_found(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Assembly, "land", lambda self, *landed: None)
    with pytest.raises(InvariantBroken):
        replay(traces[-1])


def test_a_trace_that_was_cut_short_replays_up_to_there(traces: list[Path], tmp_path: Path) -> None:
    data = traces[0].read_bytes()
    short = tmp_path / "short.trace"
    short.write_bytes(data[:-3])
    assert replay(short) == replay(traces[0]) - 1


def test_each_life_has_a_trace_of_its_own(tmp_path: Path) -> None:
    for _ in range(3):
        origin = Origin("worker", "worker", -1, "worker-1", JobSpec(job="j"))
        Trace(tmp_path / "worker-1.trace", [origin], lambda note: None).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "worker-1.2.trace",
        "worker-1.3.trace",
        "worker-1.trace",
    ]


def test_a_long_trace_can_be_played_in_part(traces: list[Path]) -> None:
    assert replay(traces[0], most=5) == 5 < replay(traces[0])
