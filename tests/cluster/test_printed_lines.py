"""The lines that a worker prints reach the terminal, with the worker's name, and the worker's
log."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.notebooks import jupyter_environment
from tests.cluster.processes import Command, call, wait_until
from tests.commands.start import start, start_script
from tests.commands.terminal import Terminal

BEGIN = """
import logging, os, subprocess, sys, time
import torch


def main(worker):
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    step = 0
    while not worker.stopped:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
        step += 1
"""
TALKS = (
    BEGIN
    + """
        if step == 2:
            print("printed", worker.name)
            logging.warning("logged %s", worker.name)
            os.write(1, b"written \\xff\\n")
            subprocess.run(["echo", "echoed"])
    print("the end", end="")
"""
)
MANY = (
    BEGIN
    + """
        if step == 2 and worker.name == "worker-0":
            for n in range(30_000):
                print("line", n)
"""
)
DIES = (
    BEGIN
    + """
        if step == 2 and worker.name == "worker-1" and not os.path.exists("died"):
            open("died", "w").close()
            print("the last words of worker-1", end="")
            raise ValueError("worker-1 fails on purpose")
        if step == 3:
            print("step 3 of", worker.name)
"""
)
BAR = (
    BEGIN
    + """
        sys.stderr.write(f"\\r{step} steps|###   |"); sys.stderr.flush()
        if step % 5 == 0:
            print("saved", worker.name)
        time.sleep(0.01)
"""
)
SMALL = ("--workers", 2, "--servers", 1)


def write_job(folder: Path, code: str) -> Path:
    (folder / "job.py").write_text(code)
    return folder / "job.py"


def lines_of(name: str, text: str) -> list[str]:
    return re.findall(rf"^{name} [│|] (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("how", [(), ("--json",), ("--quiet",)])
def test_lines_are_shown_with_the_name_of_the_worker(tmp_path: Path, how: tuple[str, ...]) -> None:
    write_job(tmp_path, TALKS)
    done = call("train", "job.py", *SMALL, "--rounds", 5, "--name", "run", *how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("worker-0", "worker-1"):
        said = [
            f"printed {name}",
            f"WARNING:root:logged {name}",
            "written \\xff",
            "echoed",
            "the end",
        ]
        assert lines_of(name, done.stderr) == said
        log = (tmp_path / "runs" / "run" / "logs" / f"{name}.log").read_bytes()
        assert log == "\n".join(said).replace("\\xff", "!").encode().replace(b"!", b"\xff")
    assert (tmp_path / "runs" / "run" / "logs" / "s0.log").read_bytes() == b""
    assert "printed" not in done.stdout
    if how == ("--json",):
        assert json.loads(done.stdout)["rounds"] == 5


def test_a_traceback_is_shown_once_and_is_in_the_log(tmp_path: Path) -> None:
    write_job(tmp_path, DIES)
    with Command("job.py", *SMALL, "--rounds", 1_000_000, "--respawn", cwd=tmp_path) as command:
        wait_until(lambda: len(lines_of("worker-1", command.stderr())) > 1, "worker-1 is back")
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait() == 130, command.stderr()
        shown = command.stderr()
        log = (command.run_dir / "logs" / "worker-1.log").read_text()
    for text in (shown, log):
        assert text.count("Traceback (most recent call last)") == 1
    assert lines_of("worker-1", shown) == ["the last words of worker-1", "step 3 of worker-1"]
    first, rest = log.split("\n", 1)
    assert first == "the last words of worker-1"
    assert (
        "polyrhythm: worker-1 ended (ValueError: worker-1 fails on purpose) and is started" in rest
    )
    assert rest.endswith("step 3 of worker-1\n"), "the respawned worker appends"


def test_many_lines_wait_for_no_terminal_and_none_is_lost(tmp_path: Path) -> None:
    """Nothing reads the pipe that the command writes to until the job has ended."""
    write_job(tmp_path, MANY)
    command = start(
        *("train", "job.py", *SMALL, "--rounds", 5, "--name", "run"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    journal = tmp_path / "runs" / "run" / "journal.jsonl"
    try:
        wait_until(
            lambda: journal.exists() and '"what":"ended"' in journal.read_text(),
            "the job ends",
        )
        assert command.poll() is None, "its output is not read yet"
        _, shown = command.communicate(timeout=100)
    finally:
        command.kill()
        command.wait()
    expected = [f"line {n}" for n in range(30_000)]
    assert shown is not None and lines_of("worker-0", shown) == expected
    log = tmp_path / "runs" / "run" / "logs" / "worker-0.log"
    assert log.read_text().splitlines() == expected


def test_ctrl_c_keeps_the_last_lines(tmp_path: Path) -> None:
    code = TALKS.replace("if step == 2:", "if step == 2 and worker.name == 'worker-0':")
    write_job(tmp_path, code)
    with Command("job.py", *SMALL, "--rounds", 1_000_000, cwd=tmp_path) as command:
        wait_until(lambda: lines_of("worker-0", command.stderr()), "worker-0 prints")
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait() == 130
        assert lines_of("worker-0", command.stderr())[-1] == "the end"
        assert lines_of("worker-1", command.stderr()) == ["the end"]


NOTEBOOK = """
import nbclient, nbformat, sys
cell = nbformat.v4.new_code_cell(sys.stdin.read())
notebook = nbformat.v4.new_notebook(cells=[cell])
nbclient.NotebookClient(notebook, timeout=250, kernel_name="python3").execute()
print("".join(each["text"] for each in cell.outputs if each.output_type == "stream"))
"""
CELL = """
import polyrhythm as pr
result = pr.train(main, workers=2, servers=1, rounds=5)
"""


@pytest.mark.timeout(300)
def test_lines_appear_below_the_cell_of_a_notebook(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        input=TALKS + CELL,
        cwd=tmp_path,
        env=jupyter_environment(tmp_path / "jupyter"),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    for name in ("worker-0", "worker-1"):
        lines = lines_of(name, done.stdout)
        assert lines[0] == f"printed {name}" and lines[-1] == "the end", done.stdout
    assert "the job reached its goal: 5 rounds" in done.stdout


TABLE = re.compile(r"^worker +points/s", re.MULTILINE)


def test_lines_and_the_live_table_share_a_terminal(tmp_path: Path) -> None:
    write_job(tmp_path, BAR)
    args = ("train", "job.py", *SMALL, "--rounds", 1_000_000, "--max-seconds", 60)
    with Terminal(*args, cwd=tmp_path, columns=80) as terminal:
        terminal.wait_for(
            lambda: TABLE.search(terminal.screen.text) and "steps|###" in terminal.screen.text,
            "the table and a progress bar",
        )
        for columns in (60, 40, 120, 80):
            terminal.resize(columns)
            for _ in range(3):
                terminal.wait_for_text("points/s")  # wait until the live table is drawn again
            terminal.wait_for(
                lambda: len(TABLE.findall(terminal.screen.text)) == 1, "there is one table"
            )
        terminal.interrupt()
        assert terminal.end() == 130
    rows = terminal.screen.text.splitlines()
    assert not TABLE.search(terminal.screen.text), "the table is removed at the end"
    for name in ("worker-0", "worker-1"):
        saved = [row for row in rows if "saved" in row and row.startswith(name)]
        assert len(saved) > 3 and set(saved) == {f"{name} │ saved {name}"}
        bars = [row for row in rows if row.startswith(name) and "|###" in row]
        assert all(re.fullmatch(r"worker-\d │ \d+ steps\|###   \|", row) for row in bars), bars
        assert len(bars) < len(saved) + 20, "not every state of the bar is a line"


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_sys_exit_of_a_worker_is_told_in_words(engine: str, tmp_path: Path) -> None:
    """`sys.exit()` and `sys.exit(0)` end the worker as `return` does. With any other number or a
    text the worker has failed, and its line shows the number or the text, without a traceback."""
    (tmp_path / "job.py").write_text(
        BEGIN
        + """
        if step == 2:
            print("step 2")
            sys.exit({"worker-0": None, "worker-1": 7, "worker-2": "no more data"}[worker.name])
