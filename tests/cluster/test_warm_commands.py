"""A command that is forked from the warm server behaves like a command that is executed as a new
program."""

import ast
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import polyrhythm
from tests.cluster.processes import Command, wait_until
from tests.commands.start import WarmCommand, WarmForkServers, run, start, warm_server
from tests.commands.warm_server import MARK

PACKAGE = Path(polyrhythm.__file__).parent
READS = {"environ", "getenv"}

DESCRIBED = """
import gc, json, os, resource, signal, sys, threading
import torch


def kind(fd):
    try:
        if os.readlink(f"/proc/self/fd/{fd}").startswith("/sys/"):
            return ""
        return os.readlink(f"/proc/self/fd/{fd}").partition(":")[0].rpartition("/")[2]
    except FileNotFoundError:
        return "the folder itself"


def described():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": sorted(filter(None, map(kind, os.listdir("/proc/self/fd")))),
        "signals": [
            line for line in open("/proc/self/status") if line.startswith(("SigBlk", "SigIgn", "SigCgt"))
        ],
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "threads": torch.get_num_threads(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "write_through": sys.stdout.write_through,
        "encoding": sys.stdout.encoding,
        "path": sys.path,
        "session is another's": os.getsid(0) != os.getpid(),
        "nice": os.nice(0),
        "mask": os.umask(0o22),
    }


def main(worker):
    model = torch.nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    if worker.name == "worker-0":
        with open("described.new", "w") as file:
            json.dump(described(), file)
        os.rename("described.new", "described.json")
    while not worker.stopped:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step(points=1)
"""
WAYS = pytest.mark.parametrize(
    "way", [{}, {"spares": 1}, {"fresh": True}], ids=["forked", "with a spare", "executed"]
)
FLAGS = ("--rounds", 1_000_000, "--workers", 2, "--servers", 1)


def train(folder: Path, **way: Any) -> Command:
    """Start a job whose first worker writes a description of its process. The test sets the
    environment variable after the warm server was started."""
    folder.mkdir()
    (folder / "job.py").write_text(DESCRIBED)
    start("--version", stdout=subprocess.DEVNULL).wait(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYRHYTHM_TEST_VARIABLE", "late")
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        return Command("job.py", *FLAGS, cwd=folder, **way)


pytestmark = pytest.mark.usefixtures("one_process")


@pytest.fixture(scope="module")
def one_process() -> None:
    """Keeps the tests of this file in one test process and in the order of the file
    (tests/order.py), because some of them share a job."""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A job whose command is executed as a new program. All tests share it, because its start takes
    seconds of processor time. The last test kills it."""
    with train(tmp_path_factory.mktemp("job") / "executed", fresh=True) as command:
        yield command


@contextlib.contextmanager
def job(folder: Path, way: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Command]:
    if "fresh" in way:
        yield request.getfixturevalue("executed")
        return
    with train(folder / "job", **way) as command:
        yield command


@pytest.mark.parametrize(
    "args",
    [("--version",), ("train", "--threads", 0), ("nonsense",), ("train", "--workers", "many"), ()],
    ids=lambda args: " ".join(map(str, args)) or "nothing",
)
def test_output_and_status_are_the_same(tmp_path: Path, args: tuple[object, ...]) -> None:
    forked, executed = (run(*args, cwd=tmp_path, fresh=fresh) for fresh in (False, True))
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        *(executed.returncode, executed.stdout, executed.stderr),
    )


def described(command: Command) -> dict[str, Any]:
    path = command.cwd / "described.json"

    def found() -> bool:
        command.assert_alive()
        return path.exists()

    wait_until(found, "a worker describes itself")
    return json.loads(path.read_text())


def test_a_worker_has_the_same_environment(tmp_path: Path, executed: Command) -> None:
    """Two effects of importing torch are not compared: an environment variable that it sets and, on
    some processors, open descriptors of /sys."""
    with train(tmp_path / "forked") as command:
        forked = described(command)
    check_same(forked, described(executed), tmp_path, executed.cwd.parent)


def check_same(forked: dict[str, Any], executed: dict[str, Any], *parents: Path) -> None:
    for found in (forked, executed):
        assert found["environment"].pop("POLYRHYTHM_TEST_VARIABLE") == "late"
        found["environment"].pop(MARK, None)
        found["environment"].pop("TORCHINDUCTOR_CACHE_DIR", None)
        folder = Path(found.pop("folder"))
        assert folder.parent in parents
        found["path"].remove(str(folder))
        found["path"].remove(str(folder))
    assert forked == executed


def test_a_worker_of_a_job_in_a_test_process_has_the_same_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine runs in this process. Its fork server is forked from the warm server, or executed
    as a new program."""
    start("--version", stdout=subprocess.DEVNULL).wait(60)
    monkeypatch.setenv("POLYRHYTHM_TEST_VARIABLE", "late")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    found, made = [], []
    for name, popen in (("forked", WarmForkServers), ("executed", subprocess.Popen)):

        def start_fork_server(*args: Any, popen: Any = popen, **options: Any) -> Any:
            made.append(popen(*args, **options))
            return made[-1]

        shim = SimpleNamespace(**{**vars(subprocess), "Popen": start_fork_server})
        monkeypatch.setattr("polyrhythm.engines.local.subprocess", shim)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "job.py").write_text(DESCRIBED)
        monkeypatch.chdir(folder)
        polyrhythm.train("job.py", workers=1, servers=1, rounds=2, quiet=True)
        found.append(json.loads((folder / "described.json").read_text()))
    assert [type(process) for process in made] == [WarmCommand, subprocess.Popen]
    assert [process.returncode for process in made] == [0, 0]
    check_same(*found, tmp_path)


