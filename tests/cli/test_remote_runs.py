"""`status`, `why`, `story` and requests by the address of a job: the lead sends its journal page by
page to whoever has the secret of the job."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from polyrhythm.cli import lead as leads
from polyrhythm.observe.journal import FileJournal
from polyrhythm.observe.runs import JOURNAL
from polyrhythm.runtime.net.acceptor import Listeners
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.operator import MOST_PAGE_NBYTES
from polyrhythm.wire.proof import Secret

Call = Callable[..., Result]
JOB = m.JobSpec(job="j-1", name="digits", workers=2, rounds=50)


class Lead:
    """A lead that listens on a port of this machine, in a job that waits for its workers."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.listeners = Listeners("127.0.0.1", 0)
        address = self.listeners.address
        self.address = f"{address.host}:{address.port}"
        self.journal = FileJournal(run_dir / JOURNAL)
        self.secret = run_dir.parent / "secret"
        self.secret.write_text("s" * 32)
        self.secret.chmod(0o600)
        options = NodeOptions(check=True, secret=Secret("s" * 32), run_dir=str(run_dir))
        self.node = ServerNode(
            0, JOB, address, lead=True, options=options, journal=self.journal, shared=False
        )
        self.node.listen(self.listeners)

    def close(self) -> None:
        self.node.close()
        self.listeners.close()
        self.journal.close()


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[Lead]:
    made = Lead(tmp_path / "far" / "run")
    yield made
    made.close()


def by_address(call: Call, lead: Lead, command: str, *args: object) -> Result:
    return call(command, lead.address, "--secret-file", lead.secret, *args)


def one_line(result: Result) -> str:
    assert result.exit_code, result.output
    return str(result.exception)


def test_a_running_job_is_described_by_its_address(call: Call, lead: Lead) -> None:
    lead.journal.note("joined", worker=0, name="far-away", epoch=1)
    status = json.loads(by_address(call, lead, "status", "--json").stdout)
    assert (status["run"], status["is"]) == ("run", "running")
    assert [member["name"] for member in status["members"]] == ["far-away"]
    shown = by_address(call, lead, "status")
    assert shown.stdout.startswith("run: running\n") and "1 of 2 workers joined" in shown.stdout
    assert "run run is in" not in shown.output, "the folder is on another machine"
    assert "far-away" in by_address(call, lead, "story").stdout
    assert by_address(call, lead, "story", "--worker", "far-away").exit_code == 0
    why = json.loads(by_address(call, lead, "why", "--json").stdout)
    assert (why["run"], why["is"]) == ("run", "running")


def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[leads.Lead, m.OperatorRequest]]:
    """The requests that commands send from now on, and the leads to which they send them."""
    asked: list[tuple[leads.Lead, m.OperatorRequest]] = []

    def note(found: leads.Lead, request: m.OperatorRequest) -> Iterator[m.OperatorAnswer]:
        asked.append((found, request))
        return ask(found, request)

    ask = leads.ask
    monkeypatch.setattr(leads, "ask", note)
    return asked


def test_a_long_journal_is_read_in_pages(
    call: Call, lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(monkeypatch)
    number = 0
    while (lead.run_dir / JOURNAL).stat().st_size < 2.5 * MOST_PAGE_NBYTES:
        lead.journal.note("stopping", by=f"anna-{number}@{'h' * 900}")
        number += 1
    told = json.loads(by_address(call, lead, "story", "--json").stdout)["story"]
    assert sum("a stop was requested by anna-" in line for line in told) == number
    assert [request.at for _, request in asked] == [0, MOST_PAGE_NBYTES, 2 * MOST_PAGE_NBYTES]


def test_a_wrong_secret_is_reported_in_one_line(call: Call, lead: Lead) -> None:
    lead.secret.write_text("x" * 32)
    for command in ("status", "why", "story", "checkpoint", "stop"):
        said = one_line(by_address(call, lead, command))
        assert "does not know this secret" in said and "\n" not in said


def test_an_unknown_secret_is_reported_in_one_line(
    call: Call, lead: Lead, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "--secret-file FILE" in one_line(call("status", lead.address))


@pytest.mark.parametrize("command", ["status", "why", "story", "checkpoint", "stop", "drain"])
def test_no_job_at_the_address_is_reported_in_one_line(
    call: Call, lead: Lead, command: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    more = ["s1"] if command == "drain" else []
    said = one_line(call(command, f"127.0.0.1:{port}", *more, "--secret-file", lead.secret))
    assert said.startswith(f"no job listens at 127.0.0.1:{port}: it has ended, or")


def test_what_is_neither_a_run_nor_an_address_is_refused(call: Call, lead: Lead) -> None:
    assert "there is no run 'nowhere'" in one_line(call("status", "nowhere"))


def test_a_journal_that_cannot_be_read_is_reported(
    call: Call, lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lead.journal, "page", fail)
    said = one_line(by_address(call, lead, "status"))
    assert said.endswith("the journal cannot be read: Input/output error")
    assert not lead.node.ended.is_set(), "the job goes on"


def test_another_job_that_begins_at_the_address_is_not_mixed_up(
    call: Call, lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages after the first are asked of the job that sent the first."""
    asked = requests(monkeypatch)
    lead.journal.note("stopping", by="h" * (MOST_PAGE_NBYTES + 1))
    assert by_address(call, lead, "status").exit_code == 0
    assert [lead.address.job for lead, _ in asked] == ["", "j-1"]
