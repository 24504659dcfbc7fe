"""The built-in image jobs, on tiny data sets in the real formats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.data.catalogue import SETS
from polyrhythm.learn.jobs import digits
from polyrhythm.learn.jobs.images import accuracy
from polyrhythm.learn.load import HIDDEN, JOBS, defaults_of, load_main
from polyrhythm.wire.messages import JobSpec
from tests.learn.made_sets import make_cifar10, make_mnist


def journal(job: str, data_dir: Path, told: dict[str, str], **spec: Any) -> list[dict[str, Any]]:
    options = {"data_dir": str(data_dir), **told}
    spec_ = JobSpec(job=job, options=options, **spec)
    return run_inline(spec_, load_main(job), timeout_s=60).journal


def run(job: str, data_dir: Path, told: dict[str, str] | None = None, **spec: Any) -> list[float]:
    """Run the job and return the last accuracy that each worker reported."""
    done = journal(job, data_dir, told or {}, **spec)
    reports = [line for line in done if line["what"] == "reported"]
    return list({line["worker"]: line["metrics"]["accuracy"] for line in reports}.values())


@pytest.mark.parametrize(
    ("job", "name", "passes"),
    [("mnist-lr", "mnist", 20), ("mnist-cnn", "mnist", 3)],
)
def test_a_job_learns_separable_images(job: str, name: str, passes: int, tmp_path: Path) -> None:
    make_mnist(tmp_path / name, train=600, test=100)
    accuracies = run(job, tmp_path, workers=2, servers=2, epochs=passes)
    assert len(accuracies) == 2
    assert min(accuracies) > 0.95


def test_lenet_trains_on_images_of_mnist_shape(tmp_path: Path) -> None:
    make_mnist(tmp_path / "fashion-mnist")
    assert len(run("fashion-mnist-lenet", tmp_path, workers=2, epochs=1)) == 2


def test_vgg_trains_on_images_of_cifar_shape(tmp_path: Path) -> None:
    make_cifar10(tmp_path / "cifar10", each=2)
    assert len(run("cifar10-vgg11", tmp_path, workers=1, rounds=1)) == 1


def test_a_damaged_data_set_ends_the_job_and_names_the_file(tmp_path: Path) -> None:
    folder = make_mnist(tmp_path / "mnist")
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"")
    with pytest.raises(DataError, match="train-labels-idx1-ubyte.gz cannot be read"):
        run("mnist-lr", tmp_path, rounds=1)


def test_set_changes_rate_and_batch(tmp_path: Path) -> None:
    make_mnist(tmp_path / "mnist", train=600, test=100)
    common = {"workers": 1, "rounds": 3}
    lines = journal("mnist-lr", tmp_path, {"batch": "50", "rate": "1e-9"}, **common)
    rounds = [line for line in lines if line["what"] == "rounds"]
    assert sum(line["points"] for line in rounds) == 3 * 50
    untrained = run("mnist-lr", tmp_path, {"rate": "1e-9"}, **common)
    assert untrained == run("mnist-lr", tmp_path, {"rate": "1e-10"}, **common), "nothing moved"
    assert untrained != run("mnist-lr", tmp_path, {"rate": "0.05"}, **common)


@pytest.mark.parametrize(
    "said", [{"rate": "fast"}, {"rate": "0"}, {"rate": "inf"}, {"batch": "1.5"}]
)
def test_a_rate_or_batch_that_is_not_a_valid_number_is_refused(
    said: dict[str, str], tmp_path: Path
) -> None:
    make_mnist(tmp_path / "mnist")
    name, value = next(iter(said.items()))
    with pytest.raises(UsageError, match=f"--set {name}={value} is not understood"):
        run("mnist-lr", tmp_path, said, workers=1, rounds=1)


def test_every_job_declares_its_epochs_and_its_data() -> None:
    for job in JOBS.keys() - HIDDEN:
        defaults = defaults_of(job)
        assert defaults["epochs"] > 0
        assert set(defaults.get("data", [])) <= SETS.keys()


@pytest.mark.parametrize("training", [True, False])
def test_measuring_the_accuracy_keeps_the_training_mode_of_the_model(training: bool) -> None:
    """The accuracy is measured without dropout. Afterwards the model is in training mode again, if
    it was before."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(1.0)).train(training)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.zero_()
    assert accuracy(model, torch.eye(2), torch.tensor([0, 1])) == 1.0
    assert model.training is model[1].training is training


def test_digits_are_tested_on_images_that_are_not_used_for_training() -> None:
    images = digits.load()
    table = np.loadtxt(digits.find(), delimiter=",")
    assert len(images.test_y) == 360
    train_and_test = torch.cat([images.train_x, images.test_x]).numpy() * 16
    assert sorted(map(bytes, train_and_test.astype(np.uint8))) == sorted(
        map(bytes, table[:, :-1].astype(np.uint8))
    ), "every image of the file is in one of both, once"