def opened_by(pid: int) -> set[str]:
    """Return the sockets, pipes and files that a process has open."""
    targets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # the descriptor with which this loop has read the folder is closed already
        with contextlib.suppress(FileNotFoundError):
            targets.add(os.readlink(entry))
    return {target for target in targets if not target.startswith(("/dev/", "anon_inode:"))}


@WAYS
def test_a_command_has_only_the_descriptors_that_it_was_given(
    tmp_path: Path, way: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """A forked command inherits no descriptor of the test process. It has only those that every
    command opens, for its journal and its sockets."""
    before = opened_by(os.getpid()) | opened_by(warm_server().pid)
    with job(tmp_path, way, request) as command:
        command.address()
        folder = Path(f"/proc/{command.process.pid}/fd")
        opened = {int(entry.name): os.readlink(entry) for entry in folder.iterdir()}
        streams = [str(command.cwd / name) for name in ("stdout.txt", "stderr.txt")]
    assert [opened[1], opened[2]] == streams
    others = {target for fd, target in opened.items() if fd > 2}
    assert not others & before, "descriptors of the test or of the warm server"
    kinds = {target.partition(":")[0] for target in others}
    journals = {target for target in kinds if target.endswith("/journal.jsonl")}
    assert kinds - journals == {"anon_inode", "socket"}, opened


@WAYS
def test_a_killed_command_reports_it_and_ends_its_processes(
    tmp_path: Path, way: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    with job(tmp_path, way, request) as command:
        command.await_round(1)
        pid = command.process.pid
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert command.pids()[0] == pid and len(command.pids()) == 5
        os.kill(pid, signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        wait_until(lambda: not command.pids(), "no process is left")


def test_a_variable_that_is_read_when_a_process_loads_makes_a_command_start_afresh(
    tmp_path: Path,
) -> None:
    for env, warm in ((os.environ, True), ({**os.environ, "OMP_NUM_THREADS": "1"}, False)):
        process = start("--version", cwd=tmp_path, env=env, stdout=subprocess.PIPE)
        assert isinstance(process, WarmCommand) == warm
        out, _ = process.communicate(timeout=60)
        assert out.startswith("polyrhythm ")


def test_no_module_reads_the_environment_when_it_is_imported() -> None:
    """The warm server imports the modules before a command's environment is known."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if not any(name in text for name in READS):
            continue
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        body = [node for node in ast.parse(text).body if not isinstance(node, functions)]
        for statement in body:
            inner = [node for node in ast.walk(statement) if isinstance(node, functions)]
            within = {id(node) for function in inner for node in ast.walk(function)}
            names = {
                node.attr
                for node in ast.walk(statement)
                if isinstance(node, ast.Attribute) and id(node) not in within
            }
            if names & READS:
                found.append(
                    ".".join(("polyrhythm", *path.relative_to(PACKAGE).with_suffix("").parts))
                )
    assert not found
