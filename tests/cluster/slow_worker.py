"""Jobs with one slow worker of three, which gives points to the fast ones."""

from pathlib import Path
from typing import Any

import pytest

from polyrhythm.observe.journal import read_journal
from tests.cluster.processes import call

WORKERS = 3
SLOW, FAST = "worker-2", "worker-1"
LIMIT_S = 240
"""The time limit of a job, which takes 5 s on a quiet machine."""
FLAGS = (
    *("--updater", "addition", "--sync", "fsp", "--interval", "60ms", "--kind", "local"),
    *("--workers", WORKERS, "--servers", 2, "--check"),
)

Lines = list[dict[str, Any]]


def train(job: Path, folder: Path, *flags: object) -> Lines:
    """Train until the goal is reached, and return the journal."""
    call(
        *("train", job, *FLAGS, "--slow", "2=8x", "--quiet", "--name", "run"),
        *("--max-seconds", LIMIT_S, *flags),
        cwd=folder,
        timeout_s=LIMIT_S + 30,
    )
    journal = list(read_journal(folder / "runs" / "run" / "journal.jsonl"))
    (ended,) = lines(journal, "ended")
    assert ended["reason"] == "goal", ended
    return journal


def train_with_crash(
    who: str, did: str, patch: pytest.MonkeyPatch, job: Path, folder: Path, *flags: object
) -> Lines:
    """Run the same job, and kill this worker after it has sent or received a part of a chunk."""
    crash = folder / "crash"
    crash.write_text(f"{who} {did} ChunkPart")
    patch.setenv("POLYRHYTHM_CRASH_AT", str(crash))
    journal = train(job, folder, *flags)
    assert not crash.exists(), f"{who} was not killed"
    return journal


def lines(journal: Lines, what: str) -> Lines:
    return [line for line in journal if line["what"] == what]
