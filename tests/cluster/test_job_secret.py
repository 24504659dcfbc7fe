"""The job's secret with real processes and a real second user: which processes may join. The secret
may be in its own file only: in no other file and in no process listing."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.errors import LinkError
from polyrhythm.io.local import dial_local, host_identity
from polyrhythm.io.tcp import tcp_link
from polyrhythm.runtime.net.handshake import acceptor, greet
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.messages.reasons import failed, refused
from polyrhythm.wire.proof import Secret, mac
from tests.cluster.handshakes import HOST, Peer, frame, reason_in, secret_of, with_nonce
from tests.cluster.processes import Command, call, wait_until
from tests.commands.start import run, start

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can start another user's process")
GATED = """
import os, time
import torch


def main(worker):
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        while worker.version == 10 and not os.path.exists("go"):
            time.sleep(0.1)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
"""
ROUNDS = 20


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A job over TCP that waits in the middle of its training. In every test its two workers must
    reach the goal, and neither may leave before. The console script is executed, so that the
    command line and the environment in /proc are those of a user's command."""
    folder = tmp_path_factory.mktemp("secret")
    (folder / "gated.py").write_text(GATED)
    flags = ["--workers", 2, "--servers", 2, "--rounds", ROUNDS, "--timer", "off", "--link", "tcp"]
    with Command("gated.py", *flags, "--json", cwd=folder, fresh=True) as command:
        command.await_round(0)
        yield command
        (folder / "go").touch()
        assert command.wait() == 0, command.stderr()
        assert [line["rounds"] for line in command.journal("ended")] == [ROUNDS]
        for name in ("worker-0", "worker-1"):
            assert command.left(name) == ["done"]
            assert len(command.joined(name)) == 1


def address_of(job: Command) -> tuple[str, int]:
    host, _, port = job.address().rpartition(":")
    return host, int(port)


def joining(job: Command, *flags: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a `polyrhythm worker` that must not be admitted."""
    arguments = ("worker", "--connect", job.address(), *flags)
    return run(*arguments, cwd=job.cwd, env={**os.environ, **env})


def one_line(done: subprocess.CompletedProcess[str], status: int = 1) -> str:
    *before, line = done.stderr.splitlines()
    assert done.returncode == status
    assert all(other.startswith("importing torch, then connecting ") for other in before), before
    return line


# -- the secret itself ---------------------------------------------------------------------------


def test_the_secret_lies_in_a_file_that_only_its_user_can_read(job: Command) -> None:
    mode = (job.run_dir / "secret").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert len(secret_of(job.run_dir).text) == 64


def test_only_the_user_can_enter_the_index_and_read_its_entries(job: Command) -> None:
    folder = Path(os.environ["XDG_STATE_HOME"]) / "polyrhythm" / "jobs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    _, port = address_of(job)
    (entry,) = folder.glob(f"{port}-*.json")
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    # the entry has the secret itself, because the folder of the run may be deleted while the job runs
    assert secret_of(job.run_dir).text in entry.read_text()


def test_the_secret_is_in_no_other_file_of_the_run(job: Command) -> None:
    """The secret is not in the job's description, the journal or a trace."""
    secret = secret_of(job.run_dir).text.encode()
    files = [path for path in job.run_dir.rglob("*") if path.is_file() and path.name != "secret"]
    assert {"job.json", "journal.jsonl", "s0.trace"} <= {path.name for path in files}
    for path in files:
        data = path.read_bytes()
        assert secret not in data and bytes.fromhex(secret.decode()) not in data, path


def test_no_process_shows_the_secret_in_its_command_line_or_environment(job: Command) -> None:
    secret = secret_of(job.run_dir).text.encode()
    pids = job.pids()
    assert len(pids) >= 6
    for pid in pids:
        for part in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{pid}/{part}").read_bytes()


# -- joining -------------------------------------------------------------------------------------


def test_a_worker_of_the_same_user_on_the_same_host_needs_only_the_address(job: Command) -> None:
    joiner = job.join("--name", "friend")
    wait_until(lambda: job.joined("friend"), "it joined")
    os.kill(joiner.pid, signal.SIGTERM)
    assert joiner.wait(30) == 128 + signal.SIGTERM


@pytest.mark.parametrize("way", ["file", "variable"])
def test_on_another_host_the_secret_comes_from_a_file_or_the_environment(
    job: Command, tmp_path: Path, way: str
) -> None:
    """The worker gets another state folder, which has no index of running jobs. So it must find the
    secret as a worker on another host does."""
    copy = tmp_path / "copy"
    copy.touch(0o600)
    copy.write_text((job.run_dir / "secret").read_text())
    given = {"POLYRHYTHM_SECRET": secret_of(job.run_dir).text} if way == "variable" else {}
    flags = ["--secret-file", copy] if way == "file" else []
    name = f"by-{way}"
    process = start(
        *("worker", "gated.py", "--connect", job.address(), "--name", name, *flags),
        cwd=job.cwd,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), **given},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: job.joined(name), "it joined")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait(10)


