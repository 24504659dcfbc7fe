"""A job with two models, a GAN, in real processes: its files, its endings and its failures."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import polyrhythm as pr
from polyrhythm.errors import StoreError
from tests.cluster.processes import Command, call, wait_until
from tests.cluster.test_resume import kill_whole, resume
from tests.learn import gan_job as gan

JOB = Path(gan.__file__)
EPOCHS = 2


def assert_saved_as_workers_have_it(folder: Path, run_dir: Path, workers: int) -> None:
    """Check that the saved models equal the final models, which every worker has written to
    `folder`."""
    saved = {name: load_file(run_dir / f"model-{name}.safetensors") for name in gan.LOSSES}
    files = sorted(path.name for path in run_dir.glob("*.safetensors*"))
    assert files == ["model-critic.safetensors", "model-generator.safetensors"]
    paths = list(folder.glob("worker-*.pt"))
    assert len(paths) == workers
    for path in paths:
        theirs = torch.load(path)
        for name, state in saved.items():
            assert theirs[name].keys() == state.keys()
            assert all(torch.equal(state[key], theirs[name][key]) for key in state), path.name
    models = gan.make_models(seed=5)
    for name, state in saved.items():
        models[name].load_state_dict(state, strict=True)


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:4", "psp", "fsp"])
def test_every_model_is_saved_as_every_worker_has_it(tmp_path: Path, sync: str) -> None:
    sizes = ("--workers", 2, "--servers", 2, "--epochs", EPOCHS)
    flags = ("--sync", sync, "--set", f"out={tmp_path}")
    with Command(JOB, *sizes, *flags, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        assert_saved_as_workers_have_it(tmp_path, command.run_dir, 2)
    shown = command.stdout()
    assert "models: runs/run/model-{critic,generator}.safetensors" in shown
    result = json.loads((command.run_dir / "result.json").read_text())
    assert result["points"] == EPOCHS * gan.POINTS
    if sync not in ("psp", "fsp"):
        assert result["kind"] == "gradient"
        # each step sends the slices of one model, which are filled up to 32 numbers, and the buffers
        critic, generator, buffers = (32 + 32) * 4, 96 * 4, 16 * 4 + 8
        mean = (critic + generator) / 2 + buffers
        assert result["bytes_pushed"] == result["contributions"] * mean
    done = call("export", "run", "out.safetensors", cwd=tmp_path)
    assert done.returncode != 0 and "name one of critic, generator" in done.stderr
    done = call("export", "run", "out.safetensors", "--model", "critic", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        load_file(tmp_path / "out.safetensors").keys()
        == gan.make_models()["critic"].state_dict().keys()
    )


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_job_with_two_models_survives_the_death_of_a_server(tmp_path: Path, sync: str) -> None:
    sizes = ("--workers", 2, "--servers", 3, "--replicas", 1, "--epochs", EPOCHS)
    flags = ("--sync", sync, "--set", f"out={tmp_path}", "--set", f"gate={tmp_path}", "--quiet")
    with Command(JOB, *sizes, *flags, cwd=tmp_path) as command:
        wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 2, "both workers train")
        os.kill(command.servers()[1], signal.SIGKILL)
        wait_until(lambda: command.journal("server-lost"), "the lead notices the death")
        (tmp_path / "go").touch()
        assert command.wait() == 0, command.stderr()
        assert_saved_as_workers_have_it(tmp_path, command.run_dir, 2)


def test_a_killed_job_with_two_models_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    sizes = ("--workers", 2, "--servers", 2, "--epochs", 4)
    flags = ("--min-step", "20ms", "--checkpoint-every", "4rounds", "--set", f"out={tmp_path}")
    with Command(JOB, *sizes, *flags, cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 2, "two checkpoints")
        kill_whole(command)
    exported = tmp_path / "generator.safetensors"
    last = ("--checkpoint", "last", "--model", "generator")
    done = call("export", "run", exported, *last, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before = gan.make_models()["generator"].state_dict()
    trained = load_file(exported)
    assert trained.keys() == before.keys()
    assert any(not torch.equal(trained[key], before[key]) for key in before)
    result = resume(tmp_path)
    assert result["passes"] == 4
    assert_saved_as_workers_have_it(tmp_path, tmp_path / "runs" / "resumed", 2)


def test_a_job_begins_with_the_models_of_another_run(tmp_path: Path) -> None:
    flags = ("--workers", 1, "--quiet", "--set", f"out={tmp_path}", "--name")
    first = call("train", JOB, *flags, "first", "--rounds", 4, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    init = ("--init", "runs/first", "--rounds", 1)
    second = call("train", JOB, *flags, "second", *init, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    one, two = (
        load_file(tmp_path / "runs" / run / "model-generator.safetensors")
        for run in ("first", "second")
    )
    assert all(
        torch.equal(one[key], two[key]) for key in one if "running" not in key and "num" not in key
    )
    bad = ("--init", "runs/first/model-critic.safetensors", "--rounds", 1)
    third = call("train", JOB, *flags, "third", *bad, cwd=tmp_path)
    assert third.returncode != 0
    assert (
        "give a folder with model-critic.safetensors and model-generator.safetensors"
        in third.stderr
    )


def test_a_worker_with_another_order_is_refused_by_name(tmp_path: Path) -> None:
    sizes = ("--workers", 2, "--servers", 1, "--rounds", 50, "--on-error", "end", "--quiet")
    order = ("--set", "order=critic,critic,generator", "--set", "order-worker-1=critic,generator")
    done = call("train", JOB, *sizes, *order, cwd=tmp_path)
    assert "the steps of worker-" in done.stderr, done.stderr
    assert "but the order of all workers is" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_best_of_every_model_is_kept(tmp_path: Path) -> None:
    flags = ("--workers", 1, "--epochs", 1, "--keep-best", "accuracy", "--set", "report=1")
    with Command(JOB, *flags, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
    assert "best models: runs/run/model-best-{critic,generator}.safetensors" in command.stdout()
    (result,) = pr.runs(tmp_path / "runs")
    for name, model in gan.make_models().items():
        model.load_state_dict(result.state_dict(name, best=True), strict=True)
        model.load_state_dict(result.state_dict(name), strict=True)
    with pytest.raises(StoreError, match="name one of critic, generator"):
        result.state_dict()
    best = ("--best", "--model", "critic")
    done = call("export", "run", "best.safetensors", *best, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
