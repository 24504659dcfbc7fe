"""`polyrhythm.serve` and `polyrhythm.connect`: a job without code, whose workers are processes that
the user starts.

Most tests connect from the test's own process, which is an ordinary Python process.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polyrhythm as pr
from polyrhythm.api.connecting import names_of
from polyrhythm.observe.journal import read_journal
from tests.cluster.processes import Command, call, marked, wait_until
from tests.commands.forked_python import command as forked_python
from tests.commands.start import Process, start, start_script
from tests.commands.warm_server import MARK

EXAMPLE = Path(__file__).parents[2] / "examples" / "connect.py"
TORCHRUN = Path(sys.executable).with_name("torchrun")
FAR = 300.0
LONG_S = 200.0
"""A limit for processes that import torch on a machine that is busy with other tests."""
DROPPED = re.compile(r"Failed checking if argv\[0\] is an import path entry|Exception ignored in")
"""Python prints one of these when Ctrl-C comes at certain moments of its start, and goes on."""


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """A test process connects to several jobs one after the other, so each test must leave nothing
    behind."""
    interval, state = sys.getswitchinterval(), torch.get_rng_state()
    yield
    sys.setswitchinterval(interval)
    torch.set_rng_state(state)


def served(folder: Path, **options: Any) -> pr.Service:
    return pr.serve(
        **{
            "workers": 1,
            "servers": 1,
            "max_seconds": FAR,
            "name": "run",
            "runs_dir": folder / "runs",
            "quiet": True,
            **options,
        }
    )


def journal(job: pr.Service, what: str) -> list[dict[str, Any]]:
    """The lines of the journal. The lead writes it soon after the job listens."""
    path = job.run / "journal.jsonl"
    lines = read_journal(path) if path.exists() else ()
    return [line for line in lines if line["what"] == what]


def attached(worker: pr.Worker) -> tuple[torch.nn.Module, Any]:
    model = torch.nn.Linear(4, 1)
    return model, worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))


def step(model: torch.nn.Module, optimizer: Any) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step(points=2)


# -- the ordinary way ----------------------------------------------------------------------------


def test_a_log_that_a_connected_worker_has_opened_is_closed(tmp_path: Path) -> None:
    class Log:
        closed = False

        def log(self, values: dict[str, Any], *, step: int) -> None: ...

        def close(self) -> None:
            self.closed = True

    log = Log()
    with served(tmp_path) as job:
        with pr.connect(job.address, quiet=True) as worker:
            attached(worker)
            worker.log_to(lambda: log)
            worker.report(accuracy=0.5)
            assert not log.closed
        assert log.closed


def test_a_process_connects_trains_and_leaves(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inputs = torch.randn(200, 4)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.excepthook
    with served(tmp_path, epochs=3, max_seconds=None) as job:
        assert job.result is None
        assert job.secret_file.is_file() and job.job_file.is_file()
        with pr.connect(job.address) as worker:
            model, optimizer = attached(worker)
            for (x,) in worker.batches((inputs,), batch_size=20):
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step(objective=loss)
            worker.report(final=2.5)
        result = job.wait(LONG_S)
    assert result.status == "ended" and job.result is result
    assert result.metrics["final"] == 2.5
    assert result.summary["passes"] == 3
    trained = result.state_dict()
    assert torch.equal(trained["weight"], model.state_dict()["weight"])
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert sys.excepthook is hook
    said = capfd.readouterr().err
    assert f"polyrhythm: connecting to {job.address}\n" in said
    assert f"polyrhythm: this process is {worker.name} of the job at {job.address}\n" in said


def test_torchrun_starts_the_workers_of_the_example(tmp_path: Path) -> None:
    """torchrun starts a program that lets the warm server fork the worker."""
    flags = ["--workers", 2, "--servers", 2, "--epochs", 5]
    with Command(*flags, verb="serve", cwd=tmp_path) as command:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.join(forked_python())} "$@"\n')
        python.chmod(0o700)
        started = ("--nproc-per-node", "2", "--no-python", str(python), str(EXAMPLE))
        pipe = subprocess.PIPE
        torchrun = start_script(
            TORCHRUN, *started, command.address(), cwd=tmp_path, stdout=pipe, stderr=pipe
        )
        out, errors = torchrun.communicate(timeout=LONG_S)
        assert torchrun.returncode == 0, errors
        assert command.wait(LONG_S) == 0, command.stderr()
        names = {line["name"] for line in command.journal("joined")}
        evaluators = [line["name"] for line in command.journal("evaluator")]
        points = sum(line["points"] for line in command.journal("rounds"))
        accuracy = command.journal("reported")[-1]["metrics"]["accuracy"]
    assert names == {"rank-0", "rank-1"} and evaluators == ["rank-0"]
    assert points == 5 * 2_000
    assert accuracy > 0.9
    assert "rank-0: accuracy" in out and "rank-1: accuracy" in out
    assert (command.run_dir / "model.safetensors").is_file()


def test_a_worker_of_a_file_joins_a_served_job(tmp_path: Path, long_job: Path) -> None:
    with Command("--workers", 1, "--rounds", 40, verb="serve", cwd=tmp_path) as command:
        joiner = command.join(long_job)
        assert command.wait(LONG_S) == 0, command.stderr()
        assert joiner.wait(LONG_S) == 0
        refused = command.stderr()
    assert 'polyrhythm.connect("127.0.0.1:' in refused


# -- how a worker ends ---------------------------------------------------------------------------


def test_an_exception_is_reported_as_the_failure_of_the_worker(tmp_path: Path) -> None:
    with served(tmp_path) as job:
        with pytest.raises(ZeroDivisionError), pr.connect(job.address, name="anna") as worker:
            step(*attached(worker))
            _ = 1 / 0
        (left,) = wait_until(lambda: journal(job, "left"), "it has left", LONG_S)
        with pr.connect(job.address, name="bert") as worker:
            step(*attached(worker))
        result = job.stop()
    assert left["reason"] == "failed" and "division by zero" in left["fields"]["detail"]
    assert list(result.worker_failures) == ["anna"]
    assert result.stopped, "the job went on without it"


def test_with_on_error_end_an_exception_ends_the_job(tmp_path: Path) -> None:
    with (
        pytest.raises(pr.errors.JobFailed, match="anna left: it failed: no; with --on-error end"),
        served(tmp_path, on_error="end") as job,
    ):
        with pytest.raises(ValueError), pr.connect(job.address, name="anna") as worker:
            step(*attached(worker))
            raise ValueError("no")
        job.wait(LONG_S)


UNCAUGHT = """
import sys, torch
import polyrhythm as pr
worker = pr.connect(sys.argv[1], name="anna")
model = torch.nn.Linear(4, 1)
optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
{end}
"""


@pytest.mark.parametrize(
    ("end", "reason", "status"),
    [("raise KeyError('lost')", "failed", 1), ("sys.exit(0)", "link-ended", 0)],
    ids=["exception", "exit"],
)
def test_a_program_that_ends_without_close(
    tmp_path: Path, end: str, reason: str, status: int
) -> None:
    """The program has no `with` block. If it ends by an exception, the worker reports the exception
    to the lead. If it ends without an exception and without `close()`, the worker counts as
    gone."""
    with served(tmp_path) as job:
        path, pipe = tmp_path / "program.py", subprocess.PIPE
        path.write_text(UNCAUGHT.format(end=end))
        program = start_script(path, job.address, cwd=tmp_path, stderr=pipe)
        _, said = program.communicate(timeout=LONG_S)
        (left,) = wait_until(lambda: journal(job, "left"), "it has left", LONG_S)
    assert program.returncode == status, said
    assert said is not None
    assert left["reason"] == reason
    assert ("KeyError: 'lost'" in said) == (status == 1)


def test_a_worker_that_is_asked_to_leave_ends_its_loop(tmp_path: Path) -> None:
    with served(tmp_path) as job, pr.connect(job.address) as worker:
        model, optimizer = attached(worker)
        step(model, optimizer)
        worker.leave()
        while not worker.stopped:
            step(model, optimizer)
        worker.close()
        (left,) = wait_until(lambda: journal(job, "left"), "it has left", LONG_S)
    assert left["reason"] == "told-to-leave"


def test_ctrl_c_is_no_failure(tmp_path: Path) -> None:
    with served(tmp_path) as job:
        with pytest.raises(KeyboardInterrupt), pr.connect(job.address) as worker:
            step(*attached(worker))
            raise KeyboardInterrupt
        (left,) = wait_until(lambda: journal(job, "left"), "it has left", LONG_S)
        assert not job.stop().worker_failures
    assert left["reason"] == "told-to-leave"


def test_after_close_every_call_says_so_and_the_process_may_connect_again(tmp_path: Path) -> None:
    with served(tmp_path) as job:
        worker = pr.connect(job.address, name="anna")
        model, optimizer = attached(worker)
        worker.close()
        worker.close()
        assert worker.closed and worker.stopped
        calls: list[tuple[str, Callable[[], object]]] = [
            ("worker.report()", lambda: worker.report(a=1.0)),
            ("worker.evaluate()", lambda: worker.evaluate(a=lambda: 1.0)),
            ("worker.batches()", lambda: worker.batches([1], 1)),
            ("optimizer.step()", lambda: step(model, optimizer)),
        ]
        for what, use in calls:
            with pytest.raises(pr.errors.UsageError) as raised:
                use()
            told = f"{what} was called after anna had left the job at {job.address}"
            assert str(raised.value).startswith(told)
        with pr.connect(job.address, name="anna") as again:
            step(*attached(again))


# -- what cannot work ----------------------------------------------------------------------------


def test_errors_are_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as job:
        wrong = tmp_path / "wrong"
        wrong.write_text("0" * 64)
        wrong.chmod(0o600)
        with pytest.raises(pr.errors.PolyrhythmError) as secret:
            pr.connect(job.address, secret_file=wrong)
        with pytest.raises(pr.errors.UsageError, match="give HOST:PORT of a running job"):
            pr.connect("nowhere")
        with pytest.raises(pr.errors.UsageError, match="name cannot be used"):
            pr.connect(job.address, name="a\nb")
        with pr.connect(job.address, name="anna"), pytest.raises(pr.errors.UsageError) as twice:
            pr.connect(job.address)
        copy = tmp_path / "copy"
        copy.write_bytes(job.secret_file.read_bytes())
        copy.chmod(0o600)
        address = job.address
    with pytest.raises(pr.errors.LinkError) as ended:
        pr.connect(address)
    with pytest.raises(pr.errors.LinkError) as refused:
        pr.connect(address, secret_file=copy)
    assert str(twice.value).startswith(f"this process is anna of the job at {address} already")
    assert str(ended.value).startswith(f"no job listens at {address}: it has ended")
    assert "secret" not in str(ended.value)
    assert str(refused.value).startswith(f"could not reach lead at {address}")
    assert "secret" in str(secret.value)
    for error in (secret, twice, ended, refused):
        assert "\n" not in str(error.value)


def test_the_secret_comes_from_the_environment_and_is_known_for_a_second_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as job:
        text = job.secret_file.read_text()
        # in another state folder the worker finds no index of running jobs
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("POLYRHYTHM_SECRET", text)
        for _ in range(2):
            with pr.connect(job.address) as worker:
                step(*attached(worker))
            assert "POLYRHYTHM_SECRET" not in os.environ


def test_names() -> None:
    assert names_of({}, "host", 7) == ("host-7", "host-7-2")
    assert names_of({"RANK": "3"}, "host", 7) == ("rank-3", "rank-3-host-7")
    assert names_of({"SLURM_PROCID": "12"}, "host", 7) == ("rank-12", "rank-12-host-7")
    assert names_of({"RANK": "x"}, "h" * 300, 7)[0].endswith("h-7")
    assert max(map(len, names_of({"RANK": "9" * 9}, "h" * 300, 2**22))) <= 100


def test_a_second_launcher_with_the_same_ranks_gets_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    script = tmp_path / "other.py"
    script.write_text(
        "import sys, time, polyrhythm as pr; pr.connect(sys.argv[1]); time.sleep(600)"
    )
    with served(tmp_path, workers=2) as job:
        other = start_script(script, job.address, cwd=tmp_path)
        try:
            wait_until(lambda: journal(job, "joined"), "the first has joined", LONG_S)
            with pr.connect(job.address) as worker:
                assert worker.name.startswith("rank-0-")
        finally:
            other.kill()
            other.wait()


# -- operating a served job ----------------------------------------------------------------------


def test_a_served_job_waits_for_workers_and_is_operated_as_any_other(
    tmp_path: Path, long_job: Path
) -> None:
    flags = ["--workers", 1, "--max-seconds", 600, "--store", "store"]
    with Command(*flags, verb="serve", cwd=tmp_path, spares=1) as command:
        address = command.address()
        hint = f'polyrhythm.connect("{address}")'
        wait_until(
            lambda: hint in call("why", "run", cwd=tmp_path).stdout,
            "the servers have joined, and why says how to connect",
            LONG_S,
        )
        first = command.join(long_job, "--name", "first")
        command.await_round(20)
        assert call("checkpoint", "run", cwd=tmp_path).returncode == 0
        os.kill(first.pid, signal.SIGTERM)
        assert first.wait(LONG_S) == 143
        wait_until(lambda: command.left("first"), "the first has left", LONG_S)
        reason = wait_until(
            lambda: [w for w in command.journal("waiting") if w["reason"] == "no-workers"],
            "it waits for others",
            LONG_S,
        )
        assert reason and "no worker is in the job" in call("why", "run", cwd=tmp_path).stdout
        status = call("status", "run", cwd=tmp_path).stdout
        assert "running" in status and f'polyrhythm.connect("{address}")' in " ".join(
            status.split()
        )
        command.join(long_job, "--name", "second")
        before = command.journal("rounds")[-1]["round"]
        command.await_round(before + 20)
        stopped = call("stop", "run", cwd=tmp_path)
        assert stopped.returncode == 0, stopped.stderr
        assert command.wait(LONG_S) == 0, command.stderr()
        assert command.journal("checkpoint")
    assert (command.run_dir / "model.safetensors").is_file()
    resumed = start(
        *("resume", "store", "--name", "again", "--max-seconds", 600),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        spares=1,
    )
    path = tmp_path / "runs" / "again" / "journal.jsonl"
    try:
        wait_until(
            lambda: path.exists() and '"listening"' in path.read_text(), "it listens", LONG_S
        )
        assert call("stop", "again", cwd=tmp_path).returncode == 0
        assert resumed.wait(LONG_S) == 0
    finally:
        resumed.kill()


def test_a_worker_without_a_file_is_told_how_to_join_a_served_job(tmp_path: Path) -> None:
    with Command("--workers", 1, "--max-seconds", 600, verb="serve", cwd=tmp_path) as command:
        told = call("worker", "--connect", command.address(), cwd=tmp_path)
        assert call("stop", "run", "--now", cwd=tmp_path).returncode == 0
        assert command.wait(LONG_S) == 0, command.stderr()
    assert told.returncode == 1
    assert "polyrhythm.connect(" in told.stderr.splitlines()[-1]


# -- the first moment ----------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_ctrl_c_in_the_first_moment_leaves_no_process(tmp_path: Path, processes: int) -> None:
    """The signal is sent as soon as this many processes of the command exist. The first is the
    command, the second the fork server, and the others are the servers. Python drops a signal that comes
    while it starts, before it runs the command. A user would press Ctrl-C again."""
    flags = ["--workers", 1, "--servers", 3, "--max-seconds", 600]
    with Command(*flags, verb="serve", cwd=tmp_path, trace=False, fresh=processes < 3) as command:
        wait_until(lambda: len(command.pids()) >= processes, "the processes exist", LONG_S)
        os.kill(command.process.pid, signal.SIGINT)
        wait_until(
            lambda: command.process.poll() is not None or DROPPED.search(command.stderr()),
            "the command ends",
            LONG_S,
        )
        if command.process.poll() is None and processes == 1:
            os.kill(command.process.pid, signal.SIGINT)
        assert command.wait(LONG_S) != 0
        wait_until(lambda: not command.pids(), "all processes have ended", LONG_S)


SERVE = """
import polyrhythm as pr
with pr.serve(workers=1, servers=3, max_seconds=600, name="run", quiet=True) as job:
    print("serves", flush=True)
    job.wait()
