"""Units for systemd, one for each role: the job itself, on one machine, and workers and servers of
other machines that join it."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from polyrhythm.core.names import is_loopback
from polyrhythm.errors import UsageError
from polyrhythm.io.addresses import ANY_HOST
from polyrhythm.manifests.plan import NOT_HERE, Plan, program

NAME = "systemd"
JOB, WORKER, SERVER = "job", "worker", "server"
ROLES = (JOB, WORKER, SERVER)
_LOOPBACK = "127.0.0.1"
_PLAIN = re.compile(r"[A-Za-z0-9_./:@=,+-]+", re.ASCII)
_REFUSED = {
    **NOT_HERE,
    "resources_per_worker": "its machine has no scheduler",
    "resources_per_server": "its machine has no scheduler",
}


def systemd(job: str, given: Mapping[str, object], role: str) -> tuple[Plan, str]:
    """The unit of one role. Raises UsageError."""
    plan = Plan.of(job, given, _REFUSED, "systemd", apart=False)
    return plan, _job_unit(plan) if role == JOB else _joining_unit(plan, role)


def _job_unit(plan: Plan) -> str:
    unit = f"polyrhythm-{plan.name}"
    words = plan.train(plan.code.path or plan.code.name)
    workers = plan.given.get("local_workers", plan.spec.workers)
    again = (
        """\
# A job that fails continues from its newest checkpoint, but not for ever.
Restart=on-failure
RestartSec=10s
RestartPreventExitStatus=2 3 4
"""
        if plan.resumes
        else "# With --checkpoint-every a job that fails could continue.\nRestart=no\n"
    )
    install = "\n[Install]\nWantedBy=default.target\n" if plan.resumes else ""
    return f"""\
# The job {plan.name} of polyrhythm, with {workers} workers on this machine.
# Save this file as ~/.config/systemd/user/{unit}.service.
#
#   systemctl --user daemon-reload
#   systemctl --user start {unit}      begin
#   journalctl --user -fu {unit}       progress, and the result
#   systemctl --user stop {unit}       end it, and save its model
#   loginctl enable-linger                  let it go on when you log out
#
{_about_secret(plan)}
[Unit]
Description=polyrhythm: the job {plan.name}
StartLimitIntervalSec=10min
StartLimitBurst=5

[Service]
Type=exec
WorkingDirectory={_path(str(Path.cwd()))}
EnvironmentFile=-{_secret_of(plan)}
ExecStart={_line(words)}
# SIGTERM to the first process shuts the job down cleanly: it asks the others.
KillMode=mixed
TimeoutStopSec=10min
SuccessExitStatus=143
{again}{install}"""


def _joining_unit(plan: Plan, role: str) -> str:
    host = str(plan.given.get("host", _LOOPBACK))
    if host in ANY_HOST:
        raise UsageError(
            f"--host {host} is no address that a {role} could reach: give the address of the job's"
            " machine, here and for --role job"
        )
    unit = f"polyrhythm-{plan.name}-{role}"
    address = f"[{host}]:{plan.port}" if ":" in host else f"{host}:{plan.port}"
    if role == WORKER:
        words = plan.worker(address, plan.code.path or plan.code.name, "--name", "%H-%i")
        leaves = "# SIGTERM: it contributes what it has, and leaves."
        grace = "90s"
    else:
        words = plan.server(address, insecure=not is_loopback(host))
        leaves = "# SIGTERM: it moves its slices to the other servers, and leaves."
        grace = "10min"
    return f"""\
# A {role} of the job {plan.name} of polyrhythm, whose lead is at {address}.
# Save this file as ~/.config/systemd/user/{unit}@.service.
#
#   systemctl --user daemon-reload
#   systemctl --user start {unit}@1 {unit}@2      two of them
#   systemctl --user stop {unit}@2
#
{_about_secret(plan)}
[Unit]
Description=polyrhythm: {role} %i of the job {plan.name}
StartLimitIntervalSec=10min
StartLimitBurst=20

[Service]
Type=exec
WorkingDirectory={_path(str(Path.cwd()))}
EnvironmentFile=-{_secret_of(plan)}
ExecStart={_line(words, specifiers=True)}
{leaves}
KillMode=mixed
TimeoutStopSec={grace}
SuccessExitStatus=143
# It is started again when it dies, and ends with the job.
Restart=on-failure
RestartSec=10s
RestartPreventExitStatus=2

[Install]
WantedBy=default.target
"""


def _secret_of(plan: Plan) -> str:
    return f"%h/.config/polyrhythm/{plan.name}.env"


def _about_secret(plan: Plan) -> str:
    path = _secret_of(plan).replace("%h", "~")
    return f"""\
# Processes of other machines can join only with the same secret. Make it once, and copy the file to
# each of these machines:
#   (umask 077; mkdir -p {os.path.dirname(path)}
#    echo POLYRHYTHM_SECRET=$(openssl rand -hex 32) > {path})
"""


def _line(words: Iterable[str], *, specifiers: bool = False) -> str:
    """The words as a command line of a unit, with a line for each flag. `specifiers`: the words may
    contain %H and %i, which systemd replaces."""
    quoted = [word if specifiers and word == "%H-%i" else _word(word) for word in words]
    lines = (f"\\\n  {word}" if word.startswith("--") else word for word in quoted[1:])
    return " ".join([_word(program()), *lines])


def _word(word: str) -> str:
    escaped = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(escaped):
        return escaped
    inside = escaped.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{inside}"'


def _path(path: str) -> str:
    """A folder as the value of a setting, which is not quoted."""
    return path.replace("%", "%%")
