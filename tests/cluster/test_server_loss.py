"""The loss of servers: as many as a slice has replicas, one more than that, the lead's server, and
without replicas a server that has no slice, or no parameters yet."""

import os
import random
import signal
from pathlib import Path

import pytest

from polyrhythm.observe.reasons import in_words
from polyrhythm.wire.messages.reasons import Reason
from tests.cluster.job_servers import JobServers
from tests.cluster.job_workers import JobWorkers
from tests.cluster.jobs.ledger import ROWS
from tests.cluster.ledger_job import ADAGRAD, ADDITION, FEW, MOMENTUM, ONCE, finish, folded_with
from tests.cluster.processes import Command, call, last_word, wait_until
from tests.cluster.test_endings import SOON_S, assert_nothing_left, sockets_of

LEDGER = Path(__file__).parent / "jobs" / "ledger.py"
FLAGS = ("--workers", 2, "--timer", "1s", "--min-step", "100ms")


def start(
    cwd: Path, *flags: object, optimizer: str = ADDITION, columns: int = FEW
) -> tuple[Command, JobWorkers]:
    more = ("--set", f"columns={columns}", "--target-accuracy", 1.0, *folded_with(optimizer))
    more += ("--quiet",)
    command = Command(LEDGER, *FLAGS, *flags, *more, cwd=cwd)
    job_workers = JobWorkers(command, random.Random(0))
    job_workers.until(lambda: len(job_workers.books) == 2, "both train")
    job_workers.until_progress(10)
    return command, job_workers


def lines_of(command: Command) -> list[str]:
    """Return the command's lines on stderr, without those that report a lost server while the job
    continues."""
    assert "Traceback" not in command.stderr()
    lines = command.stderr().strip().splitlines()
    passing = (" died (killed by SIGKILL)", "; the job goes on with 2 of 3 servers")
    return [line for line in lines if not line.endswith(passing)]


