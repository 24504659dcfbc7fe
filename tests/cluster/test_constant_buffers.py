"""Constant buffers between processes: they are sent once in each direction, and a worker that joins
late gets the current values of all buffers. A local buffer is each worker's own from then on, and the
model that is saved has the evaluator's."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.cluster.processes import Command, call

JOB = Path(__file__).parent / "jobs" / "masked.py"
MASK_NBYTES = 256 * 256 * 4
ROUNDS = 60


def said(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("sync", "kind"), [("bsp", "gradient"), ("asp", "local"), ("psp", "local")]
)
def test_over_tcp_a_constant_buffer_is_received_once(tmp_path: Path, sync: str, kind: str) -> None:
    flags = ["--workers", 2, "--servers", 2, "--link", "tcp", "--rounds", 12, "--kind", kind]
    done = call("train", JOB, "--sync", sync, *flags, "--max-seconds", 60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("worker-0", "worker-1"):
        found = said(tmp_path, name)
        assert found["intact"]
        # The worker reads at most two versions before its first contribution has reached every
        # server.
        assert MASK_NBYTES <= found["received"] < 4 * MASK_NBYTES


def test_a_worker_that_joins_late_gets_the_buffers_of_that_version(tmp_path: Path) -> None:
    """Only worker-0 changes `seen`: it adds one in every round, also while the guest is a
    member."""
    flags = ["--workers", 1, "--servers", 2, "--timer", "off", "--link", "tcp"]
    with Command(JOB, *flags, "--rounds", ROUNDS, "--set", "guest=1", cwd=tmp_path) as command:
        command.await_round(0)
        joiner = command.join("--name", "guest", "--link", "tcp")
        assert command.wait() == 0, command.stderr()
        _, words = joiner.communicate(timeout=20)
        assert joiner.returncode == 0, words
    guest = said(tmp_path, "guest")
    version, seen, mask, mine = guest["began"]
    assert version > 0 and seen == mine == version, "the buffers that it begins with"
    assert mask == float("-inf") and guest["intact"]
    first = said(tmp_path, "worker-0")
    assert guest["ended"] == [ROUNDS, ROUNDS] == first["ended"]
    assert guest["mine"] == [mine + guest["steps"]] * 2
    assert first["mine"] == [first["steps"]] * 2 == [ROUNDS] * 2
    saved = load_file(command.run_dir / "model.safetensors")
    assert saved["mine"].tolist() == first["mine"] and saved["seen"].tolist() == [ROUNDS] * 5
