"""`polyrhythm stop` ends a running job in an orderly way, and no other peer can do that.

The tests run with two policies. With POLYRHYTHM_TORTURE they run with all policies.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.io.local import dial_local
from polyrhythm.runtime.net.handshake import introduce, offers
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.messages.reasons import Reason
from polyrhythm.wire.proof import Hello, Secret, mac
from tests.cluster.handshakes import Peer, frame, reason_in, secret_of, with_nonce
from tests.cluster.operators import commands_reach
from tests.cluster.processes import SHOWN_ELSEWHERE, Command, call, wait_until
from tests.cluster.test_job_secret import AS_ROOT, CALL, NOBODY, as_nobody
from tests.cluster.test_orderly_stop import WORKERS, await_training, over, saved, start
from tests.commands.start import Process
from tests.commands.start import start as start_command

POLICIES = (
    *("bsp", "asp"),
    *(
        pytest.param(s, marks=SHOWN_ELSEWHERE)
        for s in ("psp", "fsp", "ssp:3", "ssp-restart:3", "bspb", "bspv")
    ),
)
LONG_S = 60
STOP = m.OperatorRequest(what="stop", at_once=True)


def ask_to_stop(command: Command) -> Process:
    """Start `polyrhythm stop run`. Its output goes to the files stop.out and stop.err."""
    with (command.cwd / "stop.out").open("w") as out, (command.cwd / "stop.err").open("w") as err:
        return start_command("stop", "run", cwd=command.cwd, stdout=out, stderr=err)


def ended_by_operator(command: Command) -> bool:
    """Return whether `train` ended with status 0 and the journal says that an operator stopped the
    job."""
    assert command.wait(LONG_S) == 0, command.stderr()
    assert "failed" not in command.stderr() and "Traceback" not in command.stderr()
    (ended,) = command.journal("ended")
    assert ended["reason"] == "stopped" and not ended["failed"]
    wait_until(lambda: not command.pids(), "every process ended", LONG_S)
    return "@" in ended["fields"]["by"]


# -- stops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", POLICIES)
def test_stop_ends_the_job_in_order_and_waits_for_its_end(tmp_path: Path, sync: str) -> None:
    with start(tmp_path, sync, "--set", "gate=1") as command:
        await_training(command)
        stop = ask_to_stop(command)
        wait_until(lambda: over(command), "every worker left its loop")
        wait_until(lambda: "press Ctrl-C twice" in command.stderr(), "train says that it waits")
        assert stop.poll() is None and not saved(command)
        (tmp_path / "go").touch()
        assert stop.wait(LONG_S) == 0
        assert command.process.poll() == 0, "stop returned before train had ended"
        assert "run run: stopped on request of " in (tmp_path / "stop.out").read_text()
        assert f"waiting for {WORKERS} workers to leave" in (tmp_path / "stop.err").read_text()
        assert ended_by_operator(command)
        assert len(saved(command)) == WORKERS, "the code after the loop did not run"
        assert "a stop was requested by " in call("story", cwd=tmp_path).stdout
        assert "stopped" in call("runs", cwd=tmp_path).stdout
        again = call("stop", "run", cwd=tmp_path)
        assert again.returncode == 1 and again.stderr.count("\n") == 1
        assert "does not run any more: stopped on request of" in again.stderr


def test_stop_by_address_without_waiting(tmp_path: Path) -> None:
    with start(tmp_path, "bsp", "--set", "gate=1") as command:
        await_training(command)
        secret = ("--secret-file", command.run_dir / "secret")
        stop = call("stop", command.address(), "--no-wait", *secret, cwd=tmp_path)
        assert stop.returncode == 0 and "the job stops; waiting for" in stop.stdout, stop.stderr
        wait_until(lambda: over(command), "every worker left its loop")
        command.assert_alive()
        (tmp_path / "go").touch()
        assert ended_by_operator(command)
        assert len(saved(command)) == WORKERS


def test_commands_reach_a_job_whose_folder_is_elsewhere(tmp_path: Path) -> None:
    with start(tmp_path, "bsp") as command:
        await_training(command)
        commands_reach(command.address(), command.run_dir / "secret", tmp_path / "operator")
        assert ended_by_operator(command)


def test_stop_now_does_not_wait_for_the_code_after_the_loop(tmp_path: Path) -> None:
    with start(tmp_path, "bsp", "--set", "gate=1") as command:
        await_training(command)
        first = call("stop", "run", "--no-wait", cwd=tmp_path)
        assert first.returncode == 0, first.stderr
        wait_until(lambda: over(command), "every worker left its loop")
        stop = call("stop", "run", "--now", cwd=tmp_path)
        assert stop.returncode == 0, stop.stderr
        assert ended_by_operator(command)
        assert not saved(command), "the code after the loop was still waiting"


def test_two_signals_end_a_job_that_an_operator_stops(tmp_path: Path) -> None:
    with start(tmp_path, "bsp", "--set", "gate=1") as command:
        await_training(command)
        call("stop", "run", "--no-wait", cwd=tmp_path)
        wait_until(lambda: "press Ctrl-C twice" in command.stderr(), "train says that it waits")
        for _ in range(2):
            os.kill(command.process.pid, signal.SIGINT)
            time.sleep(0.1)  # without a pause, the process could receive two signals as one
        assert command.wait(LONG_S) == 128 + signal.SIGINT
        assert not saved(command)


def test_a_lead_that_dies_while_the_job_stops_is_named_by_both_commands(tmp_path: Path) -> None:
    """The lead dies when the workers have the final parameters, but still run the code after their
    loops."""
    with start(tmp_path, "bsp", "--set", "gate=1") as command:
        await_training(command)
        stop = ask_to_stop(command)
        wait_until(lambda: over(command), "every worker left its loop")
        os.kill(command.servers()[0], signal.SIGKILL)
        (tmp_path / "go").touch()
        assert command.wait(LONG_S) == 1
        assert "server s0 died (killed by SIGKILL): the lead ran in it" in command.stderr()
        assert len(saved(command)) == WORKERS
        assert stop.wait(LONG_S) == 1
        told = (tmp_path / "stop.err").read_text().splitlines()[-1]
        assert "run run does not run any more: failed: " in told


# -- peers that may not stop a job -----------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A job that no peer in these tests may stop. After the tests an operator stops it, and its
    workers end their loops and leave."""
    with start(tmp_path_factory.mktemp("operator"), "bsp", "--link", "tcp") as command:
        await_training(command)
        yield command
        assert not command.journal("stopping")
        assert call("stop", "run", cwd=command.cwd).returncode == 0
        assert ended_by_operator(command)
        assert len(saved(command)) == WORKERS