@pytest.mark.guarantee("too-many", k=(1,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_losing_one_server_more_than_there_are_copies_ends_the_job(
    tmp_path: Path, sync: str
) -> None:
    command, _ = start(tmp_path, "--sync", sync, "--servers", 3, "--replicas", 1)
    with command:
        names, files = sockets_of(command), command.memory_files()
        servers = command.servers()
        for pid in servers[1:]:  # these two servers hold all copies of some slices
            os.kill(pid, signal.SIGSTOP)
        for pid in servers[1:]:
            os.kill(pid, signal.SIGKILL)
        assert command.wait() != 0
        (line,) = lines_of(command)
        assert "and with it all copies of" in line and "MB: the job cannot go on" in line
        (ended,) = command.journal("ended")
        assert ended["failed"] and in_words(Reason(ended["reason"], ended["fields"])) in line
        assert_nothing_left(command, names, files, SOON_S)


@pytest.mark.guarantee("servers-killed", k=(2,))
@pytest.mark.parametrize(("sync", "optimizer"), [("bsp", ADAGRAD), ("asp", MOMENTUM)])
def test_two_servers_lost_at_once_are_survived_with_two_copies(
    tmp_path: Path, sync: str, optimizer: str
) -> None:
    """After the loss, every acknowledged contribution is in every slice once, and so is its effect
    on the optimizer's state."""
    flags = ("--sync", sync, "--servers", 4, "--replicas", 2)
    command, job_workers = start(tmp_path, *flags, optimizer=optimizer, columns=ONCE)
    with command:
        victims = command.servers()[1:3]
        for pid in victims:  # kill both before either can react to the death of the other
            os.kill(pid, signal.SIGSTOP)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        job_workers.until(lambda: len(command.journal("server-lost")) == 2, "both are missed")
        job_workers.until_progress(20)
        finish(job_workers, optimizer)


@pytest.mark.guarantee("servers-cut", policies=("asp",), k=(1,))
def test_a_cut_link_between_two_servers_costs_one_server_and_no_contribution(
    tmp_path: Path,
) -> None:
    """The link between two servers is cut. Both servers live and send heartbeats to the lead. The
    lead must remove one of them, which rejoins as a new incarnation."""
    flags = ("--sync", "asp", "--servers", 3, "--replicas", 1, "--respawn")
    command, job_workers = start(tmp_path, *flags, optimizer=MOMENTUM, columns=ONCE)
    with command:
        job_servers = JobServers(job_workers, random.Random(0))
        job_workers.begin("servers", job_servers.cut_from_another(1))
        job_workers.until_calm()
        (lost,) = command.journal("server-lost")
        assert lost["server"] in (1, 2) and lost["reason"] == "unreachable"
        job_workers.until_progress(20)
        finish(job_workers, MOMENTUM)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_death_of_the_leads_server_ends_the_job(tmp_path: Path, replicas: int) -> None:
    command, _ = start(tmp_path, "--sync", "bsp", "--servers", 3, "--replicas", replicas)
    with command:
        names, files = sockets_of(command), command.memory_files()
        os.kill(command.servers()[0], signal.SIGKILL)
        assert command.wait() != 0
        line = last_word(lines_of(command))
        assert "server s0 died (killed by SIGKILL); the job ends: the lead ran in it" in line
        assert_nothing_left(command, names, files, SOON_S)


TINY = """
import torch


def main(worker):
    model = torch.nn.Linear(1, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    while not worker.stopped:
        model(torch.ones(2, 1)).sum().backward()
        optimizer.step(points=2)
"""
"""A job whose model has two slices."""


def test_without_replicas_only_the_loss_of_slices_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(TINY)
    flags = ("--workers", 1, "--servers", 4, "--rounds", 100_000, "--quiet")
    with Command("job.py", *flags, cwd=tmp_path) as command:
        command.await_round(1)
        pids = {line["server"]: line["pid"] for line in command.journal("server-joined")}
        (placed,) = command.journal("placed")
        assert sorted(placed["slices"]) == [0, 0, 1, 1]
        without, other = (placed["slices"].index(count, 1) for count in (0, 1))
        os.kill(pids[without], signal.SIGKILL)
        wait_until(lambda: command.journal("server-lost"), "the job goes on")
        command.await_round(max(line["round"] for line in command.journal("rounds")) + 5)
        os.kill(pids[other], signal.SIGKILL)
        assert command.wait() == 1
        *before, line = command.stderr().splitlines()
        died = "died (killed by SIGKILL)"
        assert line == f"polyrhythm: server s{other} {died}; the job ends: its slices are lost"
        assert f"polyrhythm: server s{without} {died}" in before


@pytest.mark.parametrize("respawn", [True, False])
def test_without_replicas_a_server_may_die_before_it_has_the_initial_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, respawn: bool
) -> None:
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(tmp_path / "crash-at"))
    (tmp_path / "crash-at").write_text("s1 took Place")
    (tmp_path / "job.py").write_text(TINY)
    flags = ["--workers", 2, "--servers", 2, "--rounds", 10]
    with Command("job.py", *flags, *["--respawn"] * respawn, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        (ended,) = command.journal("ended")
        assert ended["rounds"] == 10
        assert [line["server"] for line in command.journal("server-lost")] == [1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--servers", 2, "--replicas", 2),
            "--replicas is 2: each copy of a slice needs another server",
        ),
        (
            ("--servers", 1, "--replicas", 1),
            "--replicas is 1: each copy of a slice needs another server",
        ),
        (
            ("--servers", 2, "--replicas", -1),
            "--replicas is -1: each copy of a slice needs another",
        ),
        (("--servers", 2, "--replicas", 1, "--in-place"), "--in-place reads the server's own"),
    ],
)
def test_impossible_numbers_of_replicas_are_refused_on_one_line(
    tmp_path: Path, flags: tuple[object, ...], says: str
) -> None:
    done = call("train", "digits", *flags, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert says in line


@pytest.mark.guarantee("server-stopped", k=(1,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_stale_primary_is_refused_and_rejoins_as_a_new_incarnation(
    tmp_path: Path, sync: str
) -> None:
    """The server is stopped, the lead removes it, and it continues. It still acts as a primary, but
    its peers have another primary in its place and refuse it."""
    command, job_workers = start(
        tmp_path, "--sync", sync, "--servers", 3, "--replicas", 1, "--respawn"
    )
    with command:
        job_servers = JobServers(job_workers, random.Random(0))
        pid = job_servers.pids[1]
        job_workers.begin("s1", job_servers.stop(1))
        job_workers.until(lambda: job_servers.told("server-lost", 1), "its silence is noticed")
        job_workers.until_progress(10)
        job_workers.until_calm()
        assert job_servers.pids[1] != pid, "the old one has ended, and a new one has its seat"
        job_workers.until(
            lambda: any(line["promoted"].get("s1") for line in command.journal("rerouted")),
            "the new one is a primary again",
        )
        assert "s1 failed: the lead is gone" in command.stderr()
        job_workers.until_progress(10)
        (tmp_path / "finish").touch()
        assert command.wait() == 0, command.stderr()
    job_workers.read()
    assert max(int(name.rpartition("-")[2]) for name in job_workers.books) < ROWS


@pytest.mark.guarantee("nothing-left-over", policies=("bsp",), k=(1,))
def test_failovers_leave_no_sockets_segments_or_threads(tmp_path: Path) -> None:
    """The processes that stayed have as many sockets and threads as before. A slice that has moved
    lies in a segment of its own in every slot. So the first failovers may add segments, at most one
    per slice and slot. Later failovers add at most a spare slot, for a reader that was slow."""
    command, job_workers = start(
        tmp_path, "--sync", "bsp", "--servers", 3, "--replicas", 1, "--respawn"
    )
    with command:
        job_servers = JobServers(job_workers, random.Random(0))
        job_workers.until_progress(20)
        (placed,) = command.journal("placed")
        most, slices = max(placed["slices"]), sum(placed["slices"])
        first = belongings(job_servers, job_workers)
        spread = {
            name: {kind: n * (most if kind in MEMORY else 1) for kind, n in counts.items()}
            for name, counts in first.items()
        }

        def lose(number: int, before: dict[str, dict[str, int]]) -> None:
            job_workers.begin(f"s{number}", job_servers.kill(number))
            job_workers.until_calm()
            job_workers.until_progress(20)
            held: list[dict[str, dict[str, int]]] = []

            def given_back() -> bool:
                held[:] = [belongings(job_servers, job_workers)]
                return not more_than(held[0], before, slices)

            try:
                wait_until(given_back, "what the lost servers had is given back", pause_s=0.05)
            except AssertionError as error:
                raise AssertionError(f"{error}: {before} became {held[0]}") from None

        for number in (1, 2):
            lose(number, spread)
        moved = belongings(job_servers, job_workers)
        for number in (1, 2, 1):
            lose(number, moved)
        (tmp_path / "finish").touch()
        assert command.wait() == 0, command.stderr()


MEMORY = ("segments", "maps")
SPARE = 2
"""By how much a count may differ: a link may be opened or closed, and a thread may be about to end."""


def belongings(job_servers: JobServers, job_workers: JobWorkers) -> dict[str, dict[str, int]]:
    """Count the resources of the processes that live as long as the job: the lead's server and the
    workers."""
    pids = {
        "s0": job_servers.pids[0],
        **{name: job_workers.pid_of(name) for name in job_workers.books},
    }
    return {name: belongings_of(pid) for name, pid in pids.items()}


def belongings_of(pid: int) -> dict[str, int]:
    targets = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(os.readlink(entry))
        except FileNotFoundError:
            continue  # the descriptor was closed in the meantime
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {
        "sockets": sum(target.startswith("socket:") for target in targets),
        "segments": sum("memfd:polyrhythm" in target for target in targets),
        "maps": maps.count("memfd:polyrhythm"),
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
    }


def more_than(
    now: dict[str, dict[str, int]], before: dict[str, dict[str, int]], slices: int
) -> list[tuple[str, str]]:
    """What has grown by more than is allowed. Memory may grow by a slot, which has at most one segment
    for each slice of the model."""
    return [
        (name, kind)
        for name, counts in now.items()
        for kind, count in counts.items()
        if count > before[name][kind] + (slices if kind in MEMORY else SPARE)
    ]