"""
    )
    args = ("--workers", 3, "--servers", 1, "--rounds", 30, "--engine", engine, "--json")
    done = call("train", "job.py", *args, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["worker_failures"] == {
        "worker-1": "exit status 7",
        "worker-2": "sys.exit: no more data",
    }
    assert "all workers left before the job reached its goal" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_goes_on_when_nobody_reads_its_progress(tmp_path: Path) -> None:
    """The reader of the output ends early, as in `polyrhythm train job.py 2>&1 | head -1`. The
    folder must still have the model and the result."""
    (tmp_path / "job.py").write_text(BEGIN + "        print('step', step)\n")
    ours, theirs = os.pipe()
    with (tmp_path / "stdout.txt").open("w+") as stdout:
        args = ("--workers", 2, "--servers", 1, "--rounds", 100, "--name", "run", "--json")
        process = start("train", "job.py", *args, cwd=tmp_path, stdout=stdout, stderr=theirs)
        os.close(theirs)
        assert os.read(ours, 1), "the first line of a worker"
        os.close(ours)
        assert process.wait(90) == 0
        stdout.seek(0)
        assert json.load(stdout)["rounds"] == 100
    assert (tmp_path / "runs" / "run" / "model.safetensors").exists()


WITHOUT_STDERR = """
import os, sys
os.close(2)
sys.stderr = sys.__stderr__ = None  # as in a Python program that is started without stderr
from polyrhythm.cli.main import run
sys.exit(run())
"""


def test_a_job_runs_without_stderr(tmp_path: Path) -> None:
    """The command runs in a script without stderr, as after `polyrhythm train job.py 2>&-`."""
    (tmp_path / "job.py").write_text(BEGIN + "        print('step', step)\n")
    script = tmp_path / "command.py"
    script.write_text(WITHOUT_STDERR)
    args = ("train", "job.py", "--workers", "1", "--servers", "1", "--rounds", "5", "--json")
    command = start_script(script, *args, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        out, _ = command.communicate(timeout=240)
    finally:
        command.kill()
        command.wait()
    assert command.returncode == 0
    assert out is not None and json.loads(out)["rounds"] == 5
