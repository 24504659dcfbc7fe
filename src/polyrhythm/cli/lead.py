"""Finds the lead of a running job, for a command that sends it a request. The user names the job by
the name or folder of its run, or by HOST:PORT."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.api.checks import parse_address
from polyrhythm.api.secret import SECRET, find_secret
from polyrhythm.core.names import is_loopback
from polyrhythm.errors import RunDeleted, RunError, UsageError
from polyrhythm.io.addresses import ANY_HOST
from polyrhythm.io.index import ListedJob
from polyrhythm.io.secretfile import read_secret
from polyrhythm.observe.runs import Run, RunProcess, find_run, load_run, running
from polyrhythm.observe.words import listed
from polyrhythm.wire.proof import Secret


@dataclass(frozen=True, slots=True)
class Lead:
    """Where the lead of a job listens, and the secret that a request needs."""

    name: str
    """The name of the run in messages."""
    host: str
    port: int
    secret: Secret
    job: str = ""
    """The job's id; empty if it is not known. A request that contains the id cannot reach another job
    that now uses the port."""
    path: Path | None = None
    """The folder of the run; None if it is not known."""
    process: RunProcess | None = None
    """The process of the command that trains; None if it is not known."""


def find_lead(run: str, runs_dir: Path, secret_file: Path | None) -> Lead:
    """Find the lead. Raises UsageError if the run does not exist, is not running, or belongs to
    another user."""
    try:
        path = find_run(runs_dir, run)
    except RunDeleted as error:
        return _lead_of_deleted(run, error.jobs, secret_file)
    except UsageError:
        address = parse_address(run)
        if address is None:
            raise
        known = find_secret(*address, secret_file)
        return Lead(f"the job at {run}", *address, known.secret, known.job)
    found = load_run(path)
    check_running(found)
    host, port = _address_of(found)
    secret = read_secret(secret_file) if secret_file is not None else _secret_of(found)
    job = found.job.job if found.job is not None else ""
    return Lead(f"run {found.name}", host, port, secret, job, path, found.process)


def _lead_of_deleted(run: str, jobs: list[ListedJob], secret_file: Path | None) -> Lead:
    """The lead of a job whose folder was deleted while it runs: the index of this user's jobs has its
    address and its secret."""
    if len(jobs) != 1:
        addresses = listed(f"{_reachable(job.host)}:{job.port}" for job in jobs)
        raise RunError(
            f"the folders of {len(jobs)} running runs named {run!r} were deleted: give the address of"
            f" one: {addresses}"
        )
    (job,) = jobs
    secret = job.secret if secret_file is None else read_secret(secret_file)
    name = f"run {Path(job.run_dir).name}"
    return Lead(name, _reachable(job.host), job.port, secret, job.job)


def check_running(run: Run) -> None:
    """Raises UsageError if the run has ended."""
    if run.word not in ("running", "unknown"):
        again = _continued_as(run)
        hint = "" if again is None else f"; the job continues as run {again}: give that name"
        raise RunError(f"run {run.name} does not run any more: {run.word}: {run.reason}{hint}")


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