def hello(**fields: Any) -> m.OperatorHello:
    return m.OperatorHello(**{"name": "eve", "job": "", "digests": (Digest.XXH3,), **fields})


def port_of(job: Command, server: int = 0) -> int:
    return job.ports(job.servers()[server])[0]


def test_a_stranger_cannot_stop_the_job(job: Command) -> None:
    with Peer(port_of(job)) as peer:
        said = with_nonce(hello())
        peer.send(said)
        challenge = peer.receive()
        assert isinstance(challenge, m.Challenge)
        peer.send(m.Proof(proof=mac(Secret("e" * 64), "opener", said, challenge)))
        assert "does not know this job's secret" in reason_in(peer.rest())
    with Peer(port_of(job)) as peer:
        peer.send(with_nonce(hello()), STOP)
        assert "has not proven that it knows the secret sent Operator" in reason_in(peer.rest())


@AS_ROOT
def test_another_user_cannot_stop_the_job(job: Command) -> None:
    guess = m.Proof(proof=os.urandom(32))
    process = as_nobody(CALL, port_of(job), (frame(with_nonce(hello())) + frame(guess)).hex())
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert b"does not know this job's secret" in bytes.fromhex(out.strip())


@AS_ROOT
def test_stop_names_the_user_of_another_users_run(job: Command) -> None:
    secret = job.run_dir / "secret"
    os.chown(secret, NOBODY, NOBODY)
    try:
        stop = call("stop", "run", cwd=job.cwd)
    finally:
        os.chown(secret, os.getuid(), os.getgid())
    assert stop.returncode == 1 and stop.stderr.count("\n") == 1
    assert "run run belongs to another user" in stop.stderr


@pytest.mark.parametrize("name", ["worker", "server"])
def test_a_member_without_an_operators_hello_cannot_stop_the_job(job: Command, name: str) -> None:
    """A worker that was admitted, or a server that said hello, sends the request to stop. The lead
    refuses it."""
    address = m.Address("127.0.0.1", 9, "", "")
    said: Hello = m.WorkerHello(name="mallory", job="", identity="", digests=(Digest.XXH3,))
    if name == "server":
        said = m.ServerHello(
            server=7, name="s7", job="", address=address, identity="", digests=(Digest.XXH3,)
        )
    with Peer(port_of(job)) as peer:
        peer.prove(said, secret_of(job.run_dir))
        if name == "worker":
            while not isinstance(peer.receive(), m.Admitted):
                pass
        peer.send(STOP)
        told = [x for x in peer.rest() if isinstance(x, m.Refusal)]
        assert told, "the link was closed without a reason"
    assert not job.journal("stopping")


def test_an_operator_cannot_send_a_members_messages(job: Command) -> None:
    with Peer(port_of(job)) as peer:
        peer.prove(hello(), secret_of(job.run_dir))
        peer.send(m.Leave(worker=0, incarnation=1))
        assert "in the name of another process" in reason_in(peer.rest())
    assert not job.left("worker-0")


def test_a_server_that_does_not_lead_refuses_operators(job: Command) -> None:
    with Peer(port_of(job, 1)) as peer:
        peer.prove(hello(), secret_of(job.run_dir))
        assert "an operator must connect to the lead" in reason_in(peer.rest())


def test_an_operator_of_the_same_user_needs_no_secret_on_the_local_socket(job: Command) -> None:
    (name,) = job.local_names(job.servers()[0])
    link = dial_local(name, "lead")
    try:
        introduce(link, hello(digests=offers("auto", link.kind)))
        link.send(m.OperatorRequest(what="dance"))
        while not isinstance(told := link.receive()[0], m.Refusal):
            assert isinstance(told, m.Alive)
        assert told.reason == Reason("unknown-request", {"what": "dance"})
    finally:
        link.close()
        link.dispose()
