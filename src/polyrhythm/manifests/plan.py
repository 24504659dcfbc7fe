"""The input of a manifest: a job whose options were checked, and the commands of its processes.

*The options are those of `train`.* The lead's command `polyrhythm train` gets them, except those of
workers and servers that run elsewhere: their own commands get these. A launcher refuses options
that make no sense under it; all other checks are those of `train`.
"""

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrhythm.api.checks import (
    check_checkpoints,
    check_host,
    check_sharing,
    check_spec,
    without_effect,
)
from polyrhythm.api.code import Code, find_code
from polyrhythm.api.hosts import Here
from polyrhythm.api.options import check_options, flag_of, with_defaults_of, words_of
from polyrhythm.api.secret import given_secret
from polyrhythm.api.training import job_of, train, without_goal
from polyrhythm.api.values import demands
from polyrhythm.core.cluster import Demand, demands_of
from polyrhythm.core.sync.registry import choose_kind
from polyrhythm.errors import UsageError
from polyrhythm.io.secretfile import fresh_secret
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.proof import Secret

PROGRAM = "polyrhythm"
PORT = 7077
"""The port of the lead, if the user chooses none."""
WAIT = "1h"
"""How long workers and servers wait for the lead. It may have to wait for its image and for a free
machine."""

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_OF_SERVERS = ("digest", "link", "debug")
"""Options of `train` that `polyrhythm server` has too."""
_OF_WORKERS = (*_OF_SERVERS, "threads", "devices", "share_data")
_NOT_OF_LEAD = ("name", "workers", "servers", "port")
"""Options that the lead's command gets in another way."""
_OF_WORKERS_ELSEWHERE = ("threads", "devices", "share_data")
"""Options that are useless to the lead's command if it starts no workers."""
_OF_CLUSTER = ("resources_per_worker", "resources_per_server")

