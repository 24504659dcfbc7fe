"""Input that cannot work ends in one clear line and a non-zero status, and never in a traceback."""

import json
import socket
from pathlib import Path

import pytest
from processes import call

GOOD = """
import torch


def main(worker):
    model = torch.nn.Linear({inputs}, 1)
    optimizer = worker.attach(model, torch.optim.{optimizer})
    while not worker.stopped:
        model(torch.ones(2, {inputs})).sum().backward()
        optimizer.step(points=2)
"""
SGD = "SGD(model.parameters(), lr=0.01)"


def refused(tmp_path: Path, *args: object) -> str:
    """The one line on stderr of a command that must not work."""
    done = call("train", *args, cwd=tmp_path)
    assert done.returncode not in (0, 124), done.stdout
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("polyrhythm: ")
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sync", "bps"], ["--sync 'bps'", "bsp"]),
        (["--kind", "gradients"], ["--kind 'gradients'", "gradient, local"]),
        (["--kind", "statistics"], ["statistics"]),
        (["--timer", "soon"], ["--timer 'soon'", "120s"]),
        (["--timer", "-3s"], ["--timer '-3s'"]),
        (["--link", "foo"], ["--link 'foo'", "auto, tcp, local"]),
        (["--digest", "foo"], ["--digest 'foo'", "xxh3"]),
        (["--wire-dtype", "int4"], ["--wire-dtype 'int4'", "bf16"]),
        (["--workers", "0"], ["--workers is 0"]),
        (["--servers", "0"], ["--servers is 0"]),
        (["--rounds", "0"], ["--rounds is 0"]),
        (["--local-steps", "3"], ["--local-steps", "--kind local"]),
        (["--in-place", "--servers", "2"], ["--in-place", "--servers 1"]),
        (["--in-place", "--servers", "1", "--link", "tcp"], ["--in-place", "local link"]),
        (["--set", "colour"], ["--set 'colour'", "NAME=VALUE"]),
        (["--name", "a/b"], ["--name 'a/b'"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_flags(tmp_path: Path, flags: list[str], words: list[str]) -> None:
    line = refused(tmp_path, "digits", *flags)
    assert all(word in line for word in words), line
    assert not (tmp_path / "runs").exists(), "refused before anything was made"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nomain.py", "x = 1\n", ["nomain.py has no main", "def main(worker)"]),
        ("broken.py", "def main(worker:\n", ["broken.py is not Python", "line 1"]),
        ("missing.py", None, ["cannot read missing.py", "No such file"]),
        ("digit", None, ["there is no job 'digit'", "digits"]),
        ("exchange", None, ["not a job to train"]),
    ],
)
def test_jobs(tmp_path: Path, name: str, text: str | None, words: list[str]) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    line = refused(tmp_path, name)
    assert all(word in line for word in words), line


def test_a_name_that_was_used(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert "there is a run 'mine' already" in refused(tmp_path, "digits", "--name", "mine")


def test_a_port_that_is_taken(tmp_path: Path, long_job: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(tmp_path, long_job, "--rounds", 5, "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line
    assert "--port" in line


def test_an_optimizer_that_cannot_run_on_slices(tmp_path: Path) -> None:
    (tmp_path / "lbfgs.py").write_text(GOOD.format(inputs=4, optimizer="LBFGS(model.parameters())"))
    line = refused(tmp_path, "lbfgs.py", "--rounds", 5, "--workers", 2, "--quiet")
    assert "LBFGS cannot run on a server" in line
    assert "searches along a line" in line
    assert "worker-0, worker-1 failed" in line


def test_a_worker_whose_model_differs_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    inputs = "(5 if worker.name == 'worker-1' else 4)"
    text = GOOD.format(inputs=inputs, optimizer=SGD)
    # The odd one waits until the job has its model, so that it is the one that differs.
    wait = """
    import pathlib, time
    journal = pathlib.Path("runs/run/journal.jsonl")
    while worker.name == "worker-1" and "placed" not in journal.read_text():
        time.sleep(0.01)
"""
    (tmp_path / "differs.py").write_text(text.replace("(worker):\n", f"(worker):\n{wait}"))
    flags = ["--rounds", 30, "--workers", 3, "--servers", 2, "--json", "--name", "run"]
    flags += ["--start-timeout", 3]
    done = call("train", "differs.py", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "worker-1" in lines[0]
    assert "'weight' has shape [1, 5], in the job it has [1, 4]" in lines[0]
    result = json.loads(done.stdout)
    assert result["rounds"] == 30 and result["contributions"] == 60
    assert list(result["worker_failures"]) == ["worker-1"]
