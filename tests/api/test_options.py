"""Wrong options of `polyrhythm.train` are errors of one line, before any process is started."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import polyrhythm as pr


def main(worker: pr.Worker) -> None:
    raise AssertionError("no worker may start")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker": 4}, "train has no option 'worker': the nearest is 'workers'"),
        ({"local_step": 4}, "train has no option 'local_step': the nearest is 'local_steps'"),
        ({"workers": "4"}, "workers is '4': it must be of type int"),
        ({"workers": True}, "workers is True: it must be of type int"),
        ({"set": 3}, "set is 3: it must be of type list or Mapping"),
        ({"workers": 0}, "--workers is 0: it must be at least 1"),
        ({"devices": 0}, "devices is 0: it must be of type str or list"),
        (
            {"devices": [torch.device("cuda:0"), 1]},
            "'1' in --devices 'cuda:0,1' is not understood: give auto, cpu, cuda, or a list such as"
            " cuda:0,cuda:1 or cuda:0,cpu,cpu",
        ),
        (
            {"devices": ["cuda:0", "gpu"]},
            "'gpu' in --devices 'cuda:0,gpu' is not understood: give auto, cpu, cuda, or a list such as"
            " cuda:0,cuda:1 or cuda:0,cpu,cpu",
        ),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(pr.errors.UsageError) as caught:
        pr.train(main, **{"runs_dir": tmp_path / "runs", **options})  # type: ignore[arg-type]
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [lambda: None, lambda worker, rate: None, lambda *, rate: None])
def test_a_function_that_does_not_take_a_worker_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(pr.errors.UsageError, match="cannot be called with one argument"):
        pr.train(wrong, runs_dir=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pr.errors.UsageError, match="there is no job 'digit'"):
        pr.train("digit", runs_dir=tmp_path)
    with pytest.raises(pr.errors.UsageError, match="main is 3, which is no job: give a function"):
        pr.train(3, runs_dir=tmp_path)  # type: ignore[arg-type]


def test_a_function_that_cannot_be_sent_is_refused_with_advice(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(worker: pr.Worker) -> None:
        lock.acquire()

    with pytest.raises(pr.errors.UsageError, match="locked cannot be sent .* inside the function"):
        pr.train(locked, runs_dir=tmp_path)


def test_dir_shows_only_the_public_names() -> None:
    assert dir(pr) == sorted(pr.__all__)
    for name in dir(pr):
        assert getattr(pr, name).__doc__, name


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        (None, "--devices 'None'"),
        ([torch.device("cpu"), 1], "'1' in --devices 'cpu,1'"),
        (("cpu", "gpu"), "'gpu' in --devices 'cpu,gpu'"),
        (torch.device("meta"), "--devices 'meta'"),
    ],
)
def test_connect_names_wrong_devices_in_one_line(devices: object, shown: str) -> None:
    with pytest.raises(pr.errors.UsageError) as caught:
        pr.connect("127.0.0.1:1", devices=devices)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{shown} is not understood: give auto, cpu, cuda")
