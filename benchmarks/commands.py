"""Commands that benchmarks measure: what each printed last, or why it failed."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import readme


def call(command: list[str], timeout_s: float) -> dict[str, Any]:
    """What the command printed last, as JSON, or why it failed."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=readme.ROOT,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it was not done after {timeout_s:.0f} s"}
    if done.returncode:
        return {"failed": done.stderr.strip()[-500:] or f"it ended with {done.returncode}"}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def train(*words: str, timeout_s: float) -> dict[str, Any]:
    """What `polyrhythm train` says of a run, and the run's journal."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "polyrhythm"), "train", *words]
        told = call([*command, "--runs-dir", folder, "--json"], timeout_s)
        journals = list(Path(folder).glob("*/journal.jsonl"))
        told["journal"] = (
            [json.loads(line) for line in journals[0].read_text().splitlines()] if journals else []
        )
    return told
