"""Wrong options of `polyrhythm.train` are errors of one line, before any process is started."""

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import polyrhythm as pr
from polyrhythm.api.options import check_values, fields_of


def main(worker: pr.Worker) -> None:
    raise AssertionError("no worker may start")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker": 4}, "train has no option 'worker': the nearest is 'workers'"),
        ({"local_step": 4}, "train has no option 'local_step': the nearest is 'local_steps'"),
        ({"servers": "4"}, "servers is '4': it must be of type int"),
        (
            {"workers": "4"},
            "--workers is '4': give a number, or two in a text, such as '2..8'",
        ),
        ({"workers": True}, "workers is True: it must be of type int or str"),
        ({"set": 3}, "set is 3: it must be of type list or Mapping"),
        ({"workers": 0}, "--workers is 0: it must be at least 1"),
        (
            {"start_timeout": "5x"},
            "--start-timeout is '5x': give seconds, such as 60, or a time such as 5min",
        ),
        (
            {"lead_timeout": -1},
            "--lead-timeout is -1: give seconds, such as 60, or a time such as 5min",
        ),
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


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"epoch": 2}, "mine.py: DEFAULTS has no key 'epoch': the nearest is 'epochs'"),
        ({"worker": 2}, "mine.py: DEFAULTS has no key 'worker': the nearest is 'workers'"),
        ({3: 2}, "mine.py: DEFAULTS has no key '3', because its keys are the options of "),
        (
            {"hidden": 16},
            "mine.py: DEFAULTS has no key 'hidden', because its keys are the options of pr.train();"
            " give your own option as DEFAULTS = {\"set\": {'hidden': 16}} or --set"
            " hidden=16, and read it from worker.options['hidden']",
        ),
        ({"servers": "4"}, "mine.py: DEFAULTS: servers is '4': it must be of type int"),
        (
            {"workers": "4"},
            "mine.py: DEFAULTS: --workers is '4': give a number, or two in a text, such as '2..8'",
        ),
        ({"set": 3}, "mine.py: DEFAULTS: set is 3: it must be of type list or Mapping"),
        ({"sync": "asap"}, "--sync 'asap' is not known"),
    ],
)
def test_a_wrong_key_or_value_in_the_defaults_of_a_job_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defaults: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(f"DEFAULTS = {defaults!r}\ndef main(worker): ...\n")
    with pytest.raises(pr.errors.UsageError) as caught:
        pr.train("mine.py")
    assert str(caught.value).startswith(message)
    assert [each.name for each in tmp_path.iterdir()] == ["mine.py"]


def test_the_defaults_of_a_job_may_have_every_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong values show that each option was read."""
    monkeypatch.chdir(tmp_path)
    parameters = inspect.signature(pr.train).parameters.values()
    names = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    assert len(names) > 50
    for name in names:
        Path("mine.py").write_text(f"DEFAULTS = {{{name!r}: 1j}}\ndef main(worker): ...\n")
        with pytest.raises(pr.errors.UsageError, match=f"^mine.py: DEFAULTS: {name} is 1j"):
            pr.train("mine.py")


def test_a_goal_that_is_given_replaces_the_goals_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text('DEFAULTS = {"epochs": 1j}\ndef main(worker): ...\n')
    with pytest.raises(pr.errors.UsageError, match="^--rounds is 0"):
        pr.train("mine.py", rounds=0)
    with pytest.raises(pr.errors.UsageError, match="^mine.py: DEFAULTS: epochs is 1j"):
        pr.train("mine.py", rounds=None)


@pytest.mark.parametrize("wrong", [lambda: None, lambda worker, rate: None, lambda *, rate: None])
def test_a_function_that_does_not_take_a_worker_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(pr.errors.UsageError, match="cannot be called with one argument"):
        pr.train(wrong, runs_dir=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pr.errors.UsageError, match="there is no job 'digit'"):
        pr.train("digit", runs_dir=tmp_path)
    with pytest.raises(
        pr.errors.UsageError, match="main is 3, which is not a job: give a function"
    ):
        pr.train(3, runs_dir=tmp_path)  # type: ignore[arg-type]


def test_the_name_of_a_file_without_its_ending_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def main(worker): ...\n")
    with pytest.raises(pr.errors.UsageError, match="no job 'mine', but a file: give mine.py"):
        pr.train("mine")


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


@pytest.mark.parametrize(
    ("given", "stored"), [(5, 5.0), (0.5, 0.5), ("5", 5.0), ("5s", 5.0), ("2min", 120.0)]
)
def test_times_are_seconds_or_have_a_unit(given: float | str, stored: float) -> None:
    times = {"start_timeout": given, "lead_timeout": given, "max_seconds": given}
    check_values(pr.train, times)
    fields = fields_of(pr.train, times)
    assert fields == {"start_timeout_s": stored, "lead_timeout_s": stored, "max_seconds": stored}
