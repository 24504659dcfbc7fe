"""If `polyrhythm stop` cannot stop a run, it says why in one line and ends with status 1."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from polyrhythm.cli import lead
from polyrhythm.errors import LinkError, RunError, UsageError
from polyrhythm.io.index import JobIndex, ListedJob
from polyrhythm.io.secretfile import create_secret
from polyrhythm.observe import runs
from polyrhythm.wire.proof import Secret

Call = Callable[..., Result]
Write = Callable[..., Path]


def listening(port: int, host: str = "127.0.0.1") -> dict[str, Any]:
    return {"at_s": 0.0, "what": "listening", "host": host, "port": port, "job": "x"}


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def running(write_run: Write) -> Path:
    """A run whose command is alive, but no process listens on its port."""
    path = write_run("now", [listening(closed_port())])
    runs.write_process(path)
    create_secret(path / "secret")
    return path


def refused(call: Call, *args: object) -> str:
    result = call("stop", *args)
    assert result.exit_code == 1 and isinstance(result.exception, RunError | LinkError)
    assert result.exception.status == 1
    text = str(result.exception)
    assert "\n" not in text
    return text


def test_without_a_name_the_running_jobs_are_listed(
    call: Call, running: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A request changes the job, so it is sent to no job that the user has not named."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_run("then", [listening(1)])
    for command in ("stop", "checkpoint"):
        error = call(command).exception
        assert isinstance(error, UsageError) and error.status == 2
        assert str(error) == "RUN is missing: give the name of a running job: now"
    text = str(call("stop", "--runs-dir", tmp_path).exception)
    assert text == "RUN is missing, and no job of yours is running on this machine"


def test_a_job_that_runs_in_another_folder_is_listed(
    call: Call, running: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    elsewhere = tmp_path / "elsewhere" / "long"
    entry = ListedJob(
        host="127.0.0.1", port=1, job="x", run_dir=str(elsewhere), secret=Secret(bytes(32))
    )
    with JobIndex(os.environ).registered(entry):
        assert str(call("stop").exception).endswith("a running job: now or long")


def test_an_unknown_run(call: Call, running: Path) -> None:
    assert refused(call, "before") == "there is no run 'before' in runs: see 'polyrhythm runs'"


def test_a_run_that_has_ended(call: Call, write_run: Write) -> None:
    fields = {"goal": "rounds", "rounds": 9}
    ended = {"at_s": 1.0, "what": "ended", "reason": "goal", "fields": fields, "rounds": 9}
    write_run("then", [listening(1), ended])
    assert refused(call, "then").startswith(
        "run then does not run any more: ended: the job reached"
    )


def test_a_run_that_was_killed(call: Call, write_run: Write) -> None:
    path = write_run("then", [listening(1)])
    assert "does not run any more: ended without a word" in refused(call, path)


def test_a_run_that_is_starting(call: Call, write_run: Write) -> None:
    runs.write_process(write_run("new", []))
    assert refused(call, "new") == ("run new is starting: its lead does not listen yet; try again")


@pytest.mark.parametrize("where", ["now", "runs/now"])
def test_a_run_whose_lead_cannot_be_reached(call: Call, running: Path, where: str) -> None:
    text = refused(call, where)
    assert text.startswith("the lead of run now cannot be reached: could not reach lead at 127.")


def test_a_run_of_another_user(call: Call, running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    monkeypatch.setattr(lead.os, "getuid", lambda: uid + 1)
    assert "belongs to another user" in refused(call, "now")


def test_a_run_of_another_host(call: Call, running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.socket, "gethostname", lambda: "elsewhere")
    assert "run now cannot be reached from here: it was started on" in refused(call, "now")


def test_an_address_at_which_no_job_of_this_user_listens(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # the socket is bound but does not listen, so connections to its port are refused
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert refused(call, address).startswith(f"no job listens at {address}: it has ended")
        bound.listen()
        assert refused(call, address).startswith(f"no secret is known for {address}")


def test_a_lead_that_listens_on_every_address_is_reached_on_this_machine(
    running: Path,
) -> None:
    found = runs.load_run(running)
    for host, reached in (("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.5", "10.0.0.5")):
        found.state.listening = f"{host}:7000"
        assert lead._address_of(found) == (reached, 7000)


def test_the_run_as_which_a_job_continues_after_a_loss_is_named(
    call: Call, write_run: Write
) -> None:
    ended = {"at_s": 1.0, "what": "ended", "reason": "deserted", "failed": True}
    write_run("mine", [ended], store="/store")
    other = write_run("other", [], resume="/elsewhere", store="/elsewhere")
    runs.write_process(other)
    assert "continues" not in refused(call, "mine")
    again = write_run("mine-2", [], resume="/store", store="/store")
    runs.write_process(again)
    assert refused(call, "mine").endswith("; the job continues as run mine-2: give that name")