ELSEWHERE = "the manifest decides where processes run"
NOT_HERE: Mapping[str, str] = {
    "engine": "the manifest starts ordinary processes",
    "address": "only --engine ray has it",
    "detach": "only --engine ray has it",
}
"""Options that no launcher can have, with the reason."""
REFUSED: Mapping[str, str] = {
    **NOT_HERE,
    "colocate": "under the manifest, servers and workers run separately",
    "slow": "under the manifest, workers have other names",
    "slow_at": "under the manifest, workers have other names",
    "stall": "under the manifest, workers have other names",
    "tenant": "under the manifest, workers have other names",
    "local_workers": ELSEWHERE,
    "local_servers": ELSEWHERE,
    "host": "each process listens on the address of its container or node",
    "insecure": "it is always set, because processes are linked over a network",
    "in_place": "workers and servers have no memory in common",
    "respawn": "the launcher starts a process again when it dies",
}
"""Options that a launcher cannot have if it starts workers and servers itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A job for a launcher. `words` are the words of a command line."""

    name: str
    spec: JobSpec
    code: Code
    given: Mapping[str, Any]
    """The options that the user has given."""
    secret: Secret
    per_worker: tuple[Demand, ...]
    """The resources that each worker requests."""
    per_server: Demand
    apart: bool
    """Whether workers run in other containers or on other hosts than the lead."""
    hints: tuple[str, ...]
    """Hints for the user: options that have no effect, a job without a goal."""

    @classmethod
    def of(
        cls,
        job: str,
        given: Mapping[str, Any],
        refused: Mapping[str, str],
        launcher: str,
        *,
        apart: bool = True,
        servers_apart: bool = False,
    ) -> "Plan":
        """Check the job and its options. `refused`: the options that this launcher cannot have.
        `apart`: workers do not run in the container, or on the host, of the lead. `servers_apart`:
        the same for servers. Raises UsageError."""
        for name in (each for each in refused if each in given):
            raise UsageError(f"a manifest for {launcher} has no {flag_of(name)}: {refused[name]}")
        if apart and given.get("link") == "local":
            raise UsageError(
                f"a manifest for {launcher} has no --link local: processes have no memory in common"
            )
        code = find_code(job)
        defaults = inspect.signature(train).parameters
        settings = {
            **{
                name: each.default
                for name, each in defaults.items()
                if each.kind is each.KEYWORD_ONLY
            },
            **with_defaults_of(code, train, given),
        }
        check_options(train, settings, ())
        if ".." in str(settings["workers"]):
            raise UsageError(
                f"--workers is {settings['workers']}: give one number in a manifest; workers may join"
                " and leave while the job trains"
            )
        # the model with which the job begins may be on the launcher's hosts only
        spec = choose_kind(job_of(code, {**settings, "init": None}))
        check_spec(spec)
        here = Here.of(
            spec,
            1 if servers_apart else settings["local_servers"],
            0 if apart else settings["local_workers"],
            colocated=settings["colocate"],
        )
        if not apart:
            check_host(settings["host"], settings["insecure"])
            check_sharing(spec, here.workers)
        check_checkpoints(spec, settings["store"], here)
        asked = {flag: demands(settings[flag]) for flag in _OF_CLUSTER}
        of_servers = demands_of(
            "--resources-per-server", asked["resources_per_server"], spec.servers
        )
        if len(set(of_servers)) > 1:
            raise UsageError(
                "--resources-per-server is for all servers here: leave the number of servers out"
            )
        return cls(
            _name_of(settings["name"], code),
            spec,
            code,
            dict(given),
            given_secret() or fresh_secret(),
            tuple(
                demands_of("--resources-per-worker", asked["resources_per_worker"], spec.workers)
            ),
            of_servers[0],
            apart,
            (*without_goal(spec), *without_effect(spec)),
        )

    @property
    def port(self) -> int:
        return self.given.get("port") or PORT

    @property
    def file(self) -> str:
        """A name for the job's file in containers."""
        return f"{self.code.stem if _FILE.fullmatch(self.code.stem) else self.name}.py"

    @property
    def resumes(self) -> bool:
        """Whether the job can continue when its lead is started again."""
        return bool(self.spec.checkpoint_every or self.given.get("store"))

    def train(self, job: str, *more: object) -> list[str]:
        """The command of the lead. `job`: the path of the job's code where the command runs.
        `more`: words that the launcher adds."""
        kept = {
            name: value
            for name, value in self.given.items()
            if name
            not in (*_NOT_OF_LEAD, *_OF_CLUSTER, *(_OF_WORKERS_ELSEWHERE if self.apart else ()))
        }
        counts = ("--workers", self.spec.workers, "--servers", self.spec.servers)
        words = [PROGRAM, "train", job, "--name", self.name, *counts, *more]
        words += ["--port", self.port, "--resume"]
        return [str(word) for word in words] + words_of(train, kept)

    def worker(self, address: str, *more: str) -> list[str]:
        """The command of a worker. `more`: the code of the job, and words that the launcher
        adds."""
        joins = ["--connect", address, "--wait", WAIT]
        return [PROGRAM, "worker", *more, *joins, *self._words(_OF_WORKERS)]

    def server(self, address: str, *, insecure: bool = True) -> list[str]:
        """The command of a server without the lead."""
        joins = ["--connect", address, "--wait", WAIT, *(["--insecure"] if insecure else [])]
        return [PROGRAM, "server", *joins, *self._words(_OF_SERVERS)]

    def _words(self, names: Sequence[str]) -> list[str]:
        return words_of(train, {name: self.given[name] for name in names if name in self.given})

    def worker_groups(self) -> list[tuple[int, Demand]]:
        """The workers in groups that request the same resources, with the size of each group."""
        counts: dict[Demand, int] = {}
        for demand in self.per_worker:
            counts[demand] = counts.get(demand, 0) + 1
        return [(count, demand) for demand, count in counts.items()]


def _name_of(given: str | None, code: Code) -> str:
    """The name of the run, in a form that launchers also accept."""
    name = given or re.sub(r"[^a-z0-9]+", "-", code.stem.lower()).strip("-")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r} cannot be used in a manifest: give at most 40 small letters, digits and"
            " '-', and begin with a letter"
        )
    return name


def program() -> str:
    """The program of this installation, for launchers that run it on machines with the same files."""
    path = Path(sys.executable).with_name(PROGRAM)
    return str(path) if path.is_file() else PROGRAM


def text_of(code: Code) -> str:
    """The text of the job's file."""
    try:
        return Path(code.path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{code.path} is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"cannot read {code.path}: {error.strerror}") from None