"""


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_ctrl_c_in_the_first_moment_of_a_python_program(tmp_path: Path, processes: int) -> None:
    """When two processes exist, the fork server is importing torch. A forked program imports
    nothing, so this program is started as a new Python process. The programs that are interrupted
    later are forked."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    env = {**os.environ, MARK: mark.partition("=")[2]}
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    program: Process
    if processes == 2:
        command = [sys.executable, "-c", SERVE]
        program = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=null, stderr=pipe, text=True
        )
    else:
        path = tmp_path / "program.py"
        path.write_text(SERVE)
        program = start_script(path, cwd=tmp_path, env=env, stdout=null, stderr=pipe)
    try:
        wait_until(lambda: len(marked(mark.encode())) >= processes, "the processes exist", LONG_S)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=LONG_S)
        wait_until(lambda: not marked(mark.encode()), "all processes have ended", LONG_S)
    finally:
        program.kill()
        program.wait()
    assert program.returncode in (-signal.SIGINT, 130, 1)
    assert "KeyboardInterrupt" in said


def test_a_service_that_nothing_refers_to_ends(tmp_path: Path) -> None:
    job = served(tmp_path)
    path, running = job.run, job._served
    del job
    assert running.ended.wait(LONG_S)
    assert (path / "result.json").is_file()


# -- settings ------------------------------------------------------------------------------------


def test_options_of_workers_that_serve_does_not_start_are_refused() -> None:
    with pytest.raises(pr.errors.UsageError, match="serve has no option 'threads': it concerns"):
        pr.serve(threads=2)
    with pytest.raises(pr.errors.UsageError, match="serve has no option 'server': the nearest is"):
        pr.serve(server=2)
    with pytest.raises(pr.errors.UsageError, match="workers is '3'"):
        pr.serve(workers="3")  # type: ignore[arg-type]
    with pytest.raises(pr.errors.UsageError, match="--servers is 0"):
        pr.serve(servers=0)


def test_serve_reads_the_file_that_train_reads(tmp_path: Path) -> None:
    (tmp_path / "polyrhythm.toml").write_text(
        'job = "mine.py"\nworkers = 5\nthreads = 2\nsync = "asp"\n'
    )
    done = call("serve", "--show-config", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"setting": "workers", "value": 5, "from": "polyrhythm.toml"' in done.stdout
    (tmp_path / "polyrhythm.toml").write_text("wrokers = 5\n")
    done = call("serve", cwd=tmp_path)
    assert "there is no setting 'wrokers'; the nearest is 'workers'" in done.stderr