def test_without_a_secret_the_command_says_where_to_find_it(job: Command, tmp_path: Path) -> None:
    line = one_line(joining(job, XDG_STATE_HOME=str(tmp_path)))
    assert line.startswith(f"polyrhythm: no secret is known for {job.address()}")
    assert "--secret-file FILE" in line and "$POLYRHYTHM_SECRET" in line


def test_a_wrong_secret_is_reported_on_one_line(job: Command) -> None:
    line = one_line(joining(job, POLYRHYTHM_SECRET="f" * 64))
    assert "does not know this secret" in line
    assert "f" * 16 not in line


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        (0o644, "a" * 64, "can be read or changed by other users"),
        (0o640, "a" * 64, "can be read or changed by other users"),
        (0o600, "", "is empty"),
        (0o600, "\n", "is empty"),
        (0o600, "short", "does not contain the secret"),
        (0o600, "two\nlines" * 8, "does not contain the secret"),
        (0o600, None, "cannot read the secret file"),
    ],
)
def test_a_secret_file_that_cannot_be_used_is_reported_on_one_line(
    tmp_path: Path, mode: int, text: str | None, expected: str
) -> None:
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    for command in ("worker", "server"):
        done = call(command, "--connect", f"{HOST}:9", "--secret-file", path, cwd=tmp_path)
        line = one_line(done, status=2)
        assert expected in line
        assert not text or len(text) < 10 or text not in line


