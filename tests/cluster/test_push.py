"""`--push int8` with real processes: over TCP, within a host, and with wrong values."""

import json
from pathlib import Path
from typing import Any

from polyrhythm.observe.journal import read_journal
from tests.cluster.processes import call

EXACT = "polyrhythm: --push int8: pushes to s0 and s1 stay exact"


def train(folder: Path, *flags: object) -> tuple[dict[str, Any], str]:
    common = ("--workers", 2, "--servers", 2, "--rounds", 40, "--json", "--name", "mine")
    done = call("train", "digits", *common, *flags, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def exact_nbytes(folder: Path, result: dict[str, Any]) -> int:
    """The number of bytes of all contributions of the run if they were sent exactly."""
    lines = read_journal(folder / "runs" / "mine" / "journal.jsonl")
    (nbytes,) = [line["nbytes"] for line in lines if line["what"] == "placed"]
    return int(nbytes * result["contributions"])


def test_pushes_over_tcp_have_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    result, said = train(tmp_path, "--link", "tcp", "--push", "int8")
    assert said == "" and result["link"] == "tcp" and result["push"] == "int8"
    exact = exact_nbytes(tmp_path, result)
    assert result["bytes_pushed"] <= 0.27 * exact
    shown = call("status", "mine", cwd=tmp_path)
    assert "digits, --sync bsp, --kind gradient, --push int8" in shown.stdout


def test_pushes_within_a_host_stay_exact_and_one_line_says_so(tmp_path: Path) -> None:
    result, said = train(tmp_path, "--push", "int8")
    assert said.count(EXACT) == 1 and said.count("\n") == 1
    assert "--link tcp" in said
    exact = exact_nbytes(tmp_path, result)
    assert result["bytes_pushed"] == exact


def test_an_unknown_form_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    done = call("train", "digits", "--push", "int4", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "polyrhythm: --push 'int4' is not known: choose one of exact, int8"
    )
