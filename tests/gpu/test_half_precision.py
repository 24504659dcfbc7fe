"""Servers keep float32 copies of models of half precision. Workers get these numbers rounded to the
dtype of the model. Checkpoints contain the float32 copies, and the file of the trained model
contains the rounded numbers."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.store.checkpoints import load, read_slices
from polyrhythm.store.listing import listing
from polyrhythm.store.objects import open_store
from polyrhythm.wire.messages import JobSpec
from tests.commands.start import run
from tests.gpu import half_job
from tests.gpu.conftest import Place
from tests.learn import twin_job as tj

ROUNDS = 100
dtypes = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def after(rounds: int) -> torch.Tensor:
    """The parameters after this many rounds, computed in float32."""
    weight = torch.ones(300)
    for _ in range(rounds):
        weight -= half_job.RATE
    return weight


@dtypes
@pytest.mark.parametrize(
    "options",
    [{}, {"servers": 2, "replicas": 1}, {"sync": "asp"}, {"sync": "fsp", "interval": "2ms"}],
    ids=["rounds", "replicas", "asp", "fsp"],
)
def test_steps_that_half_precision_cannot_hold_are_not_lost(
    place: Place, dtype: str, options: dict[str, Any]
) -> None:
    kind = half_job.DTYPES[dtype]
    assert (torch.ones((), dtype=kind) - half_job.RATE).item() == 1.0

    def main(worker: Worker) -> None:
        model = half_job.train(worker, place.device, dtype)
        assert model.weight.dtype == kind and model.weight.device == torch.device(place.device)
        expected = after(worker.version).to(kind).float()
        off = (model.weight.detach().cpu().float() - expected).abs().max().item()
        assert off <= torch.finfo(kind).eps, off
        assert model.weight[0].item() < 1.0

    run_inline(
        JobSpec(**{"job": "half", "rounds": ROUNDS, "heartbeat_s": 20.0, **options}),
        main,
        timeout_s=60,
    )


@dtypes
def test_local_steps_of_half_precision_are_averaged(place: Place, dtype: str) -> None:
    """Two workers move by -1/64 and by +1/128 in every round."""
    kind = half_job.DTYPES[dtype]

    def main(worker: Worker) -> None:
        model = half_job.Ones(kind).to(place.device)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1 / 64))
        sign = 1.0 if worker.name == "worker-0" else -0.5
        while not worker.stopped:
            (sign * model.weight.sum()).backward()
            optimizer.step(points=1)
        expected = torch.tensor(1.0 - 8 / 256).to(kind)
        assert torch.equal(model.weight.detach().cpu(), expected.expand(300))

    job = JobSpec(job="half", rounds=8, kind="local", workers=2, heartbeat_s=20.0)
    run_inline(job, main, timeout_s=60)


@dtypes
def test_a_model_of_half_precision_learns_on_a_device(place: Place, dtype: str) -> None:
    """The gradients of a float16 model are scaled, so that small gradients do not become zero."""
    kind = half_job.DTYPES[dtype]

    def main(worker: Worker) -> None:
        model = tj.build().to(place.device, kind)
        optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=0.01))
        points, labels = (each.to(place.device) for each in tj.batch(0, 0))
        losses: list[float] = []
        while not worker.stopped:
            loss = tj.loss_of(model, points.to(kind), labels)
            loss.backward()
            optimizer.step(points=len(labels), objective=loss)
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 2

    run_inline(JobSpec(job="half", rounds=60, heartbeat_s=20.0), main, timeout_s=60)


@pytest.mark.cluster
def test_checkpoints_have_float32_copies_and_the_model_its_own_dtype(
    tmp_path: Path, place: Place
) -> None:
    pytest.importorskip("obstore")
    folder = tmp_path / "runs" / "run"
    options = ("--set", f"device={place.device}", "--set", "dtype=bfloat16")
    options += ("--set", f"store={folder}", "--set", f"last={ROUNDS}")
    flags = ("--workers", 1, "--servers", 2, "--quiet", "--max-seconds", 60)
    job, env = Path(half_job.__file__), dict(os.environ)
    goal = ("--rounds", ROUNDS, "--checkpoint-every", "50rounds", "--name", "run")
    done = run("train", job, *options, *flags, *goal, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    trained = load_file(folder / "model.safetensors")["weight"]
    assert torch.equal(trained, after(ROUNDS).bfloat16())

    store = open_store(str(folder))
    newest = load(store, [each.number for each in listing(store) if each.fault is None][-1])
    round_ = newest.manifest.round
    found = read_slices(store, newest, newest.layout.slices)
    for slice_, tensors in found.items():
        first, end = newest.layout.slices[slice_].parts[0]
        assert tensors["parameters"].dtype == torch.float32
        assert torch.equal(tensors["parameters"][first:end], after(round_)[: end - first])

    out = tmp_path / "exported.safetensors"
    export = ("export", "run", out, "--checkpoint", newest.number)
    assert run(*export, cwd=tmp_path).returncode == 0
    assert torch.equal(load_file(out)["weight"], after(round_).bfloat16())

    more = ("--rounds", ROUNDS + 50, "--name", "more", "--quiet", "--max-seconds", 60)
    done = run("resume", "run", *more, cwd=tmp_path, env=env, spares=1)
    assert done.returncode == 0, done.stderr
    trained = load_file(tmp_path / "runs" / "more" / "model.safetensors")["weight"]
    assert torch.equal(trained, after(ROUNDS + 50).bfloat16())
