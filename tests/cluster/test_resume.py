"""A job whose processes were all killed continues from its last checkpoint, with another number of
servers and workers."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from polyrhythm.core.record import Record
from polyrhythm.observe.journal import read_journal
from polyrhythm.store.checkpoints import Checkpoint, load, read_record, verify
from polyrhythm.store.listing import listing
from polyrhythm.store.objects import open_store
from tests.cluster.job_workers import Book
from tests.cluster.ledger_job import ONCE
from tests.cluster.processes import Command, call, wait_until
from tests.commands.start import run

JOBS = Path(__file__).parent / "jobs"
EPOCHS, POINTS = 3, 360
VISITS = (JOBS / "counted_visits.py", "--updater", "addition", "--set", f"points={POINTS}")
VISITS += ("--set", "batch=20")


def resume(cwd: Path, *args: object, name: str = "resumed") -> dict[str, Any]:
    done = call_resume("--name", name, "--json", *args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def call_resume(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `polyrhythm resume`. The command reads the store before it starts the job."""
    return run("resume", "run", *args, cwd=cwd, timeout_s=90, spares=1)


def kill_whole(command: Command) -> None:
    """Kill every process of the job at once, as a power failure does."""
    for pid in [command.process.pid, *command.pids()]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    command.wait()
    wait_until(lambda: not command.pids(), "all processes are gone")


def newest(run: Path) -> tuple[Checkpoint, Record]:
    store = open_store(str(run))
    whole = [each.number for each in listing(store) if each.fault is None]
    checkpoint = load(store, whole[-1])
    verify(store, checkpoint)
    return checkpoint, read_record(store, checkpoint, Record)


def visited(record: Record) -> int:
    return sum((c.last - c.first) * c.passes + c.cursor for c in record.chunks)


