"""`polyrhythm checkpoints list` and `verify` read a run's folder or a store."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from polyrhythm.errors import StoreError, UsageError
from polyrhythm.store.checkpoints import write_slices
from polyrhythm.store.objects import open_store
from tests.store.samples import write_checkpoint

Call = Callable[..., Result]
Write = Callable[..., Path]


@pytest.fixture
def run(write_run: Write) -> Path:
    """A run with two checkpoints and a third that was interrupted."""
    path = write_run("mine", [])
    store = open_store(str(path))
    write_checkpoint(store, 1)
    write_checkpoint(store, 2, servers=2)
    write_slices(store, 3, 0, {0: {"parameters": torch.ones(3)}})
    return path


def damage(run: Path, number: int, pattern: str) -> Path:
    (path, *_) = sorted(run.glob(f"checkpoints/{number:08d}/{pattern}"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("words", [(), ("mine",), ("runs/mine",)])
def test_list_shows_the_checkpoints_of_a_run(call: Call, run: Path, words: tuple[str, ...]) -> None:
    lines = call("checkpoints", "list", *words).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "3"]
    assert " kB " in lines[2] and lines[2].endswith("whole") and lines[3].endswith("whole")
    assert lines[4].endswith("incomplete: it has no manifest")


def test_list_prints_json(call: Call, run: Path) -> None:
    told = json.loads(call("checkpoints", "list", "--json").stdout)
    assert told["store"].endswith("runs/mine")
    states = [(one["number"], one["state"], one.get("servers")) for one in told["checkpoints"]]
    assert states == [(1, "whole", 3), (2, "whole", 2), (3, "incomplete", None)]
    assert told["checkpoints"][0]["round"] == 12


def test_list_reads_a_folder_or_a_url(call: Call, run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_checkpoint(open_store(str(elsewhere), make=True), 7)
    for target in (elsewhere, f"file://{elsewhere}"):
        assert "      7  " in call("checkpoints", "list", target).stdout


def test_list_follows_the_store_that_a_run_names(
    call: Call, write_run: Write, tmp_path: Path
) -> None:
    write_checkpoint(open_store(str(tmp_path / "elsewhere"), make=True), 7)
    write_run("other", [], store=str(tmp_path / "elsewhere"))
    told = json.loads(call("checkpoints", "list", "other", "--json").stdout)
    assert [one["number"] for one in told["checkpoints"]] == [7]


def test_list_finds_the_checkpoints_of_a_run_that_was_moved(
    call: Call, write_run: Write, tmp_path: Path
) -> None:
    path = write_run("old", [], store=str(tmp_path / "runs" / "old"))
    write_checkpoint(open_store(str(path)), 3)
    path.rename(tmp_path / "runs" / "new")
    assert "\n       3  " in call("checkpoints", "list", "new").stdout


def test_list_names_a_run_that_does_not_exist(call: Call, run: Path) -> None:
    assert isinstance(call("checkpoints", "list", "typo").exception, UsageError)


def test_list_says_that_a_run_has_no_checkpoint(call: Call, write_run: Write) -> None:
    write_run("none", [])
    told = call("checkpoints", "list")
    assert told.exit_code == 0
    assert told.stdout.startswith("there is no checkpoint in ")
    assert told.stdout.endswith("/runs/none\n")


def test_a_run_without_checkpoints_cannot_be_resumed_and_the_error_says_what_is_possible(
    call: Call, write_run: Write
) -> None:
    write_run("none", [])
    told = call("resume", "none")
    assert isinstance(told.exception, StoreError)
    assert "because the job ran without --checkpoint-every" in str(told.exception)
    assert "--init MODEL" in str(told.exception)


def test_verify_accepts_checkpoints_that_are_right(call: Call, run: Path) -> None:
    told = call("checkpoints", "verify")
    assert told.exit_code == 0
    assert [line.split()[1] for line in told.stdout.splitlines()] == [
        "whole",
        "whole",
        "incomplete:",
    ]


@pytest.mark.parametrize("pattern", ["slices-*", "record-*", "manifest.json"])
def test_verify_finds_a_flipped_byte(call: Call, run: Path, pattern: str) -> None:
    path = damage(run, 2, pattern)
    told = call("checkpoints", "verify", "mine")
    assert isinstance(told.exception, StoreError)
    assert str(told.exception) == "these checkpoints cannot be loaded: 2"
    assert f"{path.name} is damaged" in told.stdout.splitlines()[1]
    assert call("checkpoints", "verify", "mine", "--number", 1).exit_code == 0
    assert call("checkpoints", "verify", "mine", "--number", 2).exit_code == 1


def test_verify_fails_without_a_complete_checkpoint(call: Call, run: Path) -> None:
    told = call("checkpoints", "verify", "--number", 3)
    assert isinstance(told.exception, StoreError) and "is complete" in str(told.exception)
    told = call("checkpoints", "verify", "--number", 9)
    assert isinstance(told.exception, StoreError) and "no checkpoint 9" in str(told.exception)


def test_checkpoints_are_verified_without_torch(run: Path) -> None:
    """Importing torch takes longer than this command should take."""
    program = (
        "import sys\n"
        "from polyrhythm.cli.checkpoints import verify_\n"
        "verify_(sys.argv[1])\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(run)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