def test_a_job_that_cannot_write_the_index_says_how_to_join_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job trains although it cannot write the index."""
    (tmp_path / "state").write_text("a file is in the way")
    (tmp_path / f"polyrhythm-{os.getuid()}").write_text("and another")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    flags = ("--workers", 1, "--servers", 1, "--rounds", 3, "--name", "run")
    done = call("train", "digits", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    secret_file = tmp_path / "runs" / "run" / "secret"
    assert f"--secret-file {secret_file}" in done.stderr + done.stdout


# -- strangers -----------------------------------------------------------------------------------


def hello(name: str = "stranger", **fields: object) -> m.WorkerHello:
    return m.WorkerHello(name=name, job="", identity="", digests=(Digest.XXH3,), **fields)


@pytest.mark.parametrize("server", [0, 1], ids=["lead", "server"])
def test_a_peer_without_the_secret_is_refused_and_changes_nothing(
    job: Command, server: int
) -> None:
    port = job.ports(job.servers()[server])[0]
    with Peer(port) as peer:
        said = with_nonce(hello("eve", worker=0, incarnation=7))
        peer.send(said)
        challenge = peer.receive()
        assert isinstance(challenge, m.Challenge)
        peer.send(m.Proof(proof=mac(Secret("e" * 64), "opener", said, challenge)))
        assert "does not know this job's secret" in reason_in(peer.rest())
    assert not job.joined("eve")


@pytest.mark.parametrize("server", [0, 1], ids=["lead", "server"])
def test_messages_before_the_proof_are_not_used(job: Command, server: int) -> None:
    """Together with its hello, and before any proof, the peer sends a message that would end the
    job. The server must ignore this message."""
    port = job.ports(job.servers()[server])[0]
    with Peer(port) as peer:
        said = with_nonce(hello("worker-0", worker=0, incarnation=1))
        leave = m.Leave(worker=0, incarnation=1, reason=failed("impersonated"), failed=True)
        peer.send(said, leave, m.Stop(reason=refused("stop")))
        heard = peer.rest()
    assert "has not proven that it knows the secret sent Leave" in reason_in(heard)
    assert not any(isinstance(message, m.HelloReply) for message in heard)


def as_nobody(code: str, *args: object) -> subprocess.Popen[str]:
    """Run a program as another user of this machine, with an interpreter that every user may
    execute."""
    return subprocess.Popen(
        [shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable, "-c", code]
        + [str(arg) for arg in args],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


CALL = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=15)
sock.sendall(bytes.fromhex(sys.argv[2]))
heard = b""
while part := sock.recv(65536):
    heard += part
print(heard.hex())
"""
READ = """
import sys
for path in sys.argv[1:]:
    try:
        open(path).read()
    except OSError as error:
        print(error.errno)
    else:
        print("read")
"""
SQUAT_TCP = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(listener.getsockname()[1], flush=True)
sock, _ = listener.accept()
heard = sock.recv(65536)
sock.sendall(bytes.fromhex(sys.stdin.readline()))
sock.settimeout(15)
print(len(heard), len(sock.recv(65536)), flush=True)
"""
SQUAT_LOCAL = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
print("listening", flush=True)
sock, _ = listener.accept()
print(len(sock.recv(65536)), flush=True)
"""


@AS_ROOT
def test_another_user_cannot_read_the_secret(job: Command) -> None:
    folder = Path(os.environ["XDG_STATE_HOME"]) / "polyrhythm" / "jobs"
    entry = next(folder.glob("*.json"))
    process = as_nobody(READ, job.run_dir / "secret", entry)
    out, _ = process.communicate(timeout=30)
    assert out.split() == ["13", "13"]


@AS_ROOT
@pytest.mark.parametrize("server", [0, 1], ids=["lead", "server"])
@pytest.mark.parametrize(
    ("name", "incarnation"), [("eve", 0), ("worker-0", 0), ("worker-0", 1), ("worker-0", 2)]
)
def test_another_user_can_neither_join_nor_be_worker_0_nor_evict_it(
    job: Command, server: int, name: str, incarnation: int
) -> None:
    port = job.ports(job.servers()[server])[0]
    said = with_nonce(hello(name, worker=0, incarnation=incarnation))
    guess = m.Proof(proof=os.urandom(32))
    process = as_nobody(CALL, port, (frame(said) + frame(guess)).hex())
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    heard = bytes.fromhex(out.strip())
    assert b"does not know this job's secret" in heard
    assert not job.joined("eve")
    assert len(job.joined("worker-0")) == 1 and not job.left("worker-0")


@AS_ROOT
def test_a_worker_sends_nothing_to_another_users_process_that_took_the_port(
    job: Command, tmp_path: Path
) -> None:
    """The other user's process answers a worker's hello with a challenge of its own, and then with
    a HelloReply."""
    squatter = as_nobody(SQUAT_TCP, 0)
    assert squatter.stdout is not None and squatter.stdin is not None
    try:
        port = int(squatter.stdout.readline())
        address = m.Address(HOST, port, "", "")
        challenge = m.Challenge(nonce=bytes(32), name="s0", job="", proof=bytes(32))
        greeting = m.HelloReply(name="s0", digest=int(Digest.XXH3), address=address)
        squatter.stdin.write((frame(challenge) + frame(greeting)).hex() + "\n")
        squatter.stdin.flush()
        secret = job.run_dir / "secret"
        done = run("worker", "--connect", f"{HOST}:{port}", "--secret-file", secret, cwd=tmp_path)
        assert "does not know this secret" in one_line(done)
        hello_nbytes, then_nbytes = map(int, squatter.stdout.readline().split())
        assert hello_nbytes > 0 and then_nbytes == 0
    finally:
        squatter.kill()
        squatter.communicate()


