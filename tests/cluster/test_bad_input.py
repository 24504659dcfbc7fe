"""Bad input ends a command with one clear line and a non-zero status, and never with a
traceback."""

import contextlib
import json
import re
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.cli.launch import WORKERS_FAILED
from tests.cluster.processes import Command, call, last_word
from tests.commands.start import start, warm_server

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
STARTING = re.compile(r"polyrhythm: importing torch, then starting \d+ servers? and \d+ workers?")


def lines_of(tmp_path: Path, *args: object) -> list[str]:
    """Return the lines on stderr of a command that must fail. The line that it prints when its
    processes start is not among them."""
    done = call("train", *args, cwd=tmp_path)
    assert done.returncode not in (0, 124), done.stdout
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert all(line.startswith("polyrhythm: ") for line in lines), done.stderr
    return [line for line in lines if not STARTING.fullmatch(line)]


def refused(tmp_path: Path, *args: object) -> str:
    """Return the single line on stderr of a command that must fail."""
    lines = lines_of(tmp_path, *args)
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--slice-size", "1TB"], ["--slice-size is 1TB", "auto", "4KiB to 32MiB"]),
        (["--sync", "bps"], ["--sync 'bps'", "bsp"]),
        (["--sync", "ssp"], ["--sync ssp needs a whole number", "ssp:8"]),
        (["--sync", "bsp:3"], ["--sync 'bsp:3'", "bsp takes no number"]),
        (["--workers", "99999999"], ["--workers is 99999999", "--local-workers"]),
        (["--servers", "99999999"], ["--servers is 99999999", "--local-servers"]),
        (["--set", "rats=3"], ["--set rats=3", "rate and batch"]),
        (["--kind", "gradients"], ["--kind 'gradients'", "gradient, local"]),
        (["--kind", "statistic"], ["--kind 'statistic'", "local, statistics"]),
        (
            ["--sync", "psp", "--kind", "gradient"],
            ["--sync psp cannot fold kind 'gradient'", "local"],
        ),
        (["--sync", "fsp", "--interval", "0ms"], ["--interval '0ms'", "250ms"]),
        (["--sync", "fsp", "--abandon", "soon"], ["--abandon 'soon'", "50ms"]),
        (["--abandon", "50ms"], ["--abandon", "--sync fsp"]),
        (["--most-steps", "0"], ["--most-steps is 0"]),
        (["--timer", "soon"], ["--timer 'soon'", "120s"]),
        (["--timer", "-3s"], ["--timer '-3s'"]),
        (["--link", "foo"], ["--link 'foo'", "auto, tcp, local"]),
        (["--digest", "foo"], ["--digest 'foo'", "xxh3"]),
        (["--updater", "subtraction"], ["--updater 'subtraction'", "optimizer, addition"]),
        (["--wire-dtype", "int4"], ["--wire-dtype 'int4'", "bf16"]),
        (["--workers", "0"], ["--workers is 0"]),
        (["--servers", "0"], ["--servers is 0"]),
        (["--rounds", "0"], ["--rounds is 0"]),
        (["--threads", "0"], ["--threads is 0"]),
        (["--local-steps", "3"], ["--local-steps", "--kind local"]),
        (["--outer", "lbfgs:lr=1"], ["--outer 'lbfgs:lr=1'", "LBFGS cannot run on servers"]),
        (["--outer", "sgd"], ["--outer 'sgd'", "sgd:lr=1"]),
        (["--outer", "nesterov", "--kind", "gradient"], ["--outer", "--kind local"]),
        (["--outer", "nesterov", "--sync", "asp"], ["--outer", "--sync bsp or psp or fsp"]),
        (["--weights", "many"], ["--weights 'many'", "points, workers"]),
        (["--weights", "workers", "--sync", "asp"], ["--weights workers", "--sync bsp"]),
        (["--in-place", "--servers", "2"], ["--in-place", "--servers 1"]),
        (["--in-place", "--servers", "1", "--link", "tcp"], ["--in-place", "local link"]),
        (["--local-servers", "0"], ["--local-servers is 0", "the lead"]),
        (["--local-servers", "3"], ["--local-servers is 3", "1 to 2"]),
        (["--local-workers", "4"], ["--local-workers is 4", "0 to 3"]),
        (["--on-error", "panic"], ["--on-error 'panic'", "go-on, end"]),
        (["--on-error", "end", "--respawn"], ["--respawn", "--on-error go-on"]),
        (["--host", "0.0.0.0"], ["--host 0.0.0.0", "--insecure"]),
        (["--set", "colour"], ["--set 'colour'", "NAME=VALUE"]),
        (["--set", "rate=fast"], ["--set rate=fast", "0.01"]),
        (["--set", "batch=1.5"], ["--set batch=1.5", "whole"]),
        (["--name", "a/b"], ["--name 'a/b'"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_bad_flags_of_train_are_refused(tmp_path: Path, flags: list[str], words: list[str]) -> None:
    line = refused(tmp_path, "digits", *flags)
    assert all(word in line for word in words), line
    assert not (tmp_path / "runs").exists(), "refused before anything was made"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nomain.py", "x = 1\n", ["nomain.py has no main", "def main(worker)"]),
        (
            "none.py",
            "def main():\n    pass\n",
            ["main in none.py", "one argument", "def main(worker)"],
        ),
        ("two.py", "def main(worker, rate):\n    pass\n", ["main in two.py", "one argument"]),
        ("broken.py", "def main(worker:\n", ["broken.py is not Python", "line 1"]),
        ("missing.py", None, ["cannot read missing.py", "No such file"]),
        ("binary.py", "\x00\x00", ["binary.py is not Python"]),
        ("digit", None, ["there is no job 'digit'", "digits"]),
        ("exchange", None, ["not a job to train"]),
    ],
)
def test_bad_job_files_and_names_are_refused(
    tmp_path: Path, name: str, text: str | None, words: list[str]
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    line = refused(tmp_path, name)
    assert all(word in line for word in words), line


def test_a_folder_in_place_of_a_job_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    assert "cannot read folder.py: Is a directory" in refused(tmp_path, "folder.py")


def test_the_name_of_an_existing_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert "there is a run 'mine' already" in refused(tmp_path, "digits", "--name", "mine")


def test_a_port_in_use_is_reported(tmp_path: Path, long_job: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(tmp_path, long_job, "--rounds", 5, "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line
    assert "--port" in line
    assert not (tmp_path / "runs").exists(), "a job that could not start leaves no folder"


def test_a_command_says_what_it_does_before_its_processes_report(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD.format(inputs=4, optimizer=SGD))
    flags = ("--rounds", 2, "--workers", 1, "--servers", 1)
    loud = call("train", "good.py", *flags, cwd=tmp_path)
    first = loud.stderr.splitlines()[0]
    assert first == "polyrhythm: importing torch, then starting 1 server and 1 worker"
    quiet = call("train", "good.py", *flags, "--quiet", cwd=tmp_path)
    assert quiet.stderr == ""


def test_an_optimizer_that_cannot_run_on_slices_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lbfgs.py").write_text(GOOD.format(inputs=4, optimizer="LBFGS(model.parameters())"))
    line = last_word(lines_of(tmp_path, "lbfgs.py", "--rounds", 5, "--workers", 2, "--quiet"))
    assert "LBFGS cannot run on a server" in line
    assert "searches along a line" in line
    assert "worker-0, worker-1 failed" in line


def test_a_worker_whose_model_differs_is_refused_and_the_job_continues(tmp_path: Path) -> None:
    inputs = "(5 if worker.name == 'worker-1' else 4)"
    text = GOOD.format(inputs=inputs, optimizer=SGD)
    # This worker waits until the job has the model of another worker, so that this worker is the
    # one that is refused.
    wait = """
    import pathlib, time
    journal = pathlib.Path("runs/run/journal.jsonl")
    while worker.name == "worker-1" and "placed" not in journal.read_text():
        time.sleep(0.01)
"""
    (tmp_path / "differs.py").write_text(text.replace("(worker):\n", f"(worker):\n{wait}"))
    flags = ["--rounds", 30, "--workers", 3, "--servers", 2, "--json", "--name", "run"]
    done = call("train", "differs.py", *flags, cwd=tmp_path)
    assert done.returncode == WORKERS_FAILED, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "worker-1" in lines[0]
    assert "'weight' has shape [1, 5], in the job it has [1, 4]" in lines[0]
    result = json.loads(done.stdout)
    assert result["rounds"] == 30 and result["contributions"] == 60
    assert list(result["worker_failures"]) == ["worker-1"]


# -- a main that raises --------------------------------------------------------------------------

RAISES = """
import torch


def main(worker):
    model = torch.nn.Linear(4, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        if {who} and worker.version >= 5:
            raise ValueError("the fifth is not to my taste")
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step(points=2)
"""
THE_LAST_WORD = "ValueError: the fifth is not to my taste"


def raising(tmp_path: Path, who: str, *flags: object) -> subprocess.CompletedProcess[str]:
    (tmp_path / "raises.py").write_text(RAISES.format(who=who))
    counts = ("--rounds", 30, "--workers", 3, "--servers", 2, "--json", "--name", "run")
    return call("train", "raises.py", *counts, *flags, cwd=tmp_path)


def test_if_main_raises_on_one_worker_the_others_continue(tmp_path: Path) -> None:
    done = raising(tmp_path, "worker.name == 'worker-1'")
    assert done.returncode == WORKERS_FAILED, done.stderr
    first, *rest = done.stderr.strip().splitlines()
    assert first == f"polyrhythm: worker-1 failed: {THE_LAST_WORD}"
    assert (
        rest[0] == "Traceback (most recent call last):" and "frames inside polyrhythm" in rest[-1]
    )
    assert "raises.py" in rest[1] and "engines/" not in done.stderr
    assert done.stderr.count("Traceback") == 1, "its traceback is shown once"
    result = json.loads(done.stdout)
    assert result["rounds"] == 30 and list(result["worker_failures"]) == ["worker-1"]
    listed = call("runs", cwd=tmp_path).stdout
    assert "ended, 1 worker failed" in listed, listed


def test_if_main_raises_on_every_worker_before_round_1_the_run_has_failed(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("def main(worker):\n    raise ValueError('at once')\n")
    flags = ("--rounds", 3, "--workers", 2, "--servers", 1, "--quiet", "--name", "run")
    done = call("train", "raises.py", *flags, cwd=tmp_path)
    assert done.returncode == 1
    assert "worker-0, worker-1 failed: ValueError: at once" in done.stderr
    (run,) = json.loads(call("runs", "--json", cwd=tmp_path).stdout)
    assert run["is"] == "failed" and "at once" in run["reason"], run
    assert sorted(run["worker_failures"]) == ["worker-0", "worker-1"]


def test_if_main_raises_on_the_only_worker_the_job_fails(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES.format(who="True"))
    flags = ("--rounds", 30, "--workers", 1, "--servers", 1, "--quiet", "--name", "run")
    done = call("train", "raises.py", *flags, cwd=tmp_path)
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first.startswith("polyrhythm: no worker is left: worker-0 failed: "), first
    assert THE_LAST_WORD in first
    (run,) = json.loads(call("runs", "--json", cwd=tmp_path).stdout)
    assert run["is"] == "failed"


def test_if_main_raises_on_one_worker_with_on_error_end_the_job_ends(tmp_path: Path) -> None:
    done = raising(tmp_path, "worker.name == 'worker-1'", "--on-error", "end")
    assert done.returncode == 1
    assert done.stderr.startswith("polyrhythm: ")
    assert "worker-1" in done.stderr.splitlines()[0] and THE_LAST_WORD in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert json.loads(done.stdout)["rounds"] < 30


def test_if_main_raises_on_every_worker_the_job_fails(tmp_path: Path) -> None:
    done = raising(tmp_path, "True")
    assert done.returncode == 1
    assert done.stderr.startswith("polyrhythm: ")
    said = [line for line in done.stderr.splitlines() if line.startswith("polyrhythm: ")]
    failed = [line for line in said if " failed: " in line]
    assert last_word(said)
    assert set(re.findall(r"worker-\d", str(failed))) == {"worker-0", "worker-1", "worker-2"}
    assert done.stderr.count("Traceback") == len(failed), "it is shown once for all in a line"


def test_a_failing_guest_ends_the_job_with_on_error_end(tmp_path: Path, long_job: Path) -> None:
    """The guest is a worker that another command started, so the lead itself must end the job."""
    flags = ("--rounds", 1_000_000, "--workers", 1, "--servers", 1, "--on-error", "end", "--quiet")
    guest = long_job.with_name("guest.py")
    guest.write_text(
        long_job.read_text().replace("    while", "    raise ValueError('no')\n    while")
    )
    with Command(long_job, *flags, cwd=tmp_path) as command:
        command.await_round(1)
        joiner = command.join(guest, "--name", "guest")
        assert command.wait() == 1
        assert joiner.wait(30) != 0
        assert (
            command.stderr()
            == "polyrhythm: guest left: it failed: no; with --on-error end, this ends the job\n"
        )


# -- the disk is full ----------------------------------------------------------------------------

TALKATIVE = """
import torch


def main(worker):
    model = torch.nn.Linear(4, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step(points=2)
        worker.report(step=float(worker.version))
"""


@contextlib.contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Limit the size of files for processes that are started in this context."""
    # start the warm server before the limit is set, so that the server does not inherit the limit
    warm_server()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def with_file_size_limit(tmp_path: Path, nbytes: int, rounds: int) -> tuple[int, str, list[str]]:
    (tmp_path / "talkative.py").write_text(TALKATIVE)
    flags = ("--rounds", rounds, "--workers", 1, "--servers", 1, "--json")
    pipe = subprocess.PIPE
    with file_size_limit(nbytes):
        train = start("train", "talkative.py", *flags, cwd=tmp_path, stdout=pipe, stderr=pipe)
    out, said = train.communicate(timeout=90)
    return train.returncode, out, said.strip().splitlines()


def test_if_no_file_can_be_written_the_job_does_not_begin(tmp_path: Path) -> None:
    status, _, (line,) = with_file_size_limit(tmp_path, 0, 1_000_000)
    assert status == 1 and line.startswith("polyrhythm: cannot write to runs/")
    assert line.endswith("File too large")


def test_a_job_goes_on_if_its_journal_is_cut_off_in_the_middle(tmp_path: Path) -> None:
    status, out, (first, last) = with_file_size_limit(tmp_path, 16 << 10, 300)
    assert status == 4 and json.loads(out)["rounds"] == 300
    assert "journal.jsonl: File too large: training goes on" in first
    assert last.startswith("polyrhythm: the journal is not complete: cannot write ")


# -- machines that cannot be reached -------------------------------------------------------------


@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_port_without_a_listener(
    tmp_path: Path, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYRHYTHM_SECRET", "5" * 64)
    # the socket is bound but does not listen, so connections to its port are refused
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        done = call(role, "--connect", f"127.0.0.1:{port}", cwd=tmp_path)
    assert done.returncode == 1
    first, line = done.stderr.strip().splitlines()
    assert first == f"importing torch, then connecting to 127.0.0.1:{port}"
    assert line.startswith(f"polyrhythm: could not reach lead at 127.0.0.1:{port}: Connection ref")
    assert "the port" in line and "--host" in line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--connect", "nowhere"], "give HOST:PORT"),
        (["--connect", "127.0.0.1:1", "--port", "70000"], "--port is 70000"),
        (["--connect", "127.0.0.1:1", "--host", "0.0.0.0"], "--insecure"),
        (["--connect", "127.0.0.1:1", "--link", "local"], "auto, tcp"),
    ],
)
def test_bad_flags_of_a_server_are_refused(tmp_path: Path, flags: list[str], words: str) -> None:
    done = call("server", *flags, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("polyrhythm: ") and words in line


# -- code that does not do what it should --------------------------------------------------------

WITH_A_THREAD = """
import threading
import torch

def fails():
    raise ValueError("in a thread of the user")

def main(worker):
    model = torch.nn.Linear(4, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    while not worker.stopped:
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step(points=2)
"""


def test_a_main_that_never_attaches_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text("def main(worker):\n    pass\n")
    done = call("train", "alone.py", "--workers", 2, "--servers", 1, "--rounds", 3, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("without calling worker.attach(model, optimizer)") == 1
    assert "model.safetensors" not in done.stdout


def test_a_thread_of_the_user_that_fails_does_not_end_its_worker(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(WITH_A_THREAD)
    sizes = ("--workers", 1, "--servers", 1, "--rounds", 5)
    done = call("train", "threads.py", *sizes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ValueError: in a thread of the user" in done.stderr
