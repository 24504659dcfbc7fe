"""`polyrhythm train` trains a model from the name of a job: its output, its files and its
journal."""

import json
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.errors import InvariantBroken
from polyrhythm.observe.journal import read_journal
from polyrhythm.runtime.trace import replay
from tests.cluster.processes import call

EXAMPLES = Path(__file__).parents[2] / "examples"
PASSES = 12
"""The number of passes, which is enough for an accuracy of 97%."""
KEYS = {
    *("job", "sync", "workers", "servers", "link", "rounds", "contributions", "points"),
    *("objective", "accuracy", "seconds", "points_per_s", "per_worker", "folds"),
    *("kind", "passes", "seconds_per_pass", "contributions_per_s", "seconds_to_target"),
    *("bytes_pushed", "bytes_pulled"),
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run `train digits` with traces and with checks of invariants. Return its folder and its
    result."""
    folder = tmp_path_factory.mktemp("digits")
    flags = ["--workers", 3, "--servers", 2, "--json", "--name", "mine", "--trace", "--check"]
    flags += ["--epochs", PASSES]
    done = call("train", "digits", *flags, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1, "stdout is one JSON object and nothing else"
    return folder / "runs" / "mine", json.loads(done.stdout)


def test_digits_reaches_its_accuracy(digits: tuple[Path, dict[str, Any]]) -> None:
    _, result = digits
    assert result.keys() >= KEYS
    assert result["accuracy"] >= 0.95
    assert (result["job"], result["sync"], result["link"]) == ("digits", "bsp", "local")
    assert (result["workers"], result["servers"]) == (3, 2)
    assert 0 < result["objective"] < 0.3


def test_every_point_is_counted_once_per_pass(digits: tuple[Path, dict[str, Any]]) -> None:
    _, result = digits
    assert result["points"] == PASSES * 1_437
    assert sum(w["points"] for w in result["per_worker"].values()) == result["points"]
    assert sum(w["contributions"] for w in result["per_worker"].values()) == result["contributions"]


def test_both_servers_fold_every_round(digits: tuple[Path, dict[str, Any]]) -> None:
    _, result = digits
    assert result["folds"] == {"s0": result["rounds"], "s1": result["rounds"]}
    assert result["rounds"] > 0


def test_the_times_of_a_worker_add_up(digits: tuple[Path, dict[str, Any]]) -> None:
    _, result = digits
    assert result["per_worker"].keys() == {"worker-0", "worker-1", "worker-2"}
    assert result["points_per_s"] == pytest.approx(result["points"] / result["seconds"], rel=1e-3)
    for worker in result["per_worker"].values():
        parts = [worker[key] for key in ("compute_s", "wait_s", "transfer_s")]
        assert all(part > 0 for part in parts)
        assert sum(parts) == pytest.approx(result["seconds"], rel=0.2, abs=0.5)


def test_the_journal_agrees_with_the_summary(digits: tuple[Path, dict[str, Any]]) -> None:
    folder, result = digits
    lines = list(read_journal(folder / "journal.jsonl"))
    assert sum(line["what"] == "joined" for line in lines) == 3
    ended = [line for line in lines if line["what"] == "ended"]
    assert len(ended) == 1 and ended[0]["rounds"] == result["rounds"]


def test_every_trace_replays_with_identical_effects(digits: tuple[Path, dict[str, Any]]) -> None:
    folder, result = digits
    traces = sorted(folder.glob("*.trace"))
    assert [trace.stem for trace in traces] == ["s0", "s1", "worker-0", "worker-1", "worker-2"]
    for trace in traces:
        assert replay(trace) > result["rounds"]


def test_a_forged_trace_does_not_replay(
    digits: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The forged trace lacks the first half of the events, so a new server cannot repeat the first
    fold in it."""
    folder, _ = digits
    data = (folder / "s1.trace").read_bytes()
    records, at = [], 0
    while at < len(data):
        size = 4 + int.from_bytes(data[at : at + 4], "little")
        records.append(data[at : at + size])
        at += size
    forged = tmp_path / "forged.trace"
    forged.write_bytes(b"".join([records[0], *records[len(records) // 2 :]]))
    with pytest.raises(InvariantBroken):
        replay(forged)


def test_the_example_runs(tmp_path: Path) -> None:
    flags = ["--workers", 2, "--servers", 1, "--json", "--link", "tcp", "--digest", "sha1"]
    done = call("train", EXAMPLES / "lenet_like.py", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["accuracy"] > 0.9
    assert result["points"] == 3 * 640 and result["link"] == "tcp"


def test_the_summary_is_readable_text(tmp_path: Path, long_job: Path) -> None:
    done = call(
        "train", long_job, "--rounds", 20, "--workers", 1, "--servers", 1, "--verbose", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "20 rounds, 20 contributions" in done.stdout
    assert "folds: s0 20" in done.stdout and "  journal: runs/" in done.stdout
    assert "    model.load_state_dict(load_file(" in done.stdout
    assert "journal.jsonl" in done.stdout
