"""The value of an option comes from its flag. Without a flag it comes from the environment, and
otherwise from the configuration file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from polyrhythm.errors import UsageError

Call = Callable[..., Result]


def settings(result: Result) -> dict[str, tuple[Any, str]]:
    assert result.exit_code == 0, result.output
    return {row["setting"]: (row["value"], row["from"]) for row in json.loads(result.stdout)}


def shown(call: Call, *args: object, **env: str) -> dict[str, tuple[Any, str]]:
    return settings(call("train", "--show-config", "--json", *args, env=env))


def test_flags_come_before_the_environment_and_that_before_the_file(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "polyrhythm.toml").write_text('workers = 4\nservers = 5\nkind = "local"\n')
    found = shown(call, "--workers", 6, POLYRHYTHM_WORKERS="7", POLYRHYTHM_SERVERS="8")
    assert found["workers"] == (6, "command line")
    assert found["servers"] == (8, "POLYRHYTHM_SERVERS")
    assert found["kind"] == ("local", "polyrhythm.toml")
    assert found["timer"] == ("auto", "default")


def test_every_flag_can_be_in_the_file_under_its_own_name(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    (tmp_path / "mine.py").write_text("def main(worker): ...\n")
    path.write_text(
        'job = "mine.py"\nlocal-steps = 8\nmax_seconds = 1.5\nin-place = true\n[set]\na = 1\nb = "x y"\n'
    )
    found = shown(call, "--config", path)
    assert found["job"] == ("mine.py", str(path))
    assert found["local-steps"] == (8, str(path))
    assert found["max-seconds"] == (1.5, str(path))
    assert found["in-place"] == (True, str(path))
    assert found["set"] == (["a=1", "b=x y"], str(path))


def test_the_devices_can_be_a_list_in_the_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "polyrhythm.toml").write_text('devices = ["cuda:0", "cpu"]\ntarget = "loss=1"\n')
    found = shown(call)
    assert found["devices"] == ("cuda:0,cpu", "polyrhythm.toml")
    assert found["target"] == (["loss=1"], "polyrhythm.toml")


def test_lists_and_switches_can_be_set_in_the_environment(call: Call, tmp_path: Path) -> None:
    (tmp_path / "polyrhythm.toml").write_text("in-place = true\n")
    found = shown(call, POLYRHYTHM_SET="a=1 b=2", POLYRHYTHM_IN_PLACE="0")
    assert found["set"] == (["a=1", "b=2"], "POLYRHYTHM_SET")
    assert found["in-place"] == (False, "POLYRHYTHM_IN_PLACE")


def test_the_defaults_of_a_job_come_after_the_file_and_before_those_of_the_command(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        'DEFAULTS = {"workers": 5, "local-steps": 2, "sync": "asp", "epochs": 2, "set": {"a": 1}}\n'
        "def main(worker): ...\n"
    )
    (tmp_path / "polyrhythm.toml").write_text('sync = "bsp"\n')
    found = shown(call, "mine.py", "--workers", 3, "--set", "b=2")
    assert found["workers"] == (3, "command line"), "even if this is the default of the command"
    assert found["local-steps"] == (2, "DEFAULTS of mine.py")
    assert found["sync"] == ("bsp", "polyrhythm.toml")
    assert found["epochs"] == (2, "DEFAULTS of mine.py")
    assert found["set"] == ({"a": "1", "b": "2"}, "DEFAULTS of mine.py")
    assert shown(call, "mine.py", "--max-seconds", 1)["epochs"] == (None, "default")


def test_show_config_prints_a_table(call: Call) -> None:
    rows = call("train", "--show-config", env={"POLYRHYTHM_SEED": "3"}).stdout.splitlines()
    assert ["seed", "3", "POLYRHYTHM_SEED"] in [row.split() for row in rows]
    assert ["rounds", "-", "default"] in [row.split() for row in rows]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("worker = 2\n", "polyrhythm.toml: there is no setting 'worker'; the nearest is 'workers'"),
        ("local_step = 2\n", "there is no setting 'local_step'; the nearest is 'local-steps'"),
        ("show-config = true\n", "there is no setting 'show-config'"),
        ("hidden = 16\n", "no setting 'hidden'; your own options belong in its table [set]"),
        ("workers = 2.5\n", "polyrhythm.toml: 'workers' is wrong: "),
        ("epochs = 2.5\n", "polyrhythm.toml: 'epochs' is '2.5': give a whole number"),
        ("workers = \n", "polyrhythm.toml is not TOML: "),
    ],
)
def test_a_faulty_configuration_file_is_refused_with_the_reason(
    call: Call, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "polyrhythm.toml").write_text(text)
    error = call("train", "--show-config").exception
    assert isinstance(error, UsageError) and words in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sync = 3\n", "polyrhythm.toml: --sync '3' is not known: choose one of bsp, "),
        ("[set]\nrat = 1\n", "polyrhythm.toml: --set rat=1 is not known to this job: "),
    ],
)
def test_a_job_that_refuses_a_setting_of_the_file_names_the_file(
    call: Call, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "polyrhythm.toml").write_text(text)
    error = call("train").exception
    assert isinstance(error, UsageError) and str(error).startswith(words)


def test_a_missing_configuration_file_is_refused(call: Call) -> None:
    error = call("train", "--config", "none.toml").exception
    assert isinstance(error, UsageError) and "cannot read none.toml" in str(error)


def test_the_error_names_a_faulty_environment_variable(call: Call) -> None:
    error = call("train", env={"POLYRHYTHM_WORKERS": "many"}).exception
    assert isinstance(error, UsageError)
    assert str(error).startswith("POLYRHYTHM_WORKERS: 'workers' is wrong: ")
    error = call("train", env={"POLYRHYTHM_SYNC": "bps"}).exception
    assert str(error).startswith("POLYRHYTHM_SYNC: --sync 'bps' is not known: choose one of ")
    assert str(call("train", "--sync", "bps").exception).startswith("--sync 'bps' is not known: ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("train", "--epochs", "three"), "--epochs is 'three': give a whole number"),
        (("train", "--target-change", "small"), "--target-change is 'small': give a number"),
        (("resume", "mine", "--rounds", "2.5"), "--rounds is '2.5': give a whole number"),
        (("bench", "exchange", "--rounds", "many"), "--rounds is 'many': give a whole number"),
    ],
)
def test_a_value_that_is_not_a_number_is_refused_with_the_option_and_what_it_takes(
    call: Call, args: tuple[str, ...], words: str
) -> None:
    error = call(*args).exception
    assert isinstance(error, UsageError) and str(error) == words


@pytest.mark.parametrize(
    ("variable", "near"),
    [("WORKER", "WORKERS"), ("LOCAL_STEP", "LOCAL_STEPS"), ("CHEKPOINT_EVERY", "CHECKPOINT_EVERY")],
)
def test_a_variable_with_a_spelling_mistake_is_refused_with_the_right_name(
    call: Call, variable: str, near: str
) -> None:
    error = call("train", "--show-config", env={f"POLYRHYTHM_{variable}": "2"}).exception
    assert isinstance(error, UsageError)
    said = f"there is no setting POLYRHYTHM_{variable}; the nearest is POLYRHYTHM_{near}"
    assert str(error) == said


def test_variables_of_other_programs_are_ignored(call: Call) -> None:
    names = ("SECRET", "DATA", "SERVICE_HOST", "PORT_7000_TCP", "CRASH_AT", "TORTURE")
    env = {f"POLYRHYTHM_{name}": "x" for name in names}
    assert call("train", "--show-config", env=env).exit_code == 0
    of_train = {"POLYRHYTHM_TENANT": "1", "POLYRHYTHM_ENGINE": "inline"}
    assert call("serve", "--show-config", env=of_train).exit_code == 0


def test_serve_leaves_out_what_only_train_can_use(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "polyrhythm.toml"
    path.write_text('workers = 4\njob = "mine.py"\ndevices = "cpu"\nthreads = 2\nslow = ["1=2x"]\n')
    found = settings(call("serve", "--show-config", "--json"))
    assert found["workers"] == (4, "polyrhythm.toml") and "devices" not in found
    path.write_text("thread = 2\n")
    assert "there is no setting 'thread'" in str(call("serve", "--show-config").exception)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--target-accuracy", "95"),
        ("--target-accuracy", "0"),
        ("--target-objective", "nan"),
        ("--max-seconds", "0"),
        ("--max-seconds", "inf"),
    ],
)
def test_impossible_goals_are_refused(call: Call, tmp_path: Path, flag: str, value: str) -> None:
    error = call("train", "digits", flag, value).exception
    assert isinstance(error, UsageError) and str(error).startswith(f"{flag} is ")
    assert not (tmp_path / "runs").exists()