@pytest.mark.guarantee("job-killed", policies=("bsp",), k=(0,))
@pytest.mark.parametrize(
    ("optimizer", "exactly", "engine"),
    [("momentum", False, "local"), ("adam", False, "inline"), ("adam", True, "local")],
)
def test_a_killed_job_ends_with_the_parameters_of_an_uninterrupted_one(
    tmp_path: Path, optimizer: str, exactly: bool, engine: str
) -> None:
    """The job continues on two servers in place of three, or inline: in one process. After 15 rounds
    of bsp in all, the parameters differ by at most 1e-5. With --deterministic they are equal bit for
    bit."""
    job = (JOBS / "convex.py", "--rounds", 15, "--workers", 3, "--set", f"optimizer={optimizer}")
    job += ("--deterministic",) if exactly else ()
    whole = call("train", *job, "--servers", 3, "--name", "whole", "--quiet", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    regular = ("--checkpoint-every", "2rounds", "--min-step", "200ms")
    with Command(*job, "--servers", 3, *regular, cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 3, "three checkpoints")
        kill_whole(command)
    assert newest(command.run_dir)[1].round < 15
    result = resume(tmp_path, "--servers", 2, "--engine", engine)
    assert result["rounds"] == 15
    before = load_file(tmp_path / "runs" / "whole" / "model.safetensors")
    after = load_file(tmp_path / "runs" / "resumed" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.allclose(tensor, after[name], rtol=0, atol=1e-5), name
        assert torch.equal(tensor, after[name]) or not exactly, name


@pytest.mark.guarantee("job-killed", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", "ssp:2", "ssp-restart:2", "asp", "psp", "fsp"])
def test_every_point_of_a_pass_is_visited_once_across_a_resume_onto_more_workers(
    tmp_path: Path, sync: str
) -> None:
    local = ("--set", "local=1", "--kind", "local") if sync in ("psp", "fsp") else ()
    job = (*VISITS, "--sync", sync, *local)
    goal = ("--epochs", EPOCHS, "--workers", 2, "--servers", 2, "--min-step", "100ms")
    with Command(*job, *goal, "--checkpoint-every", "2rounds", cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 2, "two checkpoints")
        kill_whole(command)
    _, record = newest(command.run_dir)
    assert 0 < visited(record) < EPOCHS * POINTS
    assert {chunk.holder for chunk in record.chunks} == {"worker-0", "worker-1"}
    result = resume(tmp_path, "--workers", 3, "--check")
    assert visited(record) + result["points"] == EPOCHS * POINTS
    if sync == "fsp":
        # fsp scales each local step by the size of its micro-batch, so the blocks are not numbers of
        # visits
        return
    for name in (f"worker-{n}" for n in range(3)):
        for block in torch.load(tmp_path / f"{name}.final.pt"):
            assert (block == EPOCHS).all(), (name, block[block != EPOCHS])


def test_names_keep_their_chunks_and_incarnations_never_repeat(tmp_path: Path) -> None:
    job = (*VISITS, "--epochs", EPOCHS, "--workers", 3)
    with Command(
        *job, "--servers", 2, "--min-step", "100ms", "--checkpoint-every", "2rounds", cwd=tmp_path
    ) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 2, "two checkpoints")
        kill_whole(command)
    first, record = newest(command.run_dir)
    joined = command.journal("joined")
    assert record.view >= max(line["epoch"] for line in joined)
    resume(tmp_path, "--checkpoint-every", "1rounds", "--servers", 3)
    lines = list(read_journal(tmp_path / "runs" / "resumed" / "journal.jsonl"))
    again = [line for line in lines if line["what"] in ("joined", "rejoined")]
    assert min(line["epoch"] for line in again) > record.view
    numbers = {line["name"]: line["worker"] for line in joined}
    assert {line["name"]: line["worker"] for line in again} == numbers
    last, later = newest(command.run_dir)
    before, now = first.manifest.model.division, last.manifest.model.division
    assert before is not None and now is not None, "slices keep their size"
    assert (now.servers, now.slice_nbytes) == (3, before.slice_nbytes)
    holders = [(chunk.first, chunk.holder) for chunk in record.chunks]
    assert [(chunk.first, chunk.holder) for chunk in later.chunks] == holders


def test_a_resumed_job_with_replicas_keeps_all_of_its_servers(tmp_path: Path) -> None:
    """After a resume, the numbers of incarnations of servers continue. A server must not mistake
    its link to the lead for a link to an earlier incarnation of the lead's server, or it would dial
    that server again."""
    job = (*VISITS, "--epochs", EPOCHS, "--workers", 2)
    regular = ("--servers", 3, "--replicas", 1, "--min-step", "100ms")
    with Command(*job, *regular, "--checkpoint-every", "2rounds", cwd=tmp_path) as command:
        wait_until(lambda: command.journal("checkpoint"), "a checkpoint")
        kill_whole(command)
    result = resume(tmp_path, "--check")
    lost = [
        line["fields"]
        for line in read_journal(tmp_path / "runs" / "resumed" / "journal.jsonl")
        if line["what"] == "server-lost"
    ]
    assert not lost and not result["servers_lost"]


def test_a_data_set_of_another_length_is_refused(tmp_path: Path) -> None:
    text = (JOBS / "counted_visits.py").read_text()
    job = tmp_path / "job.py"
    job.write_text(text)
    done = call(
        *("train", job, *VISITS[1:], "--epochs", 1, "--name", "run", "--quiet"),
        *("--workers", 1, "--servers", 1, "--checkpoint-every", "5rounds"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    job.write_text(text.replace("torch.arange(count)]", "torch.arange(count - 1)]"))
    again = call_resume("--epochs", 2, "--quiet", cwd=tmp_path)
    assert again.returncode != 0
    assert "has 359 points, the checkpoint's has 360" in again.stderr


def test_a_job_resumes_under_another_policy_of_its_kind(tmp_path: Path) -> None:
    job = (*VISITS, "--epochs", EPOCHS, "--workers", 2)
    regular = ("--servers", 2, "--min-step", "100ms", "--checkpoint-every", "2rounds")
    with Command(*job, *regular, cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 2, "two checkpoints")
        kill_whole(command)
    _, record = newest(command.run_dir)
    result = resume(tmp_path, "--sync", "asp", "--check")
    assert visited(record) + result["points"] == EPOCHS * POINTS
    for block in torch.load(tmp_path / "worker-0.final.pt"):
        assert (block == EPOCHS).all()
    wrong = call_resume("--sync", "psp", "--quiet", cwd=tmp_path)
    assert wrong.returncode == 2 and "kind" in wrong.stderr


@pytest.mark.guarantee("job-killed", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_the_ledger_is_exact_across_a_resume(tmp_path: Path, sync: str) -> None:
    """The slices of the checkpoint contain the contributions of each worker up to the clock in its
    record, and no others. After the resume, every acknowledged contribution is in every slice
    once."""
    flags = ("--sync", sync, "--updater", "addition", "--set", f"columns={ONCE}")
    job = (JOBS / "ledger.py", *flags, "--workers", 2, "--servers", 3, "--min-step", "5ms")
    regular = ("--checkpoint-every", "5rounds", "--max-seconds", 60)
    with Command(*job, *regular, cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 3, "three checkpoints")
        kill_whole(command)
    _, record = newest(command.run_dir)
    names = [worker.name for worker in record.workers]
    clocks = {worker.name: worker.clock for worker in record.workers}
    before = {name: len(book(tmp_path, name).sent) for name in names}
    assert any(before[name] > clocks[name] for name in names) or sync == "asp"
    resume(tmp_path, "--servers", 2, "--rounds", record.round + 20, "--max-seconds", 60)
    for final in (np.load(tmp_path / f"{name}.final.npy") for name in names):
        for name in names:
            row, mine = int(name.rpartition("-")[2]), book(tmp_path, name)
            later = {number for number in mine.sent if number >= before[name]}
            sure = {number for number in mine.acknowledged if number >= before[name]}
            assert sure
            for block in final:
                assert set(np.unique(block[row])) <= {0.0, 1.0}, "counted twice"
                counted = set(np.flatnonzero(block[row]).tolist())
                assert {n for n in counted if n < before[name]} == set(range(clocks[name]))
                assert sure <= counted - set(range(before[name])) <= later


def book(folder: Path, name: str) -> Book:
    found = Book(folder / f"{name}.book")
    found.look()
    return found


def test_a_resumed_job_keeps_its_links_and_may_leave_out_delays(
    tmp_path: Path, long_job: Path
) -> None:
    flags = ("--workers", 2, "--servers", 1, "--link", "tcp", "--slow", "1=2x")
    with Command(
        long_job, *flags, "--rounds", 6, "--checkpoint-every", "3rounds", cwd=tmp_path
    ) as command:
        assert command.wait() == 0, command.stderr()
    fewer = ("--workers", 1, "--rounds", 8)
    refused = call_resume(*fewer, cwd=tmp_path)
    assert refused.returncode, refused.stderr
    assert refused.stderr == (
        "polyrhythm: --slow '1=2x': there is no worker 1; with --workers 1 the only worker has the"
        " number 0; give --no-slowdowns to leave out the slowdowns of the old run\n"
    )
    resume(tmp_path, *fewer, "--no-slowdowns")
    journal = read_journal(tmp_path / "runs" / "resumed" / "journal.jsonl")
    assert {line["link"] for line in journal if line["what"] == "linked"} == {"tcp"}
