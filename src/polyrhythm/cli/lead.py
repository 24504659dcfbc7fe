"""Finds the lead of a running job, for a command that sends it a request, and sends the request. The
user names the job by the name or folder of its run, or by HOST:PORT.

*A command that describes a run reads the same journal in both cases: in the run's folder, or page by
page from the lead.*
"""

import getpass
import os
import pwd
import socket
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NoReturn

from polyrhythm.api.checks import parse_address
from polyrhythm.api.flags import RUNS
from polyrhythm.api.secret import SECRET, find_secret
from polyrhythm.core.names import is_loopback
from polyrhythm.core.values import name_fault, plain_reason
from polyrhythm.errors import LinkError, PolyrhythmError, RunDeleted, RunError, UsageError
from polyrhythm.io.addresses import ANY_HOST
from polyrhythm.io.index import JobIndex, ListedJob
from polyrhythm.io.secretfile import read_secret
from polyrhythm.io.tcp import no_process_listens
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.runs import JOURNAL as JOURNAL_FILE
from polyrhythm.observe.runs import Run, RunProcess, find_run, load_run, running
from polyrhythm.observe.state import fold
from polyrhythm.observe.words import either
from polyrhythm.runtime.operator import JobAddress, ask_lead
from polyrhythm.wire.messages import JournalPage, OperatorAnswer, OperatorRequest
from polyrhythm.wire.messages.operator import JOURNAL
from polyrhythm.wire.proof import Secret


@dataclass(frozen=True, slots=True)
class Lead:
    """The lead of a job that runs."""

    name: str
    """The name of the run in messages."""
    address: JobAddress
    path: Path | None = None
    """The folder of the run; None if it is not known."""
    process: RunProcess | None = None
    """The process of the command that trains; None if it is not known."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run, the file with its journal, and whether the run's folder is on this machine."""

    run: Run
    journal: Path
    is_here: bool


def find_lead(run: str | None, runs_dir: Path, secret_file: Path | None) -> Lead:
    """Find the lead. Raises UsageError if no run is named, and an error if the run does not exist, is
    not running, or belongs to another user."""
    if run is None:
        raise UsageError(_running_runs(runs_dir))
    path = _find(run, runs_dir, secret_file)
    if isinstance(path, Lead):
        return path
    found = load_run(path)
    check_running(found)
    host, port = _address_of(found)
    secret = read_secret(secret_file) if secret_file is not None else _secret_of(found)
    job = found.job.job if found.job is not None else ""
    return Lead(f"run {found.name}", JobAddress(host, port, secret, job), path, found.process)


@contextmanager
def read_run(run: str | None, runs_dir: Path, secret_file: Path | None) -> Iterator[FoundRun]:
    """Read a run; None: the newest. If its folder is not here, ask the lead of the running job. The
    file with the journal exists only inside the `with` statement."""
    found = _find(run, runs_dir, secret_file)
    if not isinstance(found, Lead):
        yield FoundRun(load_run(found), found / JOURNAL_FILE, is_here=True)
        return
    with tempfile.NamedTemporaryFile(prefix="polyrhythm-journal-") as file:
        page = _fetch_journal(found, file)
        journal = Path(file.name)
        state, path = fold(read_journal(journal)), Path(page.run_dir)
        remote = Run(path, page.job, state, None, None, alive=True, now_s=page.now_s)
        yield FoundRun(remote, journal, is_here=False)


def _running_runs(runs_dir: Path) -> str:
    """What the user can give for RUN. A request changes the job, so the user must name the run even
    if only one job is running."""
    paths = [path.resolve() for path, _ in running(runs_dir)]
    if runs_dir == RUNS:
        paths += [Path(job.run_dir) for job in JobIndex(os.environ).jobs()]
    found = dict.fromkeys(paths)
    counts = Counter(path.name for path in found)
    names = [path.name if counts[path.name] == 1 else str(path) for path in found]
    if not names:
        return "RUN is missing, and no job of yours is running on this machine"
    return f"RUN is missing: give the name of a running job: {either(names)}"


def _find(run: str | None, runs_dir: Path, secret_file: Path | None) -> Path | Lead:
    """The folder of a run, or the lead of the running job if the folder is not here."""
    try:
        return find_run(runs_dir, run)
    except RunDeleted as error:
        assert run is not None
        return _lead_of_deleted(run, error.jobs, secret_file)
    except UsageError:
        address = None if run is None else parse_address(run)
        if address is None:
            raise
        known = find_secret(*address, secret_file)
        return Lead(f"the job at {run}", JobAddress(*address, known.secret, known.job))


# -- requests ------------------------------------------------------------------------------------


def ask(lead: Lead, request: OperatorRequest) -> Iterator[OperatorAnswer]:
    """Send a request to the lead, and yield its answers."""
    return ask_lead(lead.address, operator_name(), request)