@AS_ROOT
def test_a_local_socket_of_another_user_is_not_used() -> None:

    name = f"polyrhythm-test-{os.getpid()}"
    squatter = as_nobody(SQUAT_LOCAL, name)
    assert squatter.stdout is not None
    try:
        assert squatter.stdout.readline() == "listening\n"
        with pytest.raises(LinkError, match="belongs to another user of this machine"):
            dial_local(name, "s1")
        assert squatter.stdout.readline() == "0\n"
    finally:
        squatter.kill()
        squatter.communicate()


@AS_ROOT
def test_a_local_socket_refuses_other_users(job: Command) -> None:
    code = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(15)
sock.connect("\\0" + sys.argv[1])
try:
    sock.sendall(bytes.fromhex(sys.argv[2]))
    print(len(sock.recv(65536)))
except (BrokenPipeError, ConnectionResetError):
    print(0)
"""
    for pid in job.servers():
        process = as_nobody(code, job.local_names(pid)[0], frame(hello("eve")).hex())
        out, err = process.communicate(timeout=30)
        assert out == "0\n", err


# -- files that a peer names ---------------------------------------------------------------------

PLANTED = """
import pathlib
pathlib.Path(__file__).with_suffix(".ran").touch()


def main(worker):
    pass
"""


def test_a_worker_does_not_run_a_file_that_only_a_peer_names(tmp_path: Path) -> None:
    """The peer knows the secret and claims to be the same user on the same host, as any process of
    this host can do. The worker's own command line names no file."""

    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED)
    secret = Secret("5" * 64)
    spec = m.JobSpec(job="j", name="planted.py", path=str(planted))
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(60)
        port = listener.getsockname()[1]
        process = start(
            *("worker", "--connect", f"{HOST}:{port}"),
            cwd=tmp_path,
            env={**os.environ, "POLYRHYTHM_SECRET": secret.text},
            stderr=subprocess.PIPE,
        )
        try:
            sock, _ = listener.accept()
            with sock:
                _lead_that_names_a_file(sock, secret, spec, port, host_identity())
                _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 1
    assert "the code of job planted.py is not on this machine" in err.splitlines()[-1]
    assert not planted.with_suffix(".ran").exists()


def _lead_that_names_a_file(
    sock: socket.socket, secret: Secret, spec: m.JobSpec, port: int, identity: str
) -> None:

    link = tcp_link(sock, "worker")
    here = acceptor(link, "s0", "j", secret)
    said, _ = link.receive()
    challenge = here.take(said)
    assert challenge is not None
    link.send(challenge)
    here.take(link.receive()[0])
    assert here.hello is not None
    address = m.Address(HOST, port, "", identity)
    greet(link, here.hello, "s0", address, "auto", spec)
    servers = (m.ServerSpec(0, address, 1),)
    link.send(m.Admitted(term=1, worker=0, incarnation=1, job=spec, servers=servers))
    try:
        while True:
            link.receive()  # this call ends when the worker ends and closes the link
    except LinkError:
        return


def test_on_the_same_host_a_worker_runs_the_file_given_to_train(job: Command) -> None:
    """The worker starts in another folder, where the relative name does not exist."""
    elsewhere = job.cwd / "elsewhere"
    elsewhere.mkdir()
    process = start(
        *("worker", "--connect", job.address(), "--name", "from-elsewhere"),
        cwd=elsewhere,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: job.joined("from-elsewhere"), "it joined")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait(10)


def test_a_job_that_has_ended_is_removed_from_the_index(tmp_path: Path) -> None:
    state = Path(os.environ["XDG_STATE_HOME"]) / "polyrhythm" / "jobs"
    done = call("train", "digits", "--rounds", 3, "--name", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job_id = json.loads((tmp_path / "runs" / "run" / "job.json").read_text())["job"]
    assert not [path for path in state.iterdir() if re.search(job_id, path.name)]
