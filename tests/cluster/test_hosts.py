"""One job on several machines: `train` on the first, `server` and `worker` on the others."""

import json
from pathlib import Path

from tests.cluster.machines import MODEL_NBYTES, ROUNDS, Machines, begin
from tests.cluster.namespaces import network
from tests.cluster.processes import wait_until


def test_a_server_and_workers_on_machines_of_their_own(machines: Machines) -> None:
    with network(4) as (first, second, near, far):
        far.shape("20mbit")
        lead = begin(machines, first, "--workers", 2)
        wait_until(lambda: machines.said("train").count("\n") >= 3, "train invites")
        invitation = machines.said("train").splitlines()[1:]
        assert f"polyrhythm server --connect {lead} --insecure" in invitation[0]
        assert f"once for each: polyrhythm worker job.py --connect {lead}" in invitation[1]

        everywhere = ("--host", "0.0.0.0", "--insecure")
        machines.start("server", second, "server", "--connect", lead, *everywhere)
        machines.start("near", near, "worker", "job.py", "--connect", lead, "--name", "near")
        wait_until(lambda: len(machines.noted("server-joined")) == 2, "both servers are there")
        machines.start("far", far, "worker", "job.py", "--connect", lead, "--name", "far")

        for name in ("train", "server", "near", "far"):
            assert machines.end_of(name) == 0, machines.said(name)
        assert far.sent_nbytes() > ROUNDS * MODEL_NBYTES
    assert f"s1 listens on {second.address}:" in machines.said("server")
    assert "left: the job reached its goal" in machines.said("server")
    assert {line["link"] for line in machines.noted("linked")} == {"tcp"}
    ended = machines.noted("ended")[0]
    assert not ended["failed"] and ended["rounds"] == ROUNDS
    result = json.loads((machines.cwd / "runs" / "run" / "result.json").read_text())
    assert result["folds"] == {"s0": ROUNDS, "s1": ROUNDS}
    assert result["contributions"] == 2 * ROUNDS


def test_a_server_that_other_machines_cannot_reach_is_reported(machines: Machines) -> None:
    """The server listens on its own machine only: a worker on another machine reports the addresses
    that it tried."""
    with network(3) as (first, second, third):
        lead = begin(machines, first, "--workers", 1)
        machines.start("server", second, "server", "--connect", lead, "--host", "127.0.0.1")
        machines.start("worker", third, "worker", "job.py", "--connect", lead)
        assert machines.end_of("worker") == 1
        wait_until(lambda: "listens on" in machines.said("server"), "the server says where")
        port = machines.said("server").rpartition("s1 listens on 127.0.0.1:")[2].strip()
        _, line = machines.said("worker").splitlines()
        assert f"could not reach s1 at 127.0.0.1:{port}: Connection refused" in line
        assert "--host" in line
        assert machines.alive("train") and machines.alive("server"), "others may still come"


def test_quantised_pushes_cross_the_network_with_a_quarter_of_the_bytes(machines: Machines) -> None:
    """The limit is larger than the contributions, because the worker also sends its initial
    parameters, the heads of frames, and acknowledgements of TCP."""
    with network(2) as (first, second):
        counts = ("--servers", 1, "--local-workers", 0, "--workers", 1, "--rounds", ROUNDS)
        open_to_all = ("--host", first.address, "--port", 7000, "--insecure", "--name", "run")
        machines.start("train", first, "train", "job.py", *counts, *open_to_all, "--push", "int8")
        wait_until(lambda: machines.noted("server-joined"), "the lead is there")
        machines.start("worker", second, "worker", "job.py", "--connect", f"{first.address}:7000")
        for name in ("train", "worker"):
            assert machines.end_of(name) == 0, machines.said(name)
        assert second.sent_nbytes() < (0.25 * ROUNDS + 1) * MODEL_NBYTES * 1.25
    result = json.loads((machines.cwd / "runs" / "run" / "result.json").read_text())
    assert 0.25 < result["bytes_pushed"] / (ROUNDS * MODEL_NBYTES) <= 0.27
    assert "stay exact" not in machines.said("worker")


def test_a_job_is_described_and_operated_from_another_machine(
    machines: Machines, tmp_path: Path
) -> None:
    """That machine has a copy of the secret, and no folder of the run."""
    with network(2) as (first, second):
        flags = ("--workers", 1, "--servers", 2, "--min-step", "50ms")
        open_to_all = ("--host", first.address, "--port", 7000, "--insecure", "--name", "run")
        machines.start("train", first, "train", "job.py", *flags, *open_to_all)
        wait_until(lambda: any(line["round"] for line in machines.noted("rounds")), "it trains")
        secret = tmp_path / "copy"
        secret.write_bytes((tmp_path / "runs" / "run" / "secret").read_bytes())
        secret.chmod(0o600)

        def ask(command: str, *args: object, status: int = 0) -> str:
            address = f"{first.address}:7000"
            machines.start(command, second, command, address, *args, "--secret-file", secret)
            assert machines.end_of(command) == status, machines.said(command)
            return machines.said(command, "err" if status else "out")

        status = json.loads(ask("status", "--json"))
        assert (status["run"], status["is"]) == ("run", "running") and status["rounds"] > 0
        assert "round 1 opened with 1 worker" in ask("story")
        assert ask("why")
        assert "checkpoint 1 of round" in ask("checkpoint")
        assert "s1" in ask("drain", "s1")
        assert machines.noted("drained")
        assert "stopped on request of" in ask("stop")
        assert machines.end_of("train") == 0, machines.said("train")
        assert "no job listens at" in ask("status", status=1)