def ask_once(lead: Lead, request: OperatorRequest) -> OperatorAnswer:
    """Send a request to the lead, and wait until it is done. Returns the last answer. Raises RunError
    if the job does not run any more, or cannot be reached."""
    try:
        return [answer for answer in ask(lead, request) if answer.done][-1]
    except LinkError as error:
        explain(lead, error)


def carry_out(lead: Lead, request: OperatorRequest, *, done: Collection[str], fault: str) -> str:
    """Let the lead carry out a request, and return its final answer. `done`: the reason codes that
    mean success. For any other code, raise an error that begins with `fault`."""
    last = ask_once(lead, request)
    told = in_words(plain_reason(last.reason))
    if last.failed or last.reason.code not in done:
        raise PolyrhythmError(f"{lead.name}: {fault}: {told}")
    return f"{lead.name}: {told}"


def explain(lead: Lead, error: LinkError) -> NoReturn:
    """Raise an error that says why the lead cannot be reached or why its link has ended."""
    if lead.path is not None:
        check_running(load_run(lead.path))  # raises an error if the run has just ended
    elif no_process_listens(lead.address.host, lead.address.port):
        raise RunError(
            f"no job listens at {lead.address}: it has ended, or has another address;"
            " 'polyrhythm status RUN' shows the address of a running job"
        ) from None
    raise RunError(f"the lead of {lead.name} cannot be reached: {error}") from None


def _fetch_journal(lead: Lead, file: IO[bytes]) -> JournalPage:
    """Write the journal of a running job into this file. Returns the last page."""
    address, at = lead.address, 0
    while True:
        answer = ask_once(replace(lead, address=address), OperatorRequest(what=JOURNAL, at=at))
        page = answer.page
        if page is None:
            raise RunError(f"{lead.name}: {in_words(plain_reason(answer.reason))}")
        file.write(page.lines)
        if page.last:
            file.flush()
            return page
        # another job may now use the same address
        address, at = replace(address, job=page.job.job), at + len(page.lines)


def operator_name() -> str:
    """The name of this user as an operator in the journal: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # this user id has no entry in the list of users
        user = "operator"
    name = f"{user}@{socket.gethostname()}"
    return "operator" if name_fault(name) is not None else name


def _lead_of_deleted(run: str, jobs: list[ListedJob], secret_file: Path | None) -> Lead:
    """Find the lead of a job whose folder was deleted while the job runs. The index of this user's
    jobs has its address and its secret."""
    if len(jobs) != 1:
        addresses = either(f"{_reachable(job.host)}:{job.port}" for job in jobs)
        raise RunError(
            f"the folders of {len(jobs)} running runs named {run!r} were deleted: give the address of"
            f" one: {addresses}"
        )
    (job,) = jobs
    secret = job.secret if secret_file is None else read_secret(secret_file)
    name = f"run {Path(job.run_dir).name}"
    return Lead(name, JobAddress(_reachable(job.host), job.port, secret, job.job))


def check_running(run: Run) -> None:
    """Raises UsageError if the run has ended."""
    if run.word not in ("running", "unknown"):
        again = _continued_as(run)
        hint = "" if again is None else f"; the job continues as run {again}: give that name"
        raise RunError(f"run {run.name} does not run any more: {run.described}{hint}")


def _continued_as(run: Run) -> str | None:
    """The name of the running run that continues this one from its checkpoints, after a loss
    (`--on-loss resume`) or by `polyrhythm resume`; None if there is none."""
    store = "" if run.job is None else run.job.store
    for path, job in running(run.path.parent) if store else ():
        if job.resume == store:
            return path.name
    return None


def _address_of(run: Run) -> tuple[str, int]:
    """The address at which this host can reach the lead of the run."""
    listening = parse_address(run.state.listening or "")
    if listening is None:
        raise RunError(f"run {run.name} is starting: its lead does not listen yet; try again")
    host, port = listening
    if run.word == "unknown" and (is_loopback(host) or host in ANY_HOST):
        raise RunError(f"run {run.name} cannot be reached from here: {run.reason}")
    return _reachable(host), port


def _reachable(host: str) -> str:
    """An address at which this host reaches a process that listens at `host`."""
    if host in ANY_HOST:
        return "::1" if ":" in host else "127.0.0.1"
    return host


def _secret_of(run: Run) -> Secret:
    file = run.path / SECRET
    try:
        owner = file.stat().st_uid
    except OSError:
        owner = run.path.stat().st_uid
    if owner != os.getuid():
        raise RunError(
            f"run {run.name} belongs to another user ({_user(owner)}): only a user who has its secret"
            " can do this; give a copy of the file with --secret-file FILE"
        )
    return read_secret(file)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"
